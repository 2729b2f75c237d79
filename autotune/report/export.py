"""What an export wrote."""

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.export.writing import Exported


def render_export(exported: Exported) -> RenderableType:
    """Returns the written files, what the target cannot express, and how to use them."""
    lines = [Text(f"Wrote {path}") for path in exported.files]
    if exported.lost:
        lines.append(Text(f"{exported.target} cannot express:", style="yellow"))
        lines += [Text(f"  {part}") for part in exported.lost]
    return Group(*lines, Text(f"Use: {exported.use}"))
