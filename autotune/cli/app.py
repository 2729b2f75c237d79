"""The commands. The only module that prints."""

import contextlib
import json
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

import autotune
from autotune.errors import AutotuneError, NotBetterError, RequestError
from autotune.facts.runtime import runtime

app = typer.Typer(
    name="autotune",
    help="Finds how ONNX Runtime runs a model fastest and leanest on this machine.",
    no_args_is_help=True,
    add_completion=False,
    # a bug shows its plain traceback
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# a file or a pipe has no width: lines are not folded there
_out = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
_err = Console(stderr=True, highlight=False)

_PREFERENCES = "latency|memory|cpu|load|p99|balanced"
_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_UNITS_MIB = {"": 1.0, "mib": 1.0, "mb": 1e6 / 2**20, "gib": 1024.0, "gb": 1e9 / 2**20}
_UNITS_MS = {"": 1.0, "ms": 1.0, "us": 1e-3, "s": 1e3}


def main() -> None:
    """Runs the command line; the entry point of the program."""
    try:
        app()
    except AutotuneError as error:
        _err.print(f"autotune: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _err.print("interrupted; nothing was measured yet")
        sys.exit(130)


def _quantity(option: str, text: str | None, units: dict[str, float]) -> float | None:
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    if match is None or match[2].lower() not in units:
        known = ", ".join(unit for unit in units if unit)
        raise RequestError(f"{option}: '{text}' is not a number with one of the units {known}")
    return float(match[1]) * units[match[2].lower()]


def _pairs(option: str, items: list[str], example: str) -> dict[str, str]:
    pairs = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not (name and equals and value):
            raise RequestError(f"{option}: '{item}' is not of the form {example}")
        pairs[name.strip()] = value.strip()
    return pairs


def _shapes(items: list[str]) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for name, text in _pairs("--shape", items, "NAME=1,3,224,224").items():
        sizes = text.split(",")
        if not all(size.strip().isdigit() and int(size) > 0 for size in sizes):
            raise RequestError(f"--shape: '{text}' is no list of sizes of at least 1")
        shapes[name] = tuple(int(size) for size in sizes)
    return shapes


def _print_json(data: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(data, indent=2) + "\n")


DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="INPUTS.npz|DIR",
        help="Your inputs: an .npz whose arrays are named after the inputs and whose first axis "
        "counts samples, or a folder of .npz files with one feed each. Generated if left out.",
    ),
]
ShapeOption = Annotated[
    list[str],
    typer.Option(
        "--shape", metavar="NAME=1,3,224,224", help="Shape of a generated input; repeat for others."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
MaxErrorOption = Annotated[
    float,
    typer.Option("--max-error", help="Largest relative L2 error of an output."),
]


@app.command()
def study(
    model: Annotated[Path, typer.Argument(help="The .onnx file; it is never written to.")],
    trials: Annotated[
        int, typer.Option(help="Candidates to measure in all, earlier runs included.")
    ] = 100,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="10m", help="Stop searching after this time; the run-off follows."),
    ] = None,
    space: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="A preset (see `autotune spaces`) or a file.")
    ] = "default",
    fix: Annotated[
        list[str], typer.Option(metavar="KEY=VALUE", help="Give a parameter one value; repeatable.")
    ] = [],  # noqa: B006  # Typer copies it
    data: DataOption = None,
    shape: ShapeOption = [],  # noqa: B006  # likewise
    max_error: Annotated[
        float | None,
        typer.Option(
            help="Largest relative L2 error of an output; 0.05, and no limit with --metric."
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Your own judge of answers: called with outputs, references and inputs, returns a "
            "number that is better the higher it is.",
        ),
    ] = None,
    max_drop: Annotated[
        float, typer.Option(help="By how much the metric may fall below the unoptimised model's.")
    ] = 0.01,
    max_memory: Annotated[
        str | None, typer.Option(metavar="300MiB", help="Largest peak that a session may add.")
    ] = None,
    max_latency: Annotated[
        str | None, typer.Option(metavar="10ms", help="Longest run that is acceptable.")
    ] = None,
    objective: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="What to make small; repeatable: latency_ms, peak_memory_mib (these two if left "
            "out), cpu_s (CPU seconds a run), load_ms (cold start), p99_ms.",
        ),
    ] = [],  # noqa: B006  # likewise
    prefer: Annotated[
        str | None, typer.Option(metavar=_PREFERENCES, help="What to emit of the front.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write; MODEL.autotune if left out.")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where the record is kept, such as postgresql://user@host/name, which many "
            "machines of one kind may share; a file in the folder if left out. The variable "
            "AUTOTUNE_STORAGE does the same, and keeps a password out of the list of processes.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    first: Annotated[
        list[Path],
        typer.Option(
            "--try",
            metavar="FILE.json",
            help="Measure this right after the default: a tuned config, or an object of parameters "
            'such as {"intra_op_num_threads": 2}; repeatable.',
        ),
    ] = [],  # noqa: B006  # likewise
    sampler: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What chooses the candidates: effects (a model of what each value is worth), or "
            "Optuna's tpe, tpe_independent, nsga2, random, brute.",
        ),
    ] = "effects",
    early_stop: Annotated[
        bool,
        typer.Option(help="End the search when nothing more is to be expected of it."),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Searches, verifies and writes the tuned config. Goes on with a study that exists."""
    with _signals_later():
        from autotune.search.objective import DEFAULT

    timeout_s = _quantity("--timeout", timeout, _UNITS_S)
    memory_mib = _quantity("--max-memory", max_memory, _UNITS_MIB)
    latency_ms = _quantity("--max-latency", max_latency, _UNITS_MS)
    fixed = _pairs("--fix", fix, "KEY=VALUE")
    shapes = _shapes(shape)
    _run_study(
        {
            "model": model,
            "trials": trials,
            "timeout_s": timeout_s,
            "space": space,
            "fix": fixed,
            "data": data,
            "shapes": shapes,
            "max_error": max_error,
            "metric": metric,
            "max_drop": max_drop,
            "max_memory_mib": memory_mib,
            "max_latency_ms": latency_ms,
            "objectives": objective or DEFAULT,
            "prefer": prefer,
            "out": out,
            "storage": storage,
            "seed": seed,
            "sampler": sampler,
            "first": first,
            "early_stop": early_stop,
        },
        as_json,
    )


def _run_study(request: dict[str, Any], as_json: bool) -> None:
    """Runs a study with these arguments of :func:`autotune.tune`, and prints what it found."""
    with _signals_later():
        from autotune.report import table
        from autotune.report.progress import StudyProgress
        from autotune.study.job import Interrupted
        from autotune.study.progress import Progress
        from autotune.study.tune import tune

    code = 0
    with _interruptible() as checkpoint, StudyProgress(_err) as show_progress:

        def on_progress(progress: Progress) -> None:
            show_progress(progress)
            checkpoint()

        try:
            result = tune(**request, on_progress=on_progress)
        except Interrupted as interrupted:
            result, code = interrupted.result, 130
    if as_json:
        _print_json(result.to_json())
    else:
        _out.print(table.render(result))
        if code == 0:
            _out.print(f'Load it: session = autotune.load("{result.folder / "best.json"}")')
    if code:
        from autotune.storage.database import without_secrets

        again = shlex.join(["autotune", *map(without_secrets, sys.argv[1:])])
        _err.print("Interrupted; everything measured is kept. Go on with:", markup=False)
        _err.print(f"    {again}", markup=False, soft_wrap=True)
        raise typer.Exit(code)


@app.command()
def resume(
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="[DIR|URL]",
            help="The folder of a study, or a storage; what AUTOTUNE_STORAGE names if left out.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--study", metavar="NAME", help="Which of several studies.")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="Only list what the storage holds.")
    ] = False,
    model: Annotated[
        Path | None, typer.Option(help="Where the model is, if not where it was.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Where the inputs are, if not where they were.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Candidates to measure in all; as before if left out.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="The judge of answers, if there was one."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write; as before if left out.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Goes on with a study; on another machine, begins one that starts from what it found."""
    from autotune.report import table
    from autotune.study import resume as resuming

    place, folder = resuming.place_of(where)
    found = resuming.entries(place)
    if listed:
        if as_json:
            _print_json({"storage": str(place), "studies": [entry.to_json() for entry in found]})
        else:
            _out.print(table.render_studies(found, str(place)))
        return
    chosen = resuming.choose(found, name, place)
    request = resuming.request_of(chosen, model=model, data=data, trials=trials, metric=metric)
    request["out"] = out or folder
    request["storage"] = place.text if folder is None else f"sqlite:///{place.file}"
    _run_study(request, as_json)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a study.")],
    effects: Annotated[
        bool, typer.Option("--effects", help="Show what each value is worth by itself instead.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Shows the front of a study beside the default."""
    from autotune.report import table
    from autotune.results.result import StudyResult

    result = StudyResult.read(folder)
    if as_json:
        _print_json(result.to_json())
    elif effects:
        _out.print(table.render_effects(result))
    else:
        _out.print(table.render(result))


@app.command()
def pick(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a study.")],
    trial: Annotated[int | None, typer.Option(help="The member's trial number.")] = None,
    prefer: Annotated[
        str | None, typer.Option(metavar=_PREFERENCES, help="What matters most.")
    ] = None,
    max_memory: Annotated[
        str | None, typer.Option(metavar="300MiB", help="Largest peak that a session may add.")
    ] = None,
    max_latency: Annotated[
        str | None, typer.Option(metavar="10ms", help="Longest run that is acceptable.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Emits another member of the front as best.json."""
    from autotune.report import table
    from autotune.results.emit import pick_member
    from autotune.results.result import StudyResult, choose_member
    from autotune.storage.locks import exclusive_use

    result = StudyResult.read(folder)
    if trial is None:
        trial = choose_member(
            result,
            prefer=prefer,
            max_memory_mib=_quantity("--max-memory", max_memory, _UNITS_MIB),
            max_latency_ms=_quantity("--max-latency", max_latency, _UNITS_MS),
        ).trial
    elif prefer or max_memory or max_latency:
        raise RequestError("--trial names a member already; leave the other options out")
    with exclusive_use(folder):
        result = pick_member(result, trial)
    if as_json:
        _print_json(result.to_json())
    else:
        _out.print(table.render(result))


@app.command()
def compare(
    config: Annotated[Path, typer.Argument(help="A tuned config such as best.json.")],
    model: Annotated[
        Path | None,
        typer.Option(
            help="The untouched model, where the study beside the config does not know it."
        ),
    ] = None,
    data: DataOption = None,
    shape: ShapeOption = [],  # noqa: B006  # Typer copies it
    max_error: MaxErrorOption = 0.05,
    as_json: JsonOption = False,
) -> None:
    """Measures a config against the default here and now; exit code 3 if it is not better."""
    from autotune.report import table
    from autotune.results import compare as comparing

    with _steps("comparing") as on_step:
        found = comparing.compare(
            config, model, data=data, shapes=_shapes(shape), max_error=max_error, on_step=on_step
        )
    if as_json:
        _print_json(asdict(found))
    else:
        _out.print(table.render_comparison(found, str(config)))
    if not found.better:
        raise typer.Exit(NotBetterError.exit_code)


@app.command()
def sample(
    path: Annotated[Path, typer.Argument(help="Where to write the model.")],
    kind: Annotated[
        str, typer.Option(metavar="cnn|transformer|lstm", help="Of which kind.")
    ] = "cnn",
    force: Annotated[
        bool, typer.Option("--force", help="Write over a file that is there.")
    ] = False,
) -> None:
    """Writes a small model to try things on."""
    from autotune.errors import did_you_mean
    from autotune.facts import sample_models

    if kind not in sample_models.KINDS:
        near = did_you_mean(kind, sample_models.KINDS)
        raise RequestError(f"--kind: '{kind}' is none of {', '.join(sample_models.KINDS)}.{near}")
    if path.exists() and not force:
        raise RequestError(f"{path} is there already; name another file, or add --force")
    try:
        sample_models.write(kind, path)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from None
    _out.print(
        f"Wrote {path}. Next: autotune study {shlex.quote(str(path))} --trials 20",
        markup=False,
        soft_wrap=True,
    )


@app.command()
def hardware(
    noise: Annotated[
        bool, typer.Option(help="Measure the noise floor too, some ten seconds.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Shows this machine as a study sees it, its noise floor, and what makes timings doubtful."""
    from autotune.facts import hardware as machines
    from autotune.measure.noise import noise_check
    from autotune.report import table

    installed = runtime()
    machine = machines.hardware()
    # before the check: it keeps the machine busy itself
    doubts = machines.doubts(machine)
    fingerprint = machine.fingerprint(installed)
    check = None
    if noise:
        with _steps("noise check") as on_step:
            check = noise_check(on_step)
    if as_json:
        _print_json(
            {
                **asdict(machine),
                "onnxruntime": installed.version,
                "providers": installed.providers,
                "fingerprint": fingerprint,
                "noise": None if check is None else asdict(check),
                "doubts": doubts,
            }
        )
        return
    rows = {
        "CPU": machine.cpu,
        "features": ", ".join(machine.features) or "unknown",
        "cores": f"{machine.usable_cores} usable of {machine.logical_cores} logical, "
        f"{machine.physical_cores} physical",
        "memory": f"{machine.memory_mib} MiB",
        "system": f"{machine.system}, {machine.architecture}",
        "ONNX Runtime": f"{installed.version}, {', '.join(installed.providers)}",
        "fingerprint": fingerprint,
    }
    if check is not None:
        rows["noise floor"] = table.noise(check)
    for name, text in rows.items():
        _out.print(f"{name:13} {text}", markup=False)
    for doubt in doubts:
        _out.print(f"warning: {doubt}", style="yellow", markup=False)
    if not doubts:
        _out.print("nothing speaks against timings on this machine now")


@app.command()
def spaces(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME|FILE]", help="One of them in full.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Resolve it for this model on this machine.")
    ] = None,
    data: DataOption = None,
    shape: ShapeOption = [],  # noqa: B006  # Typer copies it
) -> None:
    """Lists the presets, or shows one of them, resolved for a model if you name one."""
    from autotune.facts import hardware as machines
    from autotune.facts import workload as workloads
    from autotune.facts.model import describe
    from autotune.report import table
    from autotune.space import space as spaces_
    from autotune.space.resolve import resolve

    if name is None and model is None:
        for preset in spaces_.presets():
            found = spaces_.find(preset)
            _out.print(f"{preset:10} {found.description}", markup=False)
        return
    chosen = spaces_.find(name or "default")
    if model is not None:
        described = describe(model)
        if data is None:
            workload = workloads.generate(described, _shapes(shape))
        else:
            workload = workloads.read(described, data)
        chosen = resolve(chosen, described, workload, machines.hardware())
    _out.print(table.render_space(chosen))
    if model is not None:
        count = "more than 20,000" if chosen.candidates is None else f"{len(chosen.candidates):,}"
        _out.print(f"\n{count} candidates")


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True)
    ] = False,
) -> None:
    if version:
        _out.print(f"autotune {autotune.__version__}")
        raise typer.Exit


@contextlib.contextmanager
def _signals_later() -> Iterator[None]:
    """Lets Ctrl-C and SIGTERM wait for the end: libraries that are loaded take it for their fault.

    numpy and onnxruntime make an ImportError of it, and nothing is to be lost yet.
    """
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    earlier = [signal.signal(number, lambda n, _: came.append(n)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, earlier, strict=True):
            signal.signal(number, handler)
    for each in came:
        signal.raise_signal(each)


@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    """Lets SIGTERM end the work as Ctrl-C does: with everything measured kept.

    Gives what is to be called at every step: it raises what was raised before and got lost, as an
    exception does in a finalizer or in a callback of a C library.
    """
    came = False

    def interrupt(_: int, __: FrameType | None) -> NoReturn:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    def checkpoint() -> None:
        if came:
            raise KeyboardInterrupt

    numbers = [signal.SIGTERM]
    # a shell's background jobs start with Ctrl-C ignored
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        numbers.append(signal.SIGINT)
    earlier = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield checkpoint
    finally:
        for number, handler in zip(numbers, earlier, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def _steps(title: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a bar; gives what is to be called at every step, with steps done and all there are."""
    from autotune.report import progress

    with _interruptible() as checkpoint, progress.bar(_err) as bar:
        task = bar.add_task(title, total=None, left="", told="")

        def on_step(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            checkpoint()

        yield on_step
