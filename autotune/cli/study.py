"""The command that searches: ``study``.

Its options are the fields of :class:`autotune.study.options.StudyOptions`. An option that is left
out is None here: the record has the defaults, and a study that is continued keeps its own values.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli import parsing
from autotune.cli.applications import run_application_study
from autotune.cli.console import messages, present
from autotune.cli.interrupts import INTERRUPTED, checkpoint, say_how_to_continue
from autotune.cli.options import (
    HIDDEN_MAX_HELD_MEMORY,
    MAX_ERROR,
    MAX_LATENCY,
    MAX_MEMORY,
    ClientsOption,
    DataOption,
    GenerateOption,
    JsonOption,
    PromptTokensOption,
    QuietOption,
    ShapeOption,
    UrlOption,
    ValueOption,
    of_inputs,
    of_limits,
    of_search,
    of_storage,
)
from autotune.deploy.files import is_folder
from autotune.deploy.kinds import RECORDING, is_folder_of
from autotune.errors import RequestError, typed

if TYPE_CHECKING:
    from autotune.study.options import StudyOptions

_WHAT = typer.Argument(metavar="MODEL|DIR|URL", show_default=False, hidden=True)
_BATCH = of_inputs(
    "--batch",
    metavar="1,2,4,8",
    parser=parsing.batch_sizes,
    help="Batch sizes to search; the default runs the smallest.",
)
_TRAFFIC = of_inputs(
    "--traffic", metavar="JSON|app.rec", help="Shapes with their shares, or a recording."
)
_OUTPUTS = of_inputs(
    "--outputs", metavar="NAME,...", help="Outputs to keep; the others are removed (all)."
)
_METRIC = of_limits(
    "--metric", metavar="NAME", help="Rates answers: top1, cosine, or MODULE:FUNCTION."
)
_MAX_DROP = of_limits(
    "--max-drop", metavar="0.01", parser=parsing.drop, help="How far the metric may fall (0.01)."
)
_OBJECTIVE = of_limits(
    "--objective", metavar="NAME", help="latency, memory, cpu, load, p99, throughput, tokens, ttft."
)
_PREFER = of_limits(
    "--prefer", metavar="NAME", help="Objective that chooses best.json, or balanced (first)."
)
_TRIALS = of_search(
    "--trials",
    "-n",
    metavar="N",
    parser=parsing.whole,
    help="Configurations to measure, earlier runs included (100).",
)
_TIMEOUT = of_search(
    "--timeout", metavar="10m", parser=parsing.duration_s, help="End the study after this time."
)
_DRY_RUN = of_search(
    "--dry-run", metavar="", help="Show space, inputs, first trials and time; search nothing."
)
_SPACE = of_search(
    "--space", metavar="NAME|TOML", help="The search space: a preset (autotune spaces) or a file."
)
_FIX = of_search(
    "--fix",
    metavar="KEY=VALUE",
    parser=parsing.pair,
    help="Fix a parameter, except in the default. Repeatable.",
)
_PROVIDERS = of_search(
    "--providers", metavar="cpu,...", help="Execution providers to search (all that are ready)."
)
_RUNTIMES = of_search(
    "--runtimes", metavar="NAME", help="Other ONNX Runtimes to search too (autotune runtimes)."
)
_SAMPLER = of_search(
    "--sampler", help="Optuna's tpe, nsga2, nsga3, gp or random, or MODULE:CLASS.", hidden=True
)
_TRY = of_search(
    "--try", help="Measure the configuration in this file first. Repeatable.", hidden=True
)
_SET = of_search(
    "--set",
    metavar="NAME=VALUE",
    parser=parsing.setting,
    help=f"{', '.join(parsing.SETTINGS)}.",
)
_OUT = of_storage("--out", "-o", metavar="DIR", help="Folder to write to (MODEL.autotune).")
_CLEAN = of_storage(
    "--clean", metavar="", help="Remove the cache of the study; best.json and the trials stay."
)

# Options that are no fields of the record by these names.
_OF_THE_COMMAND = frozenset("named storage traffic rare dry_run clean as_json quiet".split())


def study(
    named: Annotated[list[str] | None, _WHAT] = None,
    data: DataOption = None,
    shapes: ShapeOption = None,
    values: ValueOption = None,
    traffic: Annotated[Path | None, _TRAFFIC] = None,
    generate: GenerateOption = None,
    prompt_tokens: PromptTokensOption = None,
    outputs: Annotated[list[str] | None, _OUTPUTS] = None,
    batch: Annotated[list[tuple] | None, _BATCH] = None,  # type: ignore[type-arg]  # Typer's
    clients: ClientsOption = None,
    max_error: Annotated[float | None, MAX_ERROR] = None,
    max_memory_mib: Annotated[float | None, MAX_MEMORY] = None,
    max_held_memory_mib: Annotated[float | None, HIDDEN_MAX_HELD_MEMORY] = None,
    max_latency_ms: Annotated[float | None, MAX_LATENCY] = None,
    metric: Annotated[str | None, _METRIC] = None,
    max_drop: Annotated[float | None, _MAX_DROP] = None,
    objectives: Annotated[list[str] | None, _OBJECTIVE] = None,
    prefer: Annotated[str | None, _PREFER] = None,
    trials: Annotated[int | None, _TRIALS] = None,
    timeout_s: Annotated[float | None, _TIMEOUT] = None,
    space: Annotated[str | None, _SPACE] = None,
    fix: Annotated[list[parsing.KeyValue] | None, _FIX] = None,
    providers: Annotated[list[str] | None, _PROVIDERS] = None,
    runtimes: Annotated[list[str] | None, _RUNTIMES] = None,
    sampler: Annotated[str | None, _SAMPLER] = None,
    first: Annotated[list[Path] | None, _TRY] = None,
    dry_run: Annotated[bool, _DRY_RUN] = False,
    out: Annotated[Path | None, _OUT] = None,
    storage: UrlOption = None,
    clean: Annotated[bool, _CLEAN] = False,
    rare: Annotated[list[parsing.KeyValue] | None, _SET] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Searches for the best configuration and writes best.json; typed again, the study goes on.

    Name a model (.onnx), a recording (app.rec), or the folder or storage of a study to continue.
    """
    # as typed; None stands for what was left out
    given = {
        name: None if value is False or value == [] else value
        for name, value in locals().items()
        if name not in _OF_THE_COMMAND
    }
    given |= {name: dict(given[name] or ()) or None for name in ("shapes", "fix")}
    given["values"] = parsing.numbers(values)
    for name in ("prompt_tokens", "batch"):
        given[name] = [number for numbers in given[name] or () for number in numbers] or None
    given |= parsing.settings(rare or ())
    messages().quiet = quiet
    what, more = (named[0], named[1:]) if named else (None, [])
    if more:
        raise RequestError(
            f"a study is of one model, and {more[0]} is another one. An encoder and its decoder "
            "are two studies: `autotune study encoder.onnx`, and `autotune study decoder.onnx "
            "--generate prompts.jsonl --data encoded.npz` with the encoder's output"
        )
    if clean:
        _clean(what, given["out"], as_json=as_json)
    elif what is not None and is_folder_of(RECORDING, what):
        given |= {"storage": storage, "traffic": traffic}
        if dry_run:
            raise RequestError(
                f"--dry-run is for a model; type autotune show {typed(what)} instead"
            )
        run_application_study(Path(what), given, as_json=as_json)
    elif dry_run:
        if traffic is not None:
            raise RequestError(
                "--dry-run writes nothing, and --traffic writes samples: leave one out"
            )
        _show_plan(_options(what, storage, None, given), as_json=as_json)
    else:
        run_study(_options(what, storage, traffic, given), as_json=as_json)


