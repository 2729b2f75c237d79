"""A tuned config in use: what it would do on this machine, and what an export wrote."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from autotune.deploy.check import Check
from autotune.deploy.config import COMPARED, Certificate
from autotune.export.writing import Exported
from autotune.report.view import Line, Table, View, lines


def view_check(check: Check, config: str) -> View:
    """Returns what a check found."""
    data = {**asdict(check), "valid": check.valid, "outcome": check.outcome}
    if not check.valid:
        return View(blocks=[Line(check.problem, "bad"), Line(check.outcome)], data=data)
    found = [
        Line(f"{config} is a valid config of the format {check.format}.", "good"),
        Line(
            f"Its model files have the sizes and digests that it names: {', '.join(check.files)}."
        ),
    ]
    if check.steps:
        found.append(Line(f"Its model differs from the untouched one by {', '.join(check.steps)}."))
    if check.tuned_for:
        found.append(Line(f"It was {check.tuned_for}."))
    if check.refusal:
        words = f"It would give wrong answers on this processor: {check.refusal}."
        found.append(Line(words, "bad"))
    if check.lacking:
        found.append(Line(f"This machine lacks {', '.join(check.lacking)}.", "bad"))
    if check.differences:
        found.append(Line(f"It was tuned elsewhere: {'; '.join(check.differences)}."))
    if check.adapted:
        found.append(Line(f"Here {check.adapted}."))
    found += lines(*check.calls)
    if check.process:
        found.append(Line(process_sentence(check.process)))
    return View(blocks=[*found, Line(check.outcome)], data=data)


def view_export(exported: Exported) -> View:
    """Returns the written files, what the target cannot express, and how to use them."""
    blocks = lines(*(f"Wrote {path}" for path in exported.files))
    if exported.lost:
        blocks.append(Line(f"{exported.target} cannot express:", "warning"))
        blocks += lines(*(f"  {part}" for part in exported.lost))
    for need in exported.needs:
        blocks.append(Line(f"Not checked: its processor needs {need}", "bad"))
    if exported.environment:
        variables = assignments(exported.environment)
        blocks.append(Line(f"The program needs less memory in the environment {variables}"))
    return View(
        blocks=[*blocks, Line(f"Use: {exported.use}")],
        data={**asdict(exported), "files": [str(path) for path in exported.files]},
    )


def view_certificates(certificates: Sequence[Certificate], max_error: float) -> View:
    """Returns a row for each kind of processor and each way to call the model.

    Args:
        max_error: The limit, above which an error is marked.
    """

    def cells(item: Certificate) -> tuple[str, str, str, str]:
        is_compared = item.outcome == COMPARED
        error = item.outcome
        if item.error is not None:
            error = f"{item.error:.2g}" + (" (too large)" if item.error > max_error else "")
        return item.processor, _called_with(item) if is_compared else "", error, item.how

    headings = ("processor", "called with", "error", "how")
    table = Table(headings=headings, rows=list(map(cells, certificates)), words=(0, 1, 2, 3))
    return View(
        blocks=[table], data={"certified": [asdict(certificate) for certificate in certificates]}
    )


def _called_with(certificate: Certificate) -> str:
    """Returns how the model was called, in words."""
    if certificate.padding:
        return f"{certificate.padding} positions of padding"
    return "single samples" if certificate.batch == 1 else f"batches of {certificate.batch}"


def process_sentence(environment: Mapping[str, str]) -> str:
    """Returns how an application switches on a config's options of the process."""
    return (
        "Options of the process are switched on by autotune.load(path, process_options=True), or "
        f"in any language by the environment: {assignments(environment)}"
    )


def assignments(environment: Mapping[str, str]) -> str:
    """Returns environment variables as a shell takes them."""
    return " ".join(f"{name}={text}" for name, text in environment.items())
