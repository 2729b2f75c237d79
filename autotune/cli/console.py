"""Where the program prints: results to stdout, all else to stderr.

All text passes through the two consoles, so one place keeps a terminal safe. Names come from
configs, models, storages and files of strangers, and a terminal obeys some characters in them:
escape sequences, carriage returns, marks that turn the direction of writing. The consoles show each
such character as a question mark.
"""

import codecs
import json
import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from autotune.report.text import without_controls

# A file or a pipe has no width: its lines are not folded at 80 characters.
_PIPE_WIDTH = 160
_PLAIN = {"×": "x", "–": "-", "…": "...", "←": "<-", "→": "->", "·": ".", "±": "+-"}
_ERRORS = "autotune-plain"


class SafeConsole(Console):
    """A console that prints no control characters but its own.

    Names of models and folders may hold brackets and colons: text is never read as markup.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Gives the segments of `renderable`; every console method that prints text uses this."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(without_controls(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Passes the fault on: the program ends in one place."""
        raise BrokenPipeError


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


output = SafeConsole(width=None if _is_terminal(sys.stdout) else _PIPE_WIDTH)
messages = SafeConsole(stderr=True)


def print_json(document: dict[str, Any]) -> None:
    """Prints one JSON document to stdout; it holds ASCII characters alone."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


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
