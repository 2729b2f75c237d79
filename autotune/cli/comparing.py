"""The command that measures a config in use: ``compare``.

Commands import what they need when they run, so that ``--help`` and refusals come at once.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli import parsing
from autotune.cli.applications import compare_application
from autotune.cli.console import messages, own_cores, present
from autotune.cli.options import (
    MAX_HELD_MEMORY,
    MAX_MEMORY,
    OWN_MAX_ERROR,
    ClientsOption,
    DataOption,
    GenerateOption,
    JsonOption,
    ModelOption,
    NewTokensOption,
    PromptTokensOption,
    QuietOption,
    ShapeOption,
    ValueOption,
    of_inputs,
    of_limits,
)
from autotune.deploy.files import read_text
from autotune.deploy.kinds import APPLICATION, is_folder_of
from autotune.errors import FormatError, RequestError, StorageError

if TYPE_CHECKING:
    from autotune.facts.workload import Workload
    from autotune.results.subjects import Lineup

_PATHS = typer.Argument(
    metavar="CONFIG",
    help="Configs such as best.json, or models (.onnx) under default options; with --trial, the "
    "folder of a study; or a tuned application and, after --, its command.",
)
_BASELINE = of_inputs(
    metavar="CONFIG", help="What to compare with (the original model under default options)."
)
_TRIAL = of_inputs(
    metavar="N", parser=parsing.whole, help="Measure this trial of the study again. Repeatable."
)
_RUNTIMES = of_inputs(
    "--runtimes",
    metavar="NAME==VERSION",
    help="Measure one model or config on these ONNX Runtimes (see autotune runtimes).",
)
_MIN_SPEEDUP = of_limits(
    metavar="1.2",
    parser=parsing.factor,
    help="Least speed-up over the baseline; of throughput with --clients.",
)
_JUNIT = typer.Option(metavar="FILE.xml", help="Write the verdicts as JUnit XML.")

_LARGEST_OUTPUT_BYTES = 16 << 20

# What `compare` takes for a tuned application.
_OF_APPLICATIONS = frozenset({"words", "as_json", "quiet"})
_ONLY_A_COMMAND = (
    "a tuned application is compared by runs of its command: leave out all options but --json and "
    "--quiet, or put those of the command after --"
)


def compare_configs(
    words: Annotated[list[str], _PATHS],
    baseline: Annotated[Path | None, _BASELINE] = None,
    trial: Annotated[list[int] | None, _TRIAL] = None,
    runtimes: Annotated[list[str] | None, _RUNTIMES] = None,
    model: ModelOption = None,
    data: DataOption = None,
    shape: ShapeOption = None,
    value: ValueOption = None,
    generate: GenerateOption = None,
    prompt_tokens: PromptTokensOption = None,
    new_tokens: NewTokensOption = None,
    clients: ClientsOption = None,
    min_speedup: Annotated[float | None, _MIN_SPEEDUP] = None,
    max_memory: Annotated[float | None, MAX_MEMORY] = None,
    max_held_memory: Annotated[float | None, MAX_HELD_MEMORY] = None,
    max_error: Annotated[float | None, OWN_MAX_ERROR] = None,
    junit: Annotated[Path | None, _JUNIT] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Measures configs and models side by side with the default; decoders by their tokens.

    The exit code is 3 if a limit is broken, and 4 if a config does not run here. Without limits
    of speed and memory, a single config has to be better than the baseline. With --runtimes, one
    file is measured on several builds or versions of ONNX Runtime. After an upgrade of ONNX Runtime
    it says as well what still holds of a config's numbers.
    """
    given = {name: value for name, value in locals().items() if name not in _OF_APPLICATIONS}
    messages().quiet = quiet
    if is_folder_of(APPLICATION, words[0]):
        _check(not any(given.values()), _ONLY_A_COMMAND)
        compare_application(Path(words[0]), words[1:], as_json=as_json)
        return
    paths = [Path(word) for word in words]
    lengths = tuple(number for numbers in prompt_tokens or () for number in numbers)
    asked = (generate, lengths, new_tokens)
    is_of_inputs = any((baseline, shape, value, *asked))
    _check_together(paths, trial, runtimes, baseline, is_of_inputs=is_of_inputs)
    if junit is not None:
        _check_output(junit)
    from autotune.cli.progress import steps
    from autotune.report.comparison import junit_document, view_comparison
    from autotune.results.compare import compare
    from autotune.results.gate import Gate, exit_code, judge

    with steps("comparing") as on_step:
        if trial:
            from autotune.study.again import measure_again

            comparison = measure_again(
                paths[0],
                list(dict.fromkeys(trial)),
                source=model,
                data=data,
                max_error=max_error,
                clients=clients,
                on_step=on_step,
            )
        else:
            with own_cores():
                made_up = dict(shape or ()), parsing.numbers(value) or {}
                lineup, workload = _read(paths, model, baseline, data, made_up, asked)
                if runtimes:
                    lineup = _on_runtimes(lineup, runtimes)
                comparison = compare(
                    lineup, workload, max_error=max_error, clients=clients, on_step=on_step
                )
    verdicts = judge(comparison, Gate(min_speedup, max_memory, max_held_memory))
    if runtimes:  # of an older release nobody asks that it be better
        verdicts = tuple(verdict for verdict in verdicts if verdict.limit != "better")
    present(view_comparison(comparison, verdicts), as_json=as_json)
    if junit is not None:
        _write(junit_document(verdicts), junit)
    if code := exit_code(verdicts):
        raise typer.Exit(code)


