"""Writes docs/reference.md: every command with its options, from the program itself.

python docs/generate.py
"""

from pathlib import Path
from typing import Any

import typer

from autotune.cli.app import app

PAGE = Path(__file__).parent / "reference.md"


def reference() -> str:
    """Returns the page."""
    command: Any = typer.main.get_command(app)
    introduction = (
        "# Commands\n\n`python docs/generate.py` writes this page from the program. A default "
        "stands in parentheses at the end of a line.\n"
    )
    parts = [introduction]
    for name, item in command.commands.items():
        parts.append(f"\n## autotune {name}\n\n{item.help.strip()}\n\n")
        parts += ["| option | what it does |\n|---|---|\n"]
        parts += [_row(parameter) for parameter in item.params if not parameter.hidden]
    return "".join(parts)


def _row(parameter: Any) -> str:
    """Returns the row of an option or of an argument."""
    is_argument = parameter.param_type_name == "argument"
    names = [] if is_argument else [*parameter.opts, *parameter.secondary_opts]
    metavar = parameter.metavar or ""
    form = " ".join(filter(None, [", ".join(names), metavar])).replace("|", "\\|")
    return f"| `{form}` | {(parameter.help or '').replace('|', chr(92) + '|')} |\n"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