def _clean(what: str | None, out: Path | None, *, as_json: bool) -> None:
    """Removes the cache of a study, or of all studies of a tuned application."""
    from autotune.report.spaces import view_cleaned
    from autotune.study.cleaning import clean
    from autotune.study.options import folder_for

    if what is None:
        raise RequestError("name the study to clean: autotune study DIR --clean")
    folder = out or (Path(what) if is_folder(Path(what)) else folder_for(Path(what)))
    present(view_cleaned(folder, clean(folder)), as_json=as_json)


def _show_plan(options: "StudyOptions", *, as_json: bool) -> None:
    """Shows what a study would do."""
    from autotune.report.plan import view_plan
    from autotune.study.plan import plan_of

    present(view_plan(plan_of(options)), as_json=as_json)


def _options(
    what: str | None,
    storage: str | None,
    traffic: Path | None,
    given: Mapping[str, Any],
) -> "StudyOptions":
    """Returns the options of a new study, or of one that is continued."""
    from autotune.storage.database import VARIABLE
    from autotune.study.options import StudyOptions
    from autotune.study.resume import options_to_continue

    if what is None and storage is None and VARIABLE not in os.environ:
        raise RequestError("name a model (.onnx), or the folder or storage of a study to continue")
    if what is None or "://" in what or Path(what).is_dir():
        if what is not None and storage is not None:
            raise RequestError(f"name either {what} or --storage, not both")
        if traffic is not None:
            raise RequestError("a study that is continued has its traffic; leave --traffic out")
        return options_to_continue(what or storage, **given)
    if "model" in given:
        raise RequestError(
            f"model=FILE is for a study that is continued; name its folder in place of {what}, or "
            "leave --set model= out"
        )
    options = StudyOptions.of(what, storage=storage, **given)
    return options if traffic is None else _with_traffic(options, traffic)


