"""Commands for whole applications: ``record`` and ``run``.

Commands import what they need when they run, so that ``--help`` and refusals come at once.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune.cli import parsing
from autotune.cli.console import messages, own_cores, present
from autotune.cli.options import JsonOption, QuietOption
from autotune.deploy.files import is_folder
from autotune.errors import AutotuneError, RequestError, typed

_COMMAND = typer.Argument(
    metavar="-- COMMAND",
    help="The application's command with its own arguments, after --.",
    show_default=False,
)
_OUT = typer.Option(
    "--out", "-o", metavar="app.rec", help="Folder of the recording (app.rec).", show_default=False
)
_MAX_MIB = typer.Option(
    "--max-mib",
    metavar="256",
    parser=parsing.whole,
    help="Most MiB of real inputs to keep (256).",
    show_default=False,
)
_KEEP_INPUTS = typer.Option(
    "--keep-inputs",
    metavar="yes|no",
    help="Keep real inputs; shapes are always kept (yes).",
    show_default=False,
)
_TUNED = typer.Argument(
    metavar="app.tuned -- COMMAND",
    help="The tuned application (or AUTOTUNE_APPLY), then its command with its own arguments.",
    show_default=False,
)
_VERBOSE = typer.Option(
    "--verbose", metavar="", help="Say at the end which sessions ran tuned.", show_default=False
)
_PRINT_ENVIRONMENT = typer.Option(
    "--print-environment",
    metavar="",
    help="Print the variables that do the same, for a container, and run nothing.",
    show_default=False,
)


def record_command(
    command: Annotated[list[str], _COMMAND],
    out: Annotated[Path | None, _OUT] = None,
    max_mib: Annotated[int, _MAX_MIB] = 256,
    keep_inputs: Annotated[str, _KEEP_INPUTS] = "yes",
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Runs a command and records its ONNX Runtime sessions: models, options, calls, inputs.

    The application is not changed. The exit code is the command's.
    """
    messages().quiet = quiet
    from autotune.applications.command import record
    from autotune.applications.recording import Recording
    from autotune.report.application import view_recording

    if max_mib < 1:
        raise RequestError(f"--max-mib must be at least 1, not {max_mib}; see --keep-inputs no")
    if keep_inputs not in ("yes", "no"):
        raise RequestError(f"--keep-inputs must be yes or no, not '{keep_inputs}'")
    folder = out or Path("app.rec")
    code = record(command, folder, max_mib=max_mib, keep_inputs=keep_inputs == "yes")
    try:
        view = view_recording(Recording.read(folder))
    except AutotuneError as error:  # the command's exit code is passed on all the same
        messages().print(str(error), style="red", soft_wrap=True)
        raise typer.Exit(code) from None
    if as_json:
        present(view, as_json=True)
    else:  # stdout is the command's
        from autotune.report.terminal import renderable

        messages().print(renderable(view))
    if code:
        raise typer.Exit(code)


def run_tuned(
    arguments: Annotated[list[str] | None, _TUNED] = None,
    verbose: Annotated[bool, _VERBOSE] = False,
    print_environment: Annotated[bool, _PRINT_ENVIRONMENT] = False,
) -> None:
    """Runs a command with its sessions tuned, and nothing else of it changed.

    A session is opened tuned if its model and its options are those recorded. The exit code is the
    command's.
    """
    from autotune.applications.command import cannot_start, tuned_environment
    from autotune.deploy.application import TunedApplication
    from autotune.deploy.hook import APPLY_VARIABLE, VERBOSE_VARIABLE

    words = list(arguments or ())
    folder = os.environ.get(APPLY_VARIABLE)
    # with the variable set, all words may be the command
    if words and (folder is None or is_folder(Path(words[0]))):
        folder = words.pop(0)
    if folder is None:
        raise RequestError(
            "name the folder of a tuned application and, after --, the command: "
            "autotune run app.tuned -- python app.py"
        )
    if not is_folder(Path(folder)):
        raise RequestError(
            f"there is no folder {folder}; `autotune study app.rec` writes a tuned application "
            "from a recording, which `autotune record -- COMMAND` makes"
        )
    TunedApplication.read(Path(folder))
    environment = tuned_environment(Path(folder), verbose=verbose)
    if print_environment:
        from autotune.cli.console import output

        for name in (APPLY_VARIABLE, "PYTHONPATH", *([VERBOSE_VARIABLE] if verbose else [])):
            output().print(f"{name}={environment[name]}", soft_wrap=True, markup=False)
        return
    if not words:
        raise RequestError(
            f"name the command after --: autotune run {typed(folder)} -- python app.py"
        )
    try:
        os.execvpe(words[0], words, environment)  # the user's own command
    except OSError as error:
        raise cannot_start(words, error) from None


