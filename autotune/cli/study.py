"""Commands that search: ``study`` and ``resume``.

The options of ``study`` are the fields of :class:`StudyOptions`: an option is one field there and
one line in :data:`OPTIONS`.
"""

import inspect
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import typer

from autotune.cli import parsing
from autotune.cli.console import messages, output, print_json
from autotune.cli.interrupts import INTERRUPTED, interruptible
from autotune.cli.options import (
    DATA,
    MAX_LATENCY,
    MAX_MEMORY,
    SHAPE,
    WAIT,
    JsonOption,
)
from autotune.cli.report import live_page, write_last_page
from autotune.process.signals import signals_later
from autotune.storage.masking import without_secrets
from autotune.study.options import StudyOptions

if TYPE_CHECKING:
    from autotune.study.resume import Entry

OPTIONS: Mapping[str, Any] = {
    "model": typer.Argument(
        metavar="MODEL", help="The .onnx file of the model. It is never changed."
    ),
    "trials": typer.Option(
        "--trials", help="How many configurations to measure, those of earlier runs included."
    ),
    "timeout_s": typer.Option(
        "--timeout",
        metavar="10m",
        parser=parsing.duration_s,
        help="Stop the search after this time (s, m or h). The final comparison follows.",
    ),
    "space": typer.Option(
        "--space",
        metavar="NAME|FILE",
        help="The search space: a preset, as `autotune spaces` lists them, or a TOML file.",
    ),
    "fix": typer.Option(
        "--fix",
        metavar="KEY=VALUE",
        parser=parsing.pair,
        help="Give a parameter one value in all configurations but the default. Repeatable.",
    ),
    "providers": typer.Option(
        "--providers",
        metavar="NAME,NAME",
        help="The execution providers to search, such as cpu,openvino. If left out, all that can "
        "be used here; `autotune hardware` lists them.",
    ),
    "batch": typer.Option(
        "--batch",
        metavar="1,2,4,8",
        parser=parsing.batch_sizes,
        help="Batch sizes to search, for a model with a batch dimension. The default runs the "
        "smallest; throughput is counted in samples.",
    ),
    "data": DATA,
    "shapes": SHAPE,
    "max_error": typer.Option(
        "--max-error",
        metavar="0.05",
        parser=parsing.error,
        help="Largest relative L2 error of an output. If left out, 0.05, or no limit with "
        "--metric.",
    ),
    "metric": typer.Option(
        "--metric",
        metavar="MODULE:FUNCTION",
        help="Your own function that rates the answers. It is called with outputs, reference "
        "outputs and inputs, and returns a number; higher is better.",
    ),
    "max_drop": typer.Option(
        "--max-drop", help="How far the metric may fall below that of the unoptimised model."
    ),
    "max_memory_mib": MAX_MEMORY,
    "max_latency_ms": MAX_LATENCY,
    "clients": typer.Option(
        "--clients",
        metavar="N",
        help="How many clients call at once, each without a pause: the study then maximises "
        "throughput. If left out, the number in the search space, or one.",
    ),
    "objectives": typer.Option(
        "--objective",
        metavar="NAME",
        help="What to minimise: latency_ms, peak_memory_mib, cpu_s (CPU time of a run), load_ms "
        "(time to create the session), p99_ms (99th percentile of the latency) or "
        "peak_device_memory_mib (NVIDIA devices); or, with --clients, what to maximise: "
        "throughput_per_s. Repeatable.",
    ),
    "prefer": typer.Option(
        "--prefer",
        metavar="NAME",
        help="Which configuration of the Pareto front to write to best.json: the best in latency, "
        "memory, cpu, load, p99, device_memory or throughput, or a balanced one. If left out, the "
        "best in the first objective.",
    ),
    "out": typer.Option(
        "--out", metavar="DIR", help="Folder to write to. If left out, MODEL.autotune."
    ),
    "storage": typer.Option(
        "--storage",
        metavar="URL",
        help="Database that keeps the trials, such as postgresql://user@host/name. Several "
        "machines of one kind can share it. If left out, the URL in the variable AUTOTUNE_STORAGE "
        "(which hides a password from the list of processes), or else a file in the output folder.",
    ),
    "seed": typer.Option("--seed", help="Random seed."),
    "sampler": typer.Option(
        "--sampler",
        metavar="NAME",
        help="What chooses the configurations: effects, which learns how much each value changes "
        "the objectives, or Optuna's tpe, tpe_independent, nsga2, random or brute.",
    ),
    "first": typer.Option(
        "--try",
        metavar="FILE.json",
        help="Measure this right after the default: a tuned config, or a JSON object of "
        'parameters such as {"intra_op_num_threads": 2}. Repeatable.',
    ),
    "early_stop": typer.Option(
        "--early-stop/--no-early-stop",
        help="End the search when no further improvement is expected.",
    ),
    "process_options": typer.Option(
        "--process-options",
        help="Also measure thresholds of glibc's allocator, which the application switches on for "
        "its whole process: less memory, shown apart from the session.",
    ),
    "wait": WAIT,
}
"""How the command line shows each field of :class:`StudyOptions`, in the order of the help."""