def _with_traffic(options: "StudyOptions", traffic: Path) -> "StudyOptions":
    """Returns the options with samples of the traffic, which lie in the study's folder."""
    from autotune.applications.traffic import FOLDER, write_traffic
    from autotune.facts.model import describe
    from autotune.storage.locks import exclusive_use

    if options.data is not None or options.shapes:
        raise RequestError("--traffic brings samples and shapes; leave --data and --shape out")
    options.check()
    data, model = options.folder / FOLDER, describe(options.model)
    note = messages().print
    # a study may be reading what an earlier command wrote
    with exclusive_use(options.folder, cores=False, wait=options.wait, on_note=note):
        write_traffic(model, traffic, data, options.seed)
    return options.with_changes(data=data)


def run_study(options: "StudyOptions", *, as_json: bool) -> None:
    """Runs a study and prints its result."""
    from autotune.cli.progress import StudyProgress
    from autotune.cli.report import live_page, write_last_page
    from autotune.report.result import view_ending
    from autotune.results.writing import PAGE
    from autotune.study.finish import Interrupted
    from autotune.study.other_builds import STAGE
    from autotune.study.progress import Progress
    from autotune.study.tune import tune

    interrupted, last_line = False, ""
    update_page = live_page()
    with StudyProgress(messages()) as show_progress:

        def on_progress(progress: Progress) -> None:
            nonlocal last_line
            if progress.stage == STAGE and progress.note:
                last_line = progress.note
                return
            show_progress(progress)
            update_page(progress)
            if not progress.note:  # as of a study that an interrupt is ending
                checkpoint()

        try:
            result = tune(options, on_progress=on_progress)
        except Interrupted as interruption:
            result, interrupted = interruption.result, True
    problem = write_last_page(result.folder, options.storage)
    present(view_ending(result, "" if problem else PAGE), as_json=as_json)
    if problem:
        messages().print(problem, soft_wrap=True)
    if last_line:
        messages().print(last_line, markup=False, soft_wrap=True)
    if interrupted:
        say_how_to_continue()
        raise typer.Exit(INTERRUPTED)