def run_application_study(recording: Path, given: Mapping[str, Any], *, as_json: bool) -> None:
    """Tunes a recorded application and prints the result.

    Args:
        given: The options of ``study``, None for those that were left out.
    """
    from autotune.applications.options import DEFAULT_TIMEOUT_S, ApplicationOptions
    from autotune.applications.study import study_application
    from autotune.cli.interrupts import INTERRUPTED, checkpoint, say_how_to_continue
    from autotune.cli.progress import StudyProgress
    from autotune.cli.report import write_last_page
    from autotune.report.application import view_application
    from autotune.results.writing import PAGE
    from autotune.study.progress import Progress

    chosen = {name: value for name, value in given.items() if value is not None}
    if "runtimes" in chosen:
        raise RequestError(
            "an application's sessions are opened by the ONNX Runtime that it imports, so "
            "--runtimes cannot change it; install the other build, such as "
            "onnxruntime-openvino, in an environment like the application's, and record, study "
            "and run it there"
        )
    known = {item.name for item in fields(ApplicationOptions)} - {"recording"}
    if others := sorted(chosen.keys() - known):
        raise RequestError(
            "the study of a recording, which brings its own models, inputs and calls, takes no "
            f"{_as_typed(others)}; its options are {_as_typed(sorted(known))}"
        )
    if "trials" not in chosen:
        chosen.setdefault("timeout_s", DEFAULT_TIMEOUT_S)
    if "providers" in chosen:
        chosen["providers"] = tuple(chosen["providers"])
    options = ApplicationOptions(recording=recording, **chosen)
    with StudyProgress(messages()) as show_progress:

        def on_progress(progress: Progress) -> None:
            show_progress(progress)
            if not progress.note:  # as of a study that an interrupt is ending
                checkpoint()

        try:
            result = study_application(options, on_progress)
        except KeyboardInterrupt:
            say_how_to_continue()
            raise typer.Exit(INTERRUPTED) from None
    problem = write_last_page(options.folder)
    present(view_application(result, "" if problem else PAGE), as_json=as_json)
    if problem:
        messages().print(problem, soft_wrap=True)


def _as_typed(names: Sequence[str]) -> str:
    """Returns options by the words that the command line has for them."""
    from autotune.cli.parsing import SETTINGS

    words = [name.removesuffix("_s").removesuffix("_mib").replace("_", "-") for name in names]
    typed = [
        f"--set {name}=..." if name in SETTINGS else f"--{word}"
        for name, word in zip(names, words, strict=True)
    ]
    return ", ".join(sorted(typed, key=lambda word: word.startswith("--set ")))


def compare_application(folder: Path, command: list[str], *, as_json: bool) -> None:
    """Times a command as it is and with the sessions of a tuned application, in turns."""
    from autotune.applications.timing import compare_command
    from autotune.cli.progress import steps
    from autotune.deploy.application import TunedApplication
    from autotune.errors import NotBetterError
    from autotune.report.application import view_command

    TunedApplication.read(folder)
    if not command:
        raise RequestError(
            f"name the command after --: autotune compare {typed(folder)} -- python app.py"
        )
    with own_cores(), steps("comparing") as on_step:
        comparison = compare_command(folder, command, on_step)
    present(view_command(comparison), as_json=as_json)
    if not comparison.is_better:
        raise typer.Exit(NotBetterError.exit_code)