def signature() -> inspect.Signature:
    """Returns the signature of ``study``, from which Typer makes its options.

    It has a parameter for each field of the record, with the record's default, and ``as_json``.
    """
    hints = get_type_hints(StudyOptions)
    by_name = {item.name: item for item in fields(StudyOptions)}
    parameters = [_parameter(by_name[name], hints[name], OPTIONS[name]) for name in OPTIONS]
    as_json = inspect.Parameter(
        "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=JsonOption
    )
    return inspect.Signature([*parameters, as_json])


def _parameter(item: "Field[Any]", kind: Any, option: Any) -> inspect.Parameter:
    """Returns a field as a parameter that Typer takes.

    Typer has lists where the record has tuples, and lists of pairs where it has mappings.
    """
    default: Any = item.default if item.default_factory is MISSING else item.default_factory()
    if get_origin(kind) is tuple:
        kind, default = list[get_args(kind)[0]], list(default)  # type: ignore[misc]
    elif get_origin(kind) is Mapping:
        kind, default = list[tuple], list(default.items())  # type: ignore[type-arg]
    return inspect.Parameter(
        item.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is MISSING else default,
        annotation=Annotated[kind, option],
    )


def study(**values: Any) -> None:
    """Searches for a model's best configuration; writes best.json.

    The same command again continues the study; nothing is measured twice.
    """
    as_json = values.pop("as_json")
    values |= {name: dict(values[name]) for name in ("fix", "shapes")}
    values["batch"] = [size for sizes in values["batch"] for size in sizes]
    run_study(StudyOptions.of(**values), as_json=as_json)


study.__signature__ = signature()  # type: ignore[attr-defined]  # Typer reads it


_WHERE = typer.Argument(
    metavar="DIR|URL",
    help="The folder of a study, or the URL of a storage. If left out, the URL in the variable "
    "AUTOTUNE_STORAGE.",
)
_METRIC = typer.Option(
    metavar="MODULE:FUNCTION",
    help="The function that rates the answers, if the study has one. It is never taken from the "
    "storage.",
)
_OUT = typer.Option(metavar="DIR", help="Folder to write to. If left out, the same as before.")


def resume(
    where: Annotated[str | None, _WHERE] = None,
    name: Annotated[
        str | None,
        typer.Option("--study", metavar="NAME", help="Which study, if the storage holds several."),
    ] = None,
    only_list: Annotated[
        bool, typer.Option("--list", help="Only list the studies in the storage.")
    ] = False,
    model: Annotated[
        Path | None, typer.Option(help="Where the model is now, if it was moved.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Where the inputs are now, if they were moved.")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            help="How many configurations to measure in all. If left out, as many as before."
        ),
    ] = None,
    metric: Annotated[str | None, _METRIC] = None,
    out: Annotated[Path | None, _OUT] = None,
    wait: Annotated[bool, WAIT] = False,
    as_json: JsonOption = False,
) -> None:
    """Continues a study.

    On another machine it starts a new study from the results of the old one.
    """
    with signals_later():
        from autotune.study.resume import choose, entries, options_of, place_of

    place, folder = place_of(where)
    studies = entries(place)
    if only_list:
        _print_studies(studies, str(place), as_json=as_json)
        return
    entry = choose(studies, name, place)
    options = options_of(
        entry,
        model=model,
        data=data,
        trials=trials,
        metric=metric,
        out=out or folder,
        storage=place.text if folder is None else f"sqlite:///{place.file}",
        wait=wait,
    )
    run_study(options, as_json=as_json)


def _print_studies(studies: Sequence["Entry"], storage: str, *, as_json: bool) -> None:
    from autotune.report.studies import render_studies

    if as_json:
        print_json({"storage": storage, "studies": [entry.to_json() for entry in studies]})
    else:
        output.print(render_studies(studies, storage))


def run_study(options: StudyOptions, *, as_json: bool) -> None:
    """Runs a study and prints its result."""
    with signals_later():
        from autotune.cli.progress import StudyProgress
        from autotune.report.ending import render_ending
        from autotune.study.job import Interrupted
        from autotune.study.progress import Progress
        from autotune.study.tune import tune

    interrupted = False
    update_page = live_page(options)
    with interruptible() as checkpoint, StudyProgress(messages) as show_progress:

        def on_progress(progress: Progress) -> None:
            show_progress(progress)
            update_page(progress)
            checkpoint()

        try:
            result = tune(options, on_progress=on_progress)
        except Interrupted as interruption:
            result, interrupted = interruption.result, True
    page = write_last_page(result.folder, options.storage)
    if as_json:
        print_json(result.to_json())
    else:
        output.print(render_ending(result))
        output.print(page, soft_wrap=True)
    if interrupted:
        _say_how_to_continue()
        raise typer.Exit(INTERRUPTED)
    if not as_json:
        output.print(f'Load it: session = autotune.load("{result.folder / "best.json"}")')


def _say_how_to_continue() -> None:
    command = shlex.join(["autotune", *map(without_secrets, sys.argv[1:])])
    messages.print("Interrupted. Everything measured is kept. To continue:")
    messages.print(f"    {command}", soft_wrap=True)
