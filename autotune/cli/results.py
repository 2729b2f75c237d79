"""Commands on the result of a study: ``show`` and ``pick``.

Commands import what they need when they run, so that ``--help`` and refusals come at once.
"""

from typing import Annotated

import typer

from autotune.cli.console import output, print_json
from autotune.cli.options import MAX_LATENCY, MAX_MEMORY, FolderArgument, JsonOption
from autotune.cli.report import write_last_page
from autotune.deploy.files import is_file
from autotune.errors import RequestError
from autotune.process.signals import signals_later


def show(
    folder: FolderArgument,
    effects: Annotated[
        bool,
        typer.Option("--effects", help="Show how much each value alone changes the objectives."),
    ] = False,
    why: Annotated[
        bool, typer.Option("--why", help="Show what each change of the emitted config brings.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Shows the result of a study: the Pareto front and the default."""
    with signals_later():
        from autotune.report.effects import render_effects
        from autotune.report.result import render_result
        from autotune.report.why import render_why
        from autotune.results.result import StudyResult

    result = StudyResult.read(folder)
    if as_json:
        print_json(result.to_json())
        return
    if effects:
        output.print(render_effects(result))
    if why:
        output.print(render_why(result))
    if not effects and not why:
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
            help="What matters most: latency, memory, cpu, load, p99, throughput or balanced. If "
            "left out, the preference of the study.",
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
