"""What an export wrote."""

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.export.writing import Exported
from autotune.report.process import assignments


def render_export(exported: Exported) -> RenderableType:
    """Returns the written files, what the target cannot express, and how to use them."""
    lines = [Text(f"Wrote {path}") for path in exported.files]
    if exported.lost:
        lines.append(Text(f"{exported.target} cannot express:", style="yellow"))
        lines += [Text(f"  {part}") for part in exported.lost]
    if exported.environment:
        variables = assignments(exported.environment)
        lines.append(Text(f"The program needs less memory in the environment {variables}"))
    return Group(*lines, Text(f"Use: {exported.use}"))
