"""What a comparison of answers does not show, in sentences."""

from collections.abc import Iterator

from rich.text import Text

from autotune.deploy.config import Coverage
from autotune.report.text import printable

_MOST_NAMES = 3


def coverage_remarks(coverage: Coverage | None) -> Iterator[Text]:
    """Yields a sentence for each reason why the comparison of the answers proves little."""
    if coverage is None:
        return
    if names := coverage.constant_outputs:
        listed = ", ".join(f"'{printable(name)}'" for name in names[:_MOST_NAMES])
        if len(names) > _MOST_NAMES:
            listed += f" and {len(names) - _MOST_NAMES} more"
        subject = f"The outputs {listed} are" if len(names) > 1 else f"The output {listed} is"
        yield Text(
            f"{subject} the same for all {coverage.samples} samples, so the comparison of the "
            "answers proves little. Give other inputs with --data.",
            style="yellow",
        )
    if coverage.share < 1:
        yield Text(
            f"{100 * (1 - coverage.share):.2g} % of the numbers in the outputs were not compared: "
            "they are NaN or infinite in the unoptimised model.",
            style="yellow",
        )
    if coverage.repeat_error:
        yield Text(
            "The answers of the model differ from run to run: error "
            f"{coverage.repeat_error:.1g} between two runs on the same inputs.",
            style="yellow",
        )
