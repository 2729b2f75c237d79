"""Commands on the result of a study: ``show``, ``pick`` and ``compare``.

Commands import what they need when they run, so that ``--help`` and refusals come at once.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli import parsing
from autotune.cli.console import output, print_json
from autotune.cli.interrupts import signals_later
from autotune.cli.options import (
    MAX_LATENCY,
    MAX_MEMORY,
    DataOption,
    FolderArgument,
    JsonOption,
    ShapeOption,
)
from autotune.cli.report import write_last_page
from autotune.deploy.files import is_file
from autotune.errors import NotBetterError, RequestError


def show(
    folder: FolderArgument,
    effects: Annotated[
        bool,
        typer.Option("--effects", help="Show how much each value alone changes the objectives."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Shows the result of a study: the Pareto front and the default."""
    with signals_later():
        from autotune.report.effects import render_effects
        from autotune.report.result import render_result
        from autotune.results.result import StudyResult

    result = StudyResult.read(folder)
    if as_json:
        print_json(result.to_json())
    elif effects:
        output.print(render_effects(result))
    else:
        output.print(render_result(result))


def pick(
    folder: FolderArgument,
    trial: Annotated[
        int | None, typer.Option(help="Number of the trial, as `autotune show` lists it.")
    ] = None,
    prefer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What matters most: latency, memory, cpu, load, p99 or balanced. If left out, "
            "the preference of the study.",
        ),
    ] = None,
    max_memory: Annotated[float | None, MAX_MEMORY] = None,
    max_latency: Annotated[float | None, MAX_LATENCY] = None,
    as_json: JsonOption = False,
) -> None:
    """Writes another configuration of the Pareto front to best.json."""
    with signals_later():
        from autotune.report.result import render_result
        from autotune.results.emit import PAGE, pick_member
        from autotune.results.result import StudyResult, choose_member
        from autotune.storage.locks import exclusive_use

    result = StudyResult.read(folder)
    if trial is None:
        trial = choose_member(
            result, prefer=prefer, max_memory_mib=max_memory, max_latency_ms=max_latency
        ).trial
    elif prefer or max_memory or max_latency:
        raise RequestError(
            "--trial alone names the configuration; leave out --prefer, --max-memory and "
            "--max-latency"
        )
    with exclusive_use(folder):
        result = pick_member(result, trial)
    if is_file(folder / PAGE):
        write_last_page(folder)
    if as_json:
        print_json(result.to_json())
    else:
        output.print(render_result(result))


def compare_config(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A tuned config such as best.json.")
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            help="The original model. Needed only where the study's folder does not know it."
        ),
    ] = None,
    data: DataOption = None,
    shape: ShapeOption = [],
    max_error: Annotated[
        float,
        typer.Option(
            metavar="0.05", parser=parsing.error, help="Largest relative L2 error of an output."
        ),
    ] = 0.05,
    as_json: JsonOption = False,
) -> None:
    """Measures a tuned config against the default on this machine.

    The exit code is 3 if the config is not better than the default.
    """
    with signals_later():
        from autotune.cli.progress import steps
        from autotune.report.comparison import render_comparison
        from autotune.results.compare import compare

    with steps("comparing") as on_step:
        comparison = compare(
            config, model, data=data, shapes=dict(shape), max_error=max_error, on_step=on_step
        )
    if as_json:
        print_json(asdict(comparison))
    else:
        output.print(render_comparison(comparison, str(config)))
    if not comparison.better:
        raise typer.Exit(NotBetterError.exit_code)
