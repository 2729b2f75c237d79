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
from autotune.cli.applications import is_recording, run_application_study
from autotune.cli.console import messages, present
from autotune.cli.interrupts import INTERRUPTED, interruptible, say_how_to_continue
from autotune.cli.options import (
    ADVANCED,
    INPUTS,
    LIMITS,
    MAX_ERROR,
    MAX_LATENCY,
    MAX_MEMORY,
    MAX_PERPLEXITY_RISE,
    SEARCH,
    STORAGE,
    ClientsOption,
    DataOption,
    GenerateOption,
    JsonOption,
    NewTokensOption,
    PairOption,
    PromptTokensOption,
    QuietOption,
    ShapeOption,
    StudyNameOption,
    UrlOption,
)
from autotune.errors import RequestError
from autotune.process.signals import signals_later

if TYPE_CHECKING:
    from autotune.study.options import StudyOptions

_WHAT = typer.Argument(
    metavar="MODEL|DIR|URL",
    help="A model (.onnx), a recording (app.rec), or a study to continue.",
    show_default=False,
)
_BATCH = typer.Option(
    "--batch",
    metavar="1,2,4,8",
    parser=parsing.batch_sizes,
    help="Batch sizes to search; the default runs the smallest.",
    rich_help_panel=INPUTS,
)
_TRAFFIC = typer.Option(
    "--traffic",
    metavar="JSON|app.rec",
    help="Shapes with their shares, or a recording.",
    rich_help_panel=INPUTS,
)
_METRIC = typer.Option(
    "--metric",
    metavar="NAME",
    help="Rates answers: top1, cosine, exact, cer, MODULE:FUNCTION.",
    rich_help_panel=LIMITS,
)
_MAX_DROP = typer.Option(
    "--max-drop", metavar="0.01", help="How far the metric may fall (0.01).", rich_help_panel=LIMITS
)
_OBJECTIVE = typer.Option(
    "--objective",
    metavar="NAME",
    help="latency, memory, held_memory, cpu, load, p99, device_memory, throughput, tokens, ttft. "
    "Repeatable.",
    rich_help_panel=LIMITS,
)
_PREFER = typer.Option(
    "--prefer",
    metavar="NAME",
    help="Objective that chooses best.json, or balanced (first).",
    rich_help_panel=LIMITS,
)
_TRIALS = typer.Option(
    "--trials",
    "-n",
    metavar="N",
    help="Configurations to measure, earlier runs included (100).",
    rich_help_panel=SEARCH,
)
_TIMEOUT = typer.Option(
    "--timeout",
    metavar="10m",
    parser=parsing.duration_s,
    help="End the search after this time.",
    rich_help_panel=SEARCH,
)
_SPACE = typer.Option(
    "--space",
    metavar="NAME|TOML",
    help="The search space: a preset (see autotune spaces) or a file.",
    rich_help_panel=SEARCH,
)
_FIX = typer.Option(
    "--fix",
    metavar="KEY=VALUE",
    parser=parsing.pair,
    help="Fix a parameter, except in the default. Repeatable.",
    rich_help_panel=SEARCH,
)
_PROVIDERS = typer.Option(
    "--providers",
    metavar="cpu,openvino",
    help="Execution providers to search (all that can be used here).",
    rich_help_panel=SEARCH,
)
_RUNTIMES = typer.Option(
    "--runtimes",
    metavar="NAME",
    help="Other ONNX Runtimes to search too; see autotune runtimes.",
    rich_help_panel=SEARCH,
)
_TRY = typer.Option(
    "--try",
    metavar="FILE.json",
    help="Measure this configuration first. Repeatable.",
    rich_help_panel=SEARCH,
)
_OUT = typer.Option(
    "--out",
    "-o",
    metavar="DIR",
    help="Folder to write to (MODEL.autotune).",
    rich_help_panel=STORAGE,
)
_MODEL = typer.Option(
    "--model",
    metavar="FILE",
    help="Where the model of a continued study is now, if it was moved.",
    rich_help_panel=STORAGE,
)
_CERTIFY = typer.Option(
    "--certify",
    metavar="KINDS",
    help="Compare answers on avx2,avx512,vnni,arm64 as well, or auto.",
    rich_help_panel=STORAGE,
)
_WAIT = typer.Option(
    "--wait",
    metavar="",
    help="Wait until another study on these cores has ended.",
    rich_help_panel=ADVANCED,
)
_SAMPLER = typer.Option(
    "--sampler",
    metavar="NAME",
    help="effects, tpe, tpe_independent, nsga2 or random (effects).",
    rich_help_panel=ADVANCED,
)
_SEED = typer.Option("--seed", metavar="N", help="Random seed (0).", rich_help_panel=ADVANCED)
_NO_EARLY_STOP = typer.Option(
    "--no-early-stop",
    metavar="",
    help="Search on when no further improvement is expected.",
    rich_help_panel=ADVANCED,
)
_PROCESS_OPTIONS = typer.Option(
    "--process-options",
    metavar="",
    help="Also measure thresholds of glibc's allocator.",
    rich_help_panel=ADVANCED,
)


