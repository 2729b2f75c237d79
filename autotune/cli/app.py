"""The program: its commands, its version, and the exit code that it ends with.

The exit codes stand in docs/api.md, and :mod:`autotune.cli.faults` gives them.
"""

import itertools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

import autotune
from autotune.cli.applications import record_command, run_tuned
from autotune.cli.comparing import compare_configs
from autotune.cli.configs import check_config, export_config
from autotune.cli.console import drop_output, messages, output, prepare_streams, print_json
from autotune.cli.faults import Ending, ending_of
from autotune.cli.inspection import inspect_file, profile_session
from autotune.cli.interrupts import INTERRUPTED
from autotune.cli.report import report
from autotune.cli.results import pick, show
from autotune.cli.study import study
from autotune.cli.tools import runtimes, show_hardware, show_spaces, write_sample
from autotune.deploy.files import is_folder
from autotune.errors import RequestError, did_you_mean, typed

COMMANDS: Mapping[str, Mapping[str, Callable[..., None]]] = {
    "Search": {"study": study, "show": show, "report": report, "pick": pick},
    "Applications": {"record": record_command, "run": run_tuned},
    "Deploy": {
        "compare": compare_configs,
        "check": check_config,
        "export": export_config,
    },
    "Understand": {
        "inspect": inspect_file,
        "profile": profile_session,
        "hardware": show_hardware,
        "runtimes": runtimes,
        "spaces": show_spaces,
        "sample": write_sample,
    },
}
"""The commands by the panel of the help that lists them."""

_MEANT: Mapping[str, str] = {
    **dict.fromkeys("tune optimize optimise search start run-study resume".split(), "study"),
    **dict.fromkeys("bench benchmark measure time".split(), "compare"),
    **dict.fromkeys("list ls result results status".split(), "show"),
    **dict.fromkeys("validate verify test".split(), "check"),
    **dict.fromkeys("analyze analyse info explain".split(), "inspect"),
    **dict.fromkeys("convert deploy".split(), "export"),
    **dict.fromkeys("quantize quantise".split(), "study MODEL --space quantize"),
    **dict.fromkeys("clean clear prune cache".split(), "study DIR --clean"),
    **dict.fromkeys("providers devices doctor".split(), "hardware"),
    **dict.fromkeys("example demo".split(), "sample"),
    **dict.fromkeys("usage man".split(), "--help"),
    "apply": "run",
    "load": "check",
    "select": "pick",
    "trace": "profile",
    "help": "--help",
    "version": "--version",
}
"""What other programs call a command, and what to type here."""

_COMPLETE = "_AUTOTUNE_COMPLETE"
"""The environment variable by which a shell asks for completions."""

app = typer.Typer(
    name="autotune",
    # a bug shows its plain traceback
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for panel, commands in COMMANDS.items():
    for name, function in commands.items():
        app.command(name, rich_help_panel=panel)(function)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", metavar="", help="Print the version.", is_eager=True)
    ] = False,
) -> None:
    """Finds how ONNX Runtime runs a model fastest and with the least memory on this machine."""
    if version:
        output().print(f"autotune {autotune.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        context.get_help()  # prints it
        raise typer.Exit(2)


def main() -> None:
    """Runs the command line; the entry point of the program."""
    prepare_streams()
    arguments = sys.argv[1:]
    ending = run(arguments)
    if ending.lines:
        if _wants_json(arguments):
            print_json({"error": {"message": ending.message, "code": ending.code}})
        style = None if ending.code == INTERRUPTED else "red"
        messages().quiet = False
        messages().print(ending.lines, style=style, soft_wrap=True)
    sys.exit(ending.code)


def run(arguments: list[str]) -> Ending:
    """Runs a command; returns how it ended."""
    command = typer.main.get_command(app)
    if _COMPLETE in os.environ:
        command(prog_name="autotune")
    try:
        _check_command(arguments)
        # not command.main(): it would print faults, and past the consoles
        with command.make_context("autotune", arguments) as context:
            command.invoke(context)
        sys.stdout.flush()
    except BaseException as fault:  # noqa: BLE001  # the one place that turns faults into exit codes
        ending = ending_of(fault)
    else:
        return Ending(code=0)
    try:
        sys.stdout.flush()
    except OSError:
        drop_output()
    return ending


def _check_command(arguments: Sequence[str]) -> None:
    """Refuses a command that does not exist, and says which one is meant.

    Raises:
        RequestError: there is none of that name.
    """
    names = [name for commands in COMMANDS.values() for name in commands]
    name = arguments[0] if arguments else "-"
    if name.startswith("-") or name in names:
        return
    if meant := _MEANT.get(name.lower()):
        hint = f" Type autotune {meant}."
    elif Path(name).suffix == ".onnx" or (name and is_folder(Path(name))):
        hint = f" Type autotune study {typed(name)}."
    else:
        hint = did_you_mean(name, names) or " autotune --help lists the commands."
    raise RequestError(f"there is no command '{name}'.{hint}")


def _wants_json(arguments: Sequence[str]) -> bool:
    """Returns whether a command of ours was asked for JSON; what follows ``--`` is another's."""
    own = itertools.takewhile(lambda word: word != "--", arguments)
    return "--json" in own
