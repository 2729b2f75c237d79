"""Whether a tuned config still holds after an upgrade."""

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.report.comparison import speed_words
from autotune.report.coverage import coverage_remarks
from autotune.report.text import interval
from autotune.results.upgrade import Verification


def render_verification(verification: Verification) -> RenderableType:
    """Returns what still holds of a config, beside what was measured when it was tuned."""
    then, now = verification.evidence, verification.now
    holds = verification.exit_code == 0
    lines = [
        Text(
            f"{verification.config} {'still holds' if holds else 'no longer holds'} "
            "on this machine.",
            style="bold green" if holds else "bold red",
        )
    ]
    if verification.differences:
        lines.append(Text(f"Since it was tuned: {'; '.join(verification.differences)}."))
    if now is None:
        lines.append(Text(f"It gave no numbers: {verification.failure}"))
        return Group(*lines)
    same = "the same" if verification.same_answers else "others"
    lines += [
        Text(
            f"Answers: {same}; error {now.error:.2g} now and {then.error:.2g} then, at most "
            f"{verification.max_error:.2g} counts as the same."
        ),
        Text(
            f"Speed: {speed_words(now)}; {now.speedup.value:.2f}× ({interval(now.speedup)}) now "
            f"and {then.speedup.value:.2f}× ({interval(then.speedup)}) then."
        ),
        Text(
            f"Memory: {now.peak_memory_mib:.1f} MiB now and {then.peak_memory_mib:.1f} MiB then; "
            f"the default {now.baseline_peak_memory_mib:.1f} MiB now."
        ),
    ]
    if not verification.still_as_fast:
        lines.append(
            Text("The speed-up is smaller than it was. `autotune study` may find a better config.")
        )
    if not verification.comparable:
        lines.append(
            Text(
                "The errors of now and then are of other inputs or another model. Name those of "
                "the study with --data and --model.",
                style="yellow",
            )
        )
    return Group(*lines, *coverage_remarks(now.coverage))
