"""Ctrl-C and SIGTERM: when they may interrupt the work, and how."""

import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

from autotune.cli.console import messages

INTERRUPTED = 130
"""The exit code of an interrupted command: 128 and the number of SIGINT, as shells have it."""

TERMINATED = 143
"""The exit code of a command that SIGTERM ended."""

_received: list[int] = []


@contextlib.contextmanager
def ending_quietly() -> Iterator[None]:
    """Ends the program without a traceback once a signal came: with exit code 130 or 143.

    Ctrl-C and SIGTERM raise a KeyboardInterrupt inside the block. Libraries make other exceptions
    of it, so after a signal every exception counts as its consequence. After the block signals are
    ignored: the interpreter is about to end.
    """
    numbers = _handled()
    hook = sys.unraisablehook
    sys.unraisablehook = lambda lost: None if _received else hook(lost)
    try:
        for number in numbers:
            signal.signal(number, _raise)
        yield
    except BaseException:
        if not _received:
            raise
        sys.exit(exit_code())
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)


def exit_code() -> int:
    """Returns the exit code of a program that a signal ended."""
    return TERMINATED if signal.SIGTERM in _received else INTERRUPTED


def _handled() -> list[signal.Signals]:
    """Returns the signals that may interrupt: a shell's background jobs ignore Ctrl-C."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def _raise(number: int, _: FrameType | None) -> NoReturn:
    _received.append(number)
    raise KeyboardInterrupt


def is_interrupted() -> bool:
    """Returns whether a signal came, wherever the program was then."""
    return bool(_received)


def checkpoint() -> None:
    """Raises an interrupt that got lost; called at every step.

    What is raised in a finalizer, or in a callback of a C library, is printed and forgotten.
    """
    if _received:
        raise KeyboardInterrupt


def say_how_to_continue() -> None:
    """Says that an interrupted command goes on where it was, and what to type."""
    from autotune.storage.masking import without_secrets

    command = shlex.join(["autotune", *map(without_secrets, sys.argv[1:])])
    messages().print("Interrupted. Everything measured is kept. To continue:")
    messages().print(f"    {command}", soft_wrap=True)
