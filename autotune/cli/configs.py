"""Commands on a tuned config in use: ``check`` and ``export``.

Commands import what they need when they run, so that ``--help`` and refusals come at once.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.console import output, print_json
from autotune.cli.options import JsonOption
from autotune.errors import RequestError
from autotune.process.signals import signals_later

ConfigArgument = Annotated[
    Path | None, typer.Argument(metavar="CONFIG", help="A tuned config such as best.json.")
]


def check_config(
    config: ConfigArgument = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Count another machine as a fault too (exit code 4).")
    ] = False,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="autotune/2", help="Print the JSON Schema of this format, and do nothing else."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Validates a tuned config and says what it would do here.

    The exit code is 2 if the config or its model files are wrong, and 4 if this machine lacks what
    the config requires.
    """
    if schema is not None:
        from autotune.deploy.schema import config_schema

        print_json(config_schema(schema))
        return
    if config is None:
        raise RequestError("name a tuned config such as best.json")
    with signals_later():
        from autotune.deploy.check import check
        from autotune.report.check import render_check

    checked = check(config)
    if as_json:
        print_json({**asdict(checked), "valid": checked.valid, "outcome": checked.outcome})
    else:
        output.print(render_check(checked, str(config)))
    if code := checked.exit_code(strict=strict):
        raise typer.Exit(code)


def export_config(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A tuned config such as best.json.")
    ],
    target: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="python, triton, perf_test, cpp, csharp, java, rust, javascript, olive or "
            "ort_config.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder to write to. If left out, the config's folder."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Writes a tuned config in the form of another program.

    No file that is there is overwritten. The command names what the target cannot express.
    """
    with signals_later():
        from autotune.export.writing import export
        from autotune.report.export import render_export

    exported = export(config, target, out)
    if as_json:
        print_json({**asdict(exported), "files": [str(path) for path in exported.files]})
    else:
        output.print(render_export(exported))
