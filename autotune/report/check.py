"""What a tuned config would do on this machine."""

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.deploy.check import Check
from autotune.report.process import process_sentence


def render_check(check: Check, config: str) -> RenderableType:
    """Returns what a check found.

    Args:
        check: The outcome.
        config: The config as the user named it.
    """
    if not check.valid:
        return Group(Text(check.problem, style="bold red"), Text(check.outcome))
    lines = [
        Text(f"{config} is a valid config of the format {check.format}.", style="bold green"),
        Text(f"Model files, with the sizes and digests of the config: {', '.join(check.files)}."),
    ]
    if check.tuned_for:
        lines.append(Text(f"It was {check.tuned_for}."))
    if check.lacking:
        lines.append(Text(f"This machine lacks {', '.join(check.lacking)}.", style="bold red"))
    if check.differences:
        lines.append(Text(f"It was tuned elsewhere: {'; '.join(check.differences)}."))
    if check.adapted:
        lines.append(Text(f"Here it is {check.adapted}."))
    if check.process:
        lines.append(Text(process_sentence(check.process)))
    return Group(*lines, Text(check.outcome))
