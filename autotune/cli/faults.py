"""The one place where a fault becomes an exit code and the text that explains it.

Exit codes: 0 done, 1 a bug, 2 a wrong request, 3 not better than the default (``compare``),
4 nothing can be measured here, 75 the storage or a disk failed, 130 interrupted, 141 the
reader of the output ended (a closed pipe).
"""

import re
import traceback
from dataclasses import dataclass

import typer

from autotune.cli.interrupts import INTERRUPTED, is_interrupted
from autotune.errors import AutotuneError, RequestError, sentence, shortened, system_fault
from autotune.storage.masking import without_secrets

BUG = 1
CLOSED_PIPE = 141
"""The exit code where nobody reads the output: 128 and the number of SIGPIPE, as shells have it."""


_ERROR = "Error: "
# They run a command that has options of its own.
_WITH_COMMANDS = ("record", "run", "compare")
_ENDLESS = re.compile(r"\S{500,}")


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a command ended.

    Attributes:
        lines: What to say about it; empty where there is nothing to say.
    """

    code: int
    lines: str = ""

    @property
    def message(self) -> str:
        """The same for a program: without the word that begins it."""
        return self.lines.removeprefix(_ERROR)


def ending_of(fault: BaseException) -> Ending:
    """Returns the exit code for what a command raised, and what to say about it."""
    if isinstance(fault, typer.Exit):
        return Ending(code=fault.exit_code)
    if isinstance(fault, SystemExit):
        return Ending(code=fault.code if isinstance(fault.code, int) else BUG)
    # numpy and onnxruntime turn an interrupt while they load into an ImportError
    is_lost = isinstance(fault, ImportError) and is_interrupted()
    if is_lost or isinstance(fault, KeyboardInterrupt | typer.Abort):
        return Ending(code=INTERRUPTED, lines="Interrupted before anything was measured.")
    if isinstance(fault, BrokenPipeError):
        return Ending(code=CLOSED_PIPE)
    if isinstance(fault, typer.TyperException):
        return Ending(code=RequestError.exit_code, lines=_fit_to_print(_usage_error(fault)))
    error = fault if isinstance(fault, AutotuneError) else system_fault(fault)
    if error is not None:
        return Ending(code=error.exit_code, lines=_fit_to_print(f"{_ERROR}{sentence(str(error))}"))
    lines = "".join(traceback.format_exception(fault))
    return Ending(code=BUG, lines=_fit_to_print(lines.rstrip()))


def _fit_to_print(text: str) -> str:
    """Returns a message without passwords, and without the middle of endless names."""
    return _ENDLESS.sub(lambda name: shortened(name[0]), without_secrets(text))


def _usage_error(error: typer.TyperException) -> str:
    """Returns what is wrong with a command line, and the command that says what is right."""
    context = getattr(error, "ctx", None)
    said = f"{_ERROR}{sentence(error.format_message())}"
    if context is None:
        return said
    if hasattr(error, "option_name") and context.info_name in _WITH_COMMANDS:
        said = f"{said} Write the application's command, with its options, after --."
    return f"{said}\nTry '{context.command_path} --help'."
