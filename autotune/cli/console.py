"""Where the program prints: results to stdout, all else to stderr.

All text passes through the two consoles, so one place keeps a terminal safe. Names come from
configs, models, storages and files of strangers, and a terminal obeys some characters in them:
escape sequences, carriage returns, marks that turn the direction of writing. The consoles show each
such character as a question mark. They are made when something is printed, because importing Rich
takes as long as all of the command line.
"""

import codecs
import json
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from autotune.cli.safe_console import SafeConsole
    from autotune.report.view import View

# A file or a pipe has no width of its own: its lines are not folded at 80 characters.
_PIPE_WIDTH = 160
_PLAIN = {"×": "x", "–": "-", "…": "...", "←": "<-", "→": "->", "·": ".", "±": "+-"}
_ERRORS = "autotune-plain"


@cache
def output() -> "SafeConsole":
    """Returns the console for results: stdout."""
    from autotune.cli.safe_console import SafeConsole

    return SafeConsole(width=_width(sys.stdout))


@cache
def messages() -> "SafeConsole":
    """Returns the console for all else: stderr."""
    from autotune.cli.safe_console import SafeConsole

    return SafeConsole(stderr=True, width=_width(sys.stderr))


def _width(stream: TextIO | None) -> int | None:
    """Returns the width of a pipe or a file; None where a terminal or COLUMNS gives one."""
    has_one = os.environ.get("COLUMNS", "").isdecimal() or (stream is not None and stream.isatty())
    return None if has_one else _PIPE_WIDTH


def present(view: "View", *, as_json: bool) -> None:
    """Prints a view to stdout: as text, of a quiet command as one line, or as one JSON document."""
    if as_json:
        print_json(view.data)
        return
    if messages().quiet:
        output().print(view.in_one_line, soft_wrap=True)
        return
    from autotune.report.terminal import renderable

    output().print(renderable(view))


def print_json(document: Mapping[str, Any]) -> None:
    """Prints one JSON document to stdout; it holds ASCII characters alone."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def own_cores() -> AbstractContextManager[None]:
    """Returns a context in which nothing else measures on these cores."""
    from autotune.storage.locks import exclusive_use

    return exclusive_use(None, wait=True, on_note=messages().print)


class _Lossy:
    """A stream whose faults are ignored: messages are lost, and the work goes on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes as far as possible; returns the length of the text."""
        try:
            return self._stream.write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        """Writes what is left, as far as possible."""
        try:
            self._stream.flush()
        except OSError:
            return


def prepare_streams() -> None:
    """Makes stdout and stderr fit to print to, whatever the caller of the program gave it.

    A stream that is closed becomes one whose text is dropped: otherwise the next file that the
    program opens would have its number. A character that the encoding of a terminal lacks is shown
    as a similar one. A study does not end because nobody reads its progress.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    codecs.register_error(_ERRORS, _similar)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
        stream.reconfigure(errors=_ERRORS)
        setattr(sys, name, stream)
    sys.stderr = cast("TextIO", _Lossy(sys.stderr))


def _similar(error: UnicodeError) -> tuple[str, int]:
    """Returns what stands for characters that an encoding lacks, and where to go on."""
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(_PLAIN.get(character, "?") for character in lacking), error.end


def drop_output() -> None:
    """Makes stdout drop what it still holds: it cannot be written."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
