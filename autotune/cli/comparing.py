"""Commands that measure a config in use: ``compare`` and ``verify``.

Commands import what they need when they run, so that ``--help`` and refusals come at once.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli import parsing
from autotune.cli.console import output, print_json
from autotune.cli.options import MAX_MEMORY, DataOption, JsonOption, ShapeOption
from autotune.errors import RequestError, StorageError
from autotune.process.signals import signals_later

if TYPE_CHECKING:
    from rich.console import RenderableType

    from autotune.results.compare import Comparisons
    from autotune.results.gate import Gate, Verdict

_MODEL = typer.Option(
    "--model", help="The original model. Needed only where the study's folder does not know it."
)
_MAX_ERROR = typer.Option(
    "--max-error",
    metavar="0.05",
    parser=parsing.error,
    help="Largest relative L2 error of an output.",
)


_PATHS = typer.Argument(
    metavar="CONFIG",
    help="Tuned configs such as best.json, and models (.onnx), which run with default options; "
    "with --trial, the folder of a study.",
)
_BASELINE = typer.Option(
    metavar="CONFIG",
    help="The config or model to compare with. If left out, the original model with default "
    "options.",
)
_TRIAL = typer.Option(help="Number of a trial of the study to measure once more. Repeatable.")
_MIN_SPEEDUP = typer.Option(
    metavar="1.2", parser=parsing.factor, help="Least speed-up over the baseline."
)
_CLIENTS = typer.Option(
    min=1,
    max=256,
    help="Measure while so many clients send one request after another (closed loop): "
    "throughput, and latencies under that load. --min-speedup is then a factor of throughput. If "
    "left out, as many as the configs were tuned for.",
)
_QPS = typer.Option(
    metavar="100",
    parser=parsing.rate,
    help="Measure latencies while so many requests a second arrive at random (open loop). "
    "--clients is how many of them run at once; if left out, as many as the configs were tuned "
    "for, or one for each core where that is one.",
)
_JUNIT = typer.Option(metavar="FILE.xml", help="Write the verdicts to this file as JUnit XML.")


def compare_configs(
    paths: Annotated[list[Path], _PATHS],
    baseline: Annotated[Path | None, _BASELINE] = None,
    trial: Annotated[list[int], _TRIAL] = [],
    model: Annotated[Path | None, _MODEL] = None,
    data: DataOption = None,
    shape: ShapeOption = [],
    clients: Annotated[int | None, _CLIENTS] = None,
    qps: Annotated[float | None, _QPS] = None,
    min_speedup: Annotated[float | None, _MIN_SPEEDUP] = None,
    max_memory: Annotated[float | None, MAX_MEMORY] = None,
    max_error: Annotated[float, _MAX_ERROR] = 0.05,
    junit: Annotated[Path | None, _JUNIT] = None,
    as_json: JsonOption = False,
) -> None:
    """Measures configs and models side by side with the default.

    The exit code is 3 if a limit is broken, and 4 if a config does not run here. Without
    --min-speedup and --max-memory, a single config has to be better than the baseline. With --qps,
    each config has to keep up with the requests.
    """
    with signals_later():
        from autotune.results.gate import Gate

    if twice := [path for path in paths if paths.count(path) > 1]:
        raise RequestError(f"{twice[0]} is named twice")
    _check_output(junit, [*paths, *filter(None, (baseline, model, data))])
    gate = Gate(min_speedup=min_speedup, max_memory_mib=max_memory, max_error=max_error)
    files = _Files(paths=paths, baseline=baseline, model=model, data=data, shapes=dict(shape))
    if qps is not None:
        if trial:
            raise RequestError("--qps compares configs; pick a trial first, and leave out --trial")
        _compare_under_load(files, qps, clients, gate, junit, as_json=as_json)
    elif trial:
        _compare_trials(files, trial, clients, gate, junit, as_json=as_json)
    else:
        _compare(files, clients, gate, junit, as_json=as_json)


@dataclass(frozen=True, kw_only=True)
class _Files:
    """What a request compares, and by which inputs."""

    paths: list[Path]
    baseline: Path | None
    model: Path | None
    data: Path | None
    shapes: dict[str, tuple[int, ...]]


def _compare(
    files: _Files, clients: int | None, gate: "Gate", junit: Path | None, *, as_json: bool
) -> None:
    with signals_later():
        from autotune.cli.progress import steps
        from autotune.results.compare import compare

    with steps("comparing") as on_step:
        comparisons = compare(
            files.paths,
            files.model,
            baseline=files.baseline,
            data=files.data,
            shapes=files.shapes,
            max_error=gate.max_error,
            clients=clients,
            on_step=on_step,
        )
    _report_comparisons(comparisons, gate, junit, as_json=as_json)


def _compare_under_load(
    files: _Files,
    qps: float,
    clients: int | None,
    gate: "Gate",
    junit: Path | None,
    *,
    as_json: bool,
) -> None:
    with signals_later():
        from autotune.cli.progress import steps
        from autotune.report.under_load import render_under_load
        from autotune.results.gate import judge_under_load
        from autotune.results.under_load import compare_under_load

    if gate.has_limits:
        raise RequestError(
            "--qps offers the same load to all, so there is no speed-up, and memory is not "
            "measured; leave out --min-speedup and --max-memory, or --qps"
        )
    with steps("comparing") as on_step:
        comparison = compare_under_load(
            files.paths,
            files.model,
            rate_per_s=qps,
            clients=clients,
            baseline=files.baseline,
            data=files.data,
            shapes=files.shapes,
            max_error=gate.max_error,
            on_step=on_step,
        )
    verdicts = judge_under_load(comparison, gate)
    shown = asdict(comparison) if as_json else render_under_load(comparison, verdicts)
    _report(shown, verdicts, junit)


def _compare_trials(
    files: _Files,
    trials: list[int],
    clients: int | None,
    gate: "Gate",
    junit: Path | None,
    *,
    as_json: bool,
) -> None:
    if len(files.paths) != 1 or files.baseline is not None or files.shapes:
        raise RequestError(
            "--trial measures trials of one study against its default, on its inputs; name its "
            "folder alone, and leave out --baseline and --shape"
        )
    with signals_later():
        from autotune.cli.progress import steps
        from autotune.study.again import measure_again

    with steps("comparing") as on_step:
        comparisons = measure_again(
            files.paths[0],
            list(dict.fromkeys(trials)),
            source=files.model,
            data=files.data,
            max_error=gate.max_error,
            clients=clients,
            on_step=on_step,
        )
    _report_comparisons(comparisons, gate, junit, as_json=as_json)


def _report_comparisons(
    comparisons: "Comparisons", gate: "Gate", junit: Path | None, *, as_json: bool
) -> None:
    from autotune.report.comparison import render_comparisons
    from autotune.results.gate import judge

    verdicts = judge(comparisons, gate)
    shown = asdict(comparisons) if as_json else render_comparisons(comparisons, verdicts)
    _report(shown, verdicts, junit)


def _report(
    shown: "dict[str, Any] | RenderableType", verdicts: "Sequence[Verdict]", junit: Path | None
) -> None:
    """Prints the outcome, writes the verdicts, and ends with their exit code.

    Args:
        shown: The outcome: a dictionary is printed as JSON, with the verdicts.
        verdicts: What the gate says of it.
        junit: The file for the verdicts; None writes none.
    """
    from autotune.report.junit import junit_document
    from autotune.results.gate import exit_code

    code = exit_code(verdicts)
    if junit is not None:
        _write(junit_document(verdicts, "autotune compare"), junit)
    if isinstance(shown, dict):
        listed = [asdict(verdict) for verdict in verdicts]
        print_json({**shown, "verdicts": listed, "passed": code == 0})
    else:
        output.print(shown)
    if code:
        raise typer.Exit(code)


def _check_output(junit: Path | None, inputs: list[Path]) -> None:
    """Refuses a file of verdicts that would take the place of what is measured."""
    if junit is None:
        return
    if junit.is_dir():
        raise RequestError(f"--junit: {junit} is a folder; name a file")
    for path in inputs:
        if junit.exists() and path.exists() and junit.samefile(path):
            raise RequestError(f"--junit: {junit} is compared; name another file")


def _write(document: str, path: Path) -> None:
    try:
        path.write_text(document, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from None


def verify(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A tuned config such as best.json.")
    ],
    model: Annotated[Path | None, _MODEL] = None,
    data: DataOption = None,
    shape: ShapeOption = [],
    max_error: Annotated[
        float | None,
        typer.Option(
            metavar="0.05",
            parser=parsing.error,
            help="Largest error that counts as the same answers. If left out, a fifth more than "
            "when the config was tuned.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Checks whether a config still keeps its answers and its gain.

    It is for the time after an upgrade of ONNX Runtime or of the machine.

    The exit code is 3 if it does not, and 4 if the config does not run here.
    """
    with signals_later():
        from autotune.cli.progress import steps
        from autotune.report.verification import render_verification
        from autotune.results.upgrade import verify_config

    with steps("verifying") as on_step:
        verification = verify_config(
            config, model, data=data, shapes=dict(shape), max_error=max_error, on_step=on_step
        )
    code = verification.exit_code
    if as_json:
        print_json({**asdict(verification), "holds": code == 0})
    else:
        output.print(render_verification(verification))
    if code:
        raise typer.Exit(code)
