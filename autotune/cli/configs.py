"""Commands on a tuned config in use: ``check`` and ``export``.

Commands import what they need when they run, so that ``--help`` and refusals come at once.
"""

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.console import present
from autotune.cli.options import JsonOption

_CONFIG = typer.Argument(metavar="CONFIG", help="A tuned config such as best.json.")


def check_config(
    config: Annotated[Path, _CONFIG],
    strict: Annotated[
        bool,
        typer.Option("--strict", metavar="", help="Refuse another machine as well (exit code 4)."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Validates a tuned config and says what it would do here.

    The exit code is 2 if the config or its model files are wrong, and 4 if this machine lacks what
    the config requires.
    """
    from autotune.deploy.check import check
    from autotune.report.deploying import view_check

    checked = check(config)
    present(view_check(checked, str(config)), as_json=as_json)
    if code := checked.exit_code(strict=strict):
        raise typer.Exit(code)


def export_config(
    config: Annotated[Path, _CONFIG],
    target: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="python, triton, cpp, javascript, ort_config, genai.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="DIR", help="Folder to write to (the config's)."),
    ] = None,
    accept_processor: Annotated[
        bool,
        typer.Option(
            "--accept-processor",
            metavar="",
            help="Export even if the target does not check the processor that it needs.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Writes a tuned config for another language or server.

    No file is overwritten. What the target cannot express is named.
    """
    from autotune.export.writing import export
    from autotune.report.deploying import view_export

    exported = export(config, target, out, accept_processor=accept_processor)
    present(view_export(exported), as_json=as_json)
