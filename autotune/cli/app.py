"""The program: its commands, its version, and the exit code that it ends with.

The exit codes stand in docs/api.md, and :mod:`autotune.cli.faults` gives them.
"""

import sys
from typing import Annotated

import typer

import autotune
from autotune.cli.comparing import compare_configs, verify
from autotune.cli.configs import check_config, export_config
from autotune.cli.console import drop_output, messages, output, prepare_streams
from autotune.cli.faults import Ending, ending_of
from autotune.cli.inspection import inspect_file, profile_session
from autotune.cli.interrupts import INTERRUPTED
from autotune.cli.report import report
from autotune.cli.results import pick, show
from autotune.cli.study import resume, study
from autotune.cli.tools import show_hardware, show_spaces, write_sample

app = typer.Typer(
    name="autotune",
    add_completion=False,
    # a bug shows its plain traceback
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("study")(study)
app.command("resume")(resume)
app.command("show")(show)
app.command("report")(report)
app.command("pick")(pick)
app.command("inspect")(inspect_file)
app.command("profile")(profile_session)
app.command("compare")(compare_configs)
app.command("verify")(verify)
app.command("check")(check_config)
app.command("export")(export_config)
app.command("sample")(write_sample)
app.command("hardware")(show_hardware)
app.command("spaces")(show_spaces)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True)
    ] = False,
) -> None:
    """Finds how ONNX Runtime runs a model fastest and with the least memory on this machine."""
    if version:
        output.print(f"autotune {autotune.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        messages.print(context.get_help())
        raise typer.Exit(2)


def main() -> None:
    """Runs the command line; the entry point of the program."""
    prepare_streams()
    ending = run(sys.argv[1:])
    if ending.lines:
        style = None if ending.code == INTERRUPTED else "red"
        messages.print(ending.lines, style=style, soft_wrap=True)
    sys.exit(ending.code)


def run(arguments: list[str]) -> Ending:
    """Runs a command; returns how it ended."""
    command = typer.main.get_command(app)
    try:
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
