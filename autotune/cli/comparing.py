"""Commands that measure a config in use: ``compare`` and ``verify``.

Commands import what they need when they run, so that ``--help`` and refusals come at once.
"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import parsing
from autotune.cli.console import output, print_json
from autotune.cli.interrupts import signals_later
from autotune.cli.options import MAX_MEMORY, DataOption, JsonOption, ShapeOption
from autotune.errors import RequestError, StorageError

if TYPE_CHECKING:
    from autotune.results.compare import Comparisons
    from autotune.results.gate import Gate

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
_JUNIT = typer.Option(metavar="FILE.xml", help="Write the verdicts to this file as JUnit XML.")


def compare_configs(
    paths: Annotated[list[Path], _PATHS],
    baseline: Annotated[Path | None, _BASELINE] = None,
    trial: Annotated[list[int], _TRIAL] = [],
    model: Annotated[Path | None, _MODEL] = None,
    data: DataOption = None,
    shape: ShapeOption = [],
    min_speedup: Annotated[float | None, _MIN_SPEEDUP] = None,
    max_memory: Annotated[float | None, MAX_MEMORY] = None,
    max_error: Annotated[float, _MAX_ERROR] = 0.05,
    junit: Annotated[Path | None, _JUNIT] = None,
    as_json: JsonOption = False,
) -> None:
    """Measures configs and models side by side with the default.

    The exit code is 3 if a limit is broken, and 4 if a config does not run here. Without
    --min-speedup and --max-memory, a single config has to be better than the baseline.
    """
    with signals_later():
        from autotune.cli.progress import steps
        from autotune.results.compare import compare
        from autotune.results.gate import Gate

    if twice := [path for path in paths if paths.count(path) > 1]:
        raise RequestError(f"{twice[0]} is named twice")
    _check_output(junit, [*paths, *filter(None, (baseline, model, data))])
    if trial:
        comparisons = _compare_trials(paths, trial, baseline, shape, model, data, max_error)
    else:
        with steps("comparing") as on_step:
            comparisons = compare(
                paths,
                model,
                baseline=baseline,
                data=data,
                shapes=dict(shape),
                max_error=max_error,
                on_step=on_step,
            )
    gate = Gate(min_speedup=min_speedup, max_memory_mib=max_memory, max_error=max_error)
    _report(comparisons, gate, junit, as_json=as_json)


def _report(comparisons: "Comparisons", gate: "Gate", junit: Path | None, *, as_json: bool) -> None:
    """Prints the outcome, writes the verdicts, and ends with their exit code."""
    from autotune.report.comparison import render_comparisons
    from autotune.report.junit import junit_document
    from autotune.results.gate import exit_code, judge

    verdicts = judge(comparisons, gate)
    code = exit_code(verdicts)
    if junit is not None:
        _write(junit_document(verdicts, "autotune compare"), junit)
    if as_json:
        print_json(
            {
                **asdict(comparisons),
                "verdicts": [asdict(verdict) for verdict in verdicts],
                "passed": code == 0,
            }
        )
    else:
        output.print(render_comparisons(comparisons, verdicts))
    if code:
        raise typer.Exit(code)


def _compare_trials(
    paths: list[Path],
    trials: list[int],
    baseline: Path | None,
    shape: list[parsing.NamedShape],
    model: Path | None,
    data: Path | None,
    max_error: float,
) -> "Comparisons":
    if len(paths) != 1 or baseline is not None or shape:
        raise RequestError(
            "--trial measures trials of one study against its default, on its inputs; name its "
            "folder alone, and leave out --baseline and --shape"
        )
    with signals_later():
        from autotune.cli.progress import steps
        from autotune.study.again import measure_again

    with steps("comparing") as on_step:
        return measure_again(
            paths[0],
            list(dict.fromkeys(trials)),
            source=model,
            data=data,
            max_error=max_error,
            on_step=on_step,
        )


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