def _check_together(
    paths: list[Path],
    trial: list[int] | None,
    runtimes: list[str] | None,
    baseline: Path | None,
    *,
    is_of_inputs: bool,
) -> None:
    """Refuses options that exclude each other."""
    for path in paths:
        _check(paths.count(path) == 1, f"{path} is named twice")
    _check(
        not trial or (len(paths) == 1 and not is_of_inputs),
        "--trial measures trials of one study against its default, on its inputs; name its "
        "folder alone, and leave out --baseline, --shape, --value and options of prompts",
    )
    _check(
        not runtimes or (len(paths) == 1 and not any((baseline, trial))),
        "--runtimes measures one model or config on several ONNX Runtimes; name one file, and "
        "leave out --baseline and --trial",
    )


def _check(is_right: bool, words: str) -> None:
    if not is_right:
        raise RequestError(words)


def _read(
    paths: list[Path],
    model: Path | None,
    baseline: Path | None,
    data: Path | None,
    made_up: tuple[dict[str, tuple[int, ...]], dict[str, float]],
    asked: tuple[Path | None, tuple[int, ...], int | None],
) -> "tuple[Lineup, Workload]":
    """Returns what is compared with what, and the inputs."""
    from autotune.facts.inputs import Generate, workload_for
    from autotune.results.subjects import checked, lineup_of

    prompts, lengths, new_tokens = asked
    generation = Generate(prompts=prompts, prompt_tokens=lengths, new_tokens=new_tokens)
    lineup = lineup_of(paths, model, baseline)
    shapes, values = made_up
    workload = workload_for(lineup.model, data, shapes, generation=generation, values=values)
    if workload.plan is not None:
        for note in workload.notes:
            messages().print(note)
    lineup = checked(lineup, workload.feeds[0])
    return lineup, replace(workload, outputs=lineup.outputs)


def _on_runtimes(lineup: "Lineup", names: list[str]) -> "Lineup":
    """Returns the lineup with its one subject on each of these ONNX Runtimes."""
    from autotune.results.subjects import on_releases
    from autotune.runtimes.environments import check_model, chosen

    releases = [each.release for each in chosen(names, messages().print)]
    if not releases:
        raise RequestError("--runtimes: name other ONNX Runtimes than your own")
    (subject,) = lineup.subjects
    for release in releases:
        check_model(release, subject.model)
    return replace(lineup, subjects=on_releases(subject, releases))


def _check_output(file: Path) -> None:
    """Refuses a file that cannot be written, or that something else than `compare` wrote."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise RequestError(f"--junit: there is no folder {folder}; make it, or name another file")
    if not os.access(file if file.exists() else folder, os.W_OK):
        raise RequestError(f"--junit: you may not write to {file}; name another file")
    if file.is_dir():
        raise RequestError(f"--junit: {file} is a folder; name a file")
    if file.exists() and not _is_ours(file):
        raise RequestError(
            f"--junit: {file} is there already, and `autotune compare` did not write it; "
            "nothing is overwritten: name another file"
        )


def _is_ours(file: Path) -> bool:
    """Returns whether a file is what `compare` writes, of an earlier run."""
    try:
        text = read_text(file, _LARGEST_OUTPUT_BYTES)
    except FormatError:
        return False
    return not text.strip() or '<testsuite name="autotune compare"' in text


def _write(document: str, path: Path) -> None:
    try:
        path.write_text(document, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from None
