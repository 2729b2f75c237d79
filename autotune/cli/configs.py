"""Commands on a tuned config in use: ``check`` and ``export``.

Commands import what they need when they run, so that ``--help`` and refusals come at once.
"""

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.console import present, print_json
from autotune.cli.options import OWN_MAX_ERROR, DataOption, JsonOption, ShapeOption
from autotune.errors import NotBetterError, RequestError
from autotune.process.signals import signals_later

_CONFIG = typer.Argument(metavar="CONFIG", help="A tuned config such as best.json.")


def check_config(
    config: Annotated[Path | None, _CONFIG] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", metavar="", help="Refuse another machine as well (exit code 4)."),
    ] = False,
    schema: Annotated[
        bool,
        typer.Option("--schema", metavar="", help="Print the JSON Schema of a config and end."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Validates a tuned config and says what it would do here.

    The exit code is 2 if the config or its model files are wrong, and 4 if this machine lacks what
    the config requires.
    """
    if schema:
        from autotune.deploy.schema import config_schema

        print_json(config_schema())
        return
    if config is None:
        raise RequestError("name a tuned config such as best.json")
    with signals_later():
        from autotune.deploy.check import check
        from autotune.report.deploying import view_check

    checked = check(config)
    present(view_check(checked, str(config)), as_json=as_json)
    if code := checked.exit_code(strict=strict):
        raise typer.Exit(code)


def certify_config(
    config: Annotated[Path, _CONFIG],
    model: Annotated[
        Path | None,
        typer.Argument(metavar="[MODEL]", help="The untouched model (the study's own)."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="KINDS",
            help="Kinds of processors, comma-separated: avx2, avx512, vnni, arm64 (those on which "
            "the file's operators depend, and this one).",
        ),
    ] = None,
    data: DataOption = None,
    shape: ShapeOption = None,
    max_error: Annotated[float | None, OWN_MAX_ERROR] = None,
    as_json: JsonOption = False,
) -> None:
    """Compares a config's answers on kinds of processors, emulated ones too.

    Writes what came of it into the config. The exit code is 3 if an error is above the limit.
    """
    with signals_later():
        from autotune.report.deploying import view_certificates
        from autotune.results.certification import answers_rightly, certify
        from autotune.results.subjects import error_limit

    kinds = on.split(",") if on else None
    tuned = certify(config, processors=kinds, source=model, data=data, shapes=dict(shape or ()))
    most = max_error or error_limit(tuned)
    present(view_certificates(tuned.certified, most), as_json=as_json)
    if not answers_rightly(tuned.certified, most):
        raise typer.Exit(NotBetterError.exit_code)


def export_config(
    config: Annotated[Path, _CONFIG],
    target: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="TARGET",
            help="python, triton, perf_test, cpp, csharp, java, rust, javascript, olive, "
            "ort_config, genai.",
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
    with signals_later():
        from autotune.export.writing import export
        from autotune.report.deploying import view_export

    exported = export(config, target, out, accept_processor=accept_processor)
    present(view_export(exported), as_json=as_json)
