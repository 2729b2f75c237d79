"""The program: its commands, its version, and the exit code that it ends with.

Exit codes: 0 done, 1 a bug, 2 a wrong request, 3 not better than the default (``compare``),
4 nothing can be measured here, 75 storage or disk failed, 130 interrupted,
143 ended by SIGTERM.
"""

import sys
from typing import Annotated

import typer

import autotune
from autotune.cli.console import messages, output
from autotune.cli.interrupts import INTERRUPTED
from autotune.cli.results import compare_config, pick, show
from autotune.cli.study import resume, study
from autotune.cli.tools import show_hardware, show_spaces, write_sample
from autotune.errors import AutotuneError

app = typer.Typer(
    name="autotune",
    no_args_is_help=True,
    add_completion=False,
    # a bug shows its plain traceback
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("study")(study)
app.command("resume")(resume)
app.command("show")(show)
app.command("pick")(pick)
app.command("compare")(compare_config)
app.command("sample")(write_sample)
app.command("hardware")(show_hardware)
app.command("spaces")(show_spaces)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True)
    ] = False,
) -> None:
    """Finds how ONNX Runtime runs a model fastest and with the least memory on this machine."""
    if version:
        output.print(f"autotune {autotune.__version__}")
        raise typer.Exit


def main() -> None:
    """Runs the command line; the entry point of the program."""
    try:
        app()
    except AutotuneError as error:
        messages.print(f"autotune: {error}", style="red", soft_wrap=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        messages.print("Interrupted before anything was measured.")
        sys.exit(INTERRUPTED)
