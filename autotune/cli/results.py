"""Commands on the result of a study: ``show`` and ``pick``.

Commands import what they need when they run, so that ``--help`` and refusals come at once.
"""

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli import parsing
from autotune.cli.console import present
from autotune.cli.options import (
    LIMITS,
    MAX_HELD_MEMORY,
    MAX_LATENCY,
    MAX_MEMORY,
    FolderArgument,
    JsonOption,
)
from autotune.cli.report import write_last_page
from autotune.deploy.files import is_file
from autotune.deploy.kinds import RECORDING, is_folder_of
from autotune.errors import RequestError

_WHERE = typer.Argument(
    metavar="DIR|URL",
    help="The folder of a study, or a storage: its studies are listed (AUTOTUNE_STORAGE).",
)

_MODEL = typer.Argument(
    metavar="[MODEL]", help="Where the model of the study is now, if it was moved."
)


def _show_recording(folder: Path, *, as_json: bool) -> None:
    """Shows what a recording holds, and what to type next."""
    from autotune.applications.recording import Recording
    from autotune.report.application import view_recording

    present(view_recording(Recording.read(folder)), as_json=as_json)


def show(
    where: Annotated[str | None, _WHERE] = None,
    effects: Annotated[
        bool,
        typer.Option("--effects", metavar="", help="How much each value changes the objectives."),
    ] = False,
    why: Annotated[
        bool, typer.Option("--why", metavar="", help="What each change of best.json brings.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Shows the result of a study: the default and the Pareto front."""
    if where is None or "://" in where:
        _show_studies(where, as_json=as_json)
        return
    if is_folder_of(RECORDING, where):
        _show_recording(Path(where), as_json=as_json)
        return
    from autotune.report.changes import view_why
    from autotune.report.result import view_effects, view_result
    from autotune.results.result import StudyResult

    result = StudyResult.read(Path(where))
    if as_json or not (effects or why):
        present(view_result(result), as_json=as_json)
        return
    if effects:
        present(view_effects(result), as_json=False)
    if why:
        present(view_why(result), as_json=False)


def _show_studies(storage: str | None, *, as_json: bool) -> None:
    from autotune.report.spaces import view_studies
    from autotune.study.resume import entries, place_of

    place, _ = place_of(storage)
    studies = entries(place)
    present(view_studies(studies, str(place)), as_json=as_json)


def pick(
    folder: FolderArgument,
    model: Annotated[Path | None, _MODEL] = None,
    trial: Annotated[
        int | None,
        typer.Option(
            metavar="N", parser=parsing.whole, help="Number of the trial (see autotune show)."
        ),
    ] = None,
    prefer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The objective that chooses, or balanced (the preference of the study).",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    max_memory: Annotated[float | None, MAX_MEMORY] = None,
    max_held_memory: Annotated[float | None, MAX_HELD_MEMORY] = None,
    max_latency: Annotated[float | None, MAX_LATENCY] = None,
    as_json: JsonOption = False,
) -> None:
    """Writes another configuration of the Pareto front to best.json."""
    from autotune.report.result import view_ending
    from autotune.results.result import StudyResult, choose_member
    from autotune.results.writing import PAGE, pick_member, repair
    from autotune.search.objective import preference
    from autotune.storage.locks import exclusive_use

    if trial is not None and (prefer or max_memory or max_held_memory or max_latency):
        raise RequestError(
            "--trial alone names the configuration; leave out --prefer, --max-memory, "
            "--max-held-memory and --max-latency"
        )
    StudyResult.read(folder)
    with exclusive_use(folder, cores=False):  # nothing is timed
        repair(folder)
        result = StudyResult.read(folder)
        if trial is None:
            trial = choose_member(
                result,
                prefer=prefer and preference(prefer),
                max_memory_mib=max_memory,
                max_held_memory_mib=max_held_memory,
                max_latency_ms=max_latency,
            ).trial
        result = pick_member(result, trial, model)
    page = PAGE if is_file(folder / PAGE) and not write_last_page(folder) else ""
    present(view_ending(result, page), as_json=as_json)