def study(
    what: Annotated[str | None, _WHAT] = None,
    data: DataOption = None,
    shapes: ShapeOption = None,
    traffic: Annotated[Path | None, _TRAFFIC] = None,
    generate: GenerateOption = None,
    prompt_tokens: PromptTokensOption = None,
    new_tokens: NewTokensOption = None,
    pairs: PairOption = None,
    batch: Annotated[list[tuple] | None, _BATCH] = None,  # type: ignore[type-arg]  # Typer's
    clients: ClientsOption = None,
    max_error: Annotated[float | None, MAX_ERROR] = None,
    max_perplexity_rise: Annotated[float | None, MAX_PERPLEXITY_RISE] = None,
    max_memory_mib: Annotated[float | None, MAX_MEMORY] = None,
    max_latency_ms: Annotated[float | None, MAX_LATENCY] = None,
    metric: Annotated[str | None, _METRIC] = None,
    max_drop: Annotated[float | None, _MAX_DROP] = None,
    objectives: Annotated[list[str] | None, _OBJECTIVE] = None,
    prefer: Annotated[str | None, _PREFER] = None,
    trials: Annotated[int | None, _TRIALS] = None,
    timeout_s: Annotated[float | None, _TIMEOUT] = None,
    space: Annotated[str | None, _SPACE] = None,
    fix: Annotated[list[parsing.Pair] | None, _FIX] = None,
    providers: Annotated[list[str] | None, _PROVIDERS] = None,
    runtimes: Annotated[list[str] | None, _RUNTIMES] = None,
    first: Annotated[list[Path] | None, _TRY] = None,
    out: Annotated[Path | None, _OUT] = None,
    storage: UrlOption = None,
    study_name: StudyNameOption = None,
    model: Annotated[Path | None, _MODEL] = None,
    certify: Annotated[list[str] | None, _CERTIFY] = None,
    wait: Annotated[bool, _WAIT] = False,
    sampler: Annotated[str | None, _SAMPLER] = None,
    seed: Annotated[int | None, _SEED] = None,
    no_early_stop: Annotated[bool, _NO_EARLY_STOP] = False,
    process_options: Annotated[bool, _PROCESS_OPTIONS] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Searches for a model's best configuration and writes best.json.

    The same command continues a study, and so does its folder in place of the model.
    """
    messages().quiet = quiet
    # None stands for what was left out
    given = {
        "data": data,
        "shapes": dict(shapes or ()) or None,
        "generate": generate,
        "prompt_tokens": [count for counts in prompt_tokens or () for count in counts] or None,
        "new_tokens": new_tokens,
        "pairs": dict(pairs or ()) or None,
        "batch": [size for sizes in batch or () for size in sizes] or None,
        "clients": clients,
        "max_error": max_error,
        "max_perplexity_rise": max_perplexity_rise,
        "max_memory_mib": max_memory_mib,
        "max_latency_ms": max_latency_ms,
        "metric": metric,
        "max_drop": max_drop,
        "objectives": objectives or None,
        "prefer": prefer,
        "trials": trials,
        "timeout_s": timeout_s,
        "space": space,
        "fix": dict(fix or ()) or None,
        "providers": providers or None,
        "runtimes": runtimes or None,
        "first": first or None,
        "out": out,
        "study_name": study_name,
        "certify": certify or None,
        "wait": wait or None,
        "sampler": sampler,
        "seed": seed,
        "early_stop": False if no_early_stop else None,
        "process_options": process_options or None,
    }
    if what is not None and is_recording(what):
        run_application_study(Path(what), given, as_json=as_json)
    else:
        run_study(_options(what, storage, model, traffic, given), as_json=as_json)


def _options(
    what: str | None,
    storage: str | None,
    model: Path | None,
    traffic: Path | None,
    given: Mapping[str, Any],
) -> "StudyOptions":
    """Returns the options of a new study, or of one that is continued."""
    with signals_later():
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
        return options_to_continue(what or storage, model=model, **given)
    if model is not None:
        raise RequestError(
            f"--model is for a study that is continued; name its folder in place of {what}, or "
            "leave --model out"
        )
    options = StudyOptions.of(what, storage=storage, **given)
    return options if traffic is None else _with_traffic(options, traffic)


def _with_traffic(options: "StudyOptions", traffic: Path) -> "StudyOptions":
    """Returns the options with samples of the traffic, which lie in the study's folder."""
    with signals_later():
        from autotune.applications.traffic import FOLDER, write_traffic
        from autotune.facts.model import describe

    if options.data is not None or options.shapes:
        raise RequestError("--traffic brings samples and shapes; leave --data and --shape out")
    options.check()
    data = options.folder / FOLDER
    write_traffic(describe(options.model), traffic, data, options.seed)
    return options.with_changes(data=data)


def run_study(options: "StudyOptions", *, as_json: bool) -> None:
    """Runs a study and prints its result."""
    with signals_later():
        from autotune.cli.progress import StudyProgress
        from autotune.cli.report import live_page, write_last_page
        from autotune.report.result import view_ending
        from autotune.results.writing import PAGE
        from autotune.study.finish import Interrupted
        from autotune.study.progress import Progress
        from autotune.study.tune import tune

    interrupted = False
    update_page = live_page(options)
    with interruptible() as checkpoint, StudyProgress(messages()) as show_progress:

        def on_progress(progress: Progress) -> None:
            show_progress(progress)
            update_page(progress)
            checkpoint()

        try:
            result = tune(options, on_progress=on_progress)
        except Interrupted as interruption:
            result, interrupted = interruption.result, True
    problem = write_last_page(result.folder, options.storage)
    present(view_ending(result, "" if problem else PAGE), as_json=as_json)
    if problem:
        messages().print(problem, soft_wrap=True)
    if interrupted:
        say_how_to_continue()
        raise typer.Exit(INTERRUPTED)
