"""Ctrl-C and SIGTERM: when they may interrupt the work, and how."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
"""The exit code of an interrupted command: 128 and the number of SIGINT, as shells have it."""


@contextlib.contextmanager
def signals_later() -> Iterator[None]:
    """Lets Ctrl-C and SIGTERM wait for the end of the block.

    For imports: numpy and onnxruntime turn an interrupt while they load into an ImportError.
    """
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.signal(number, lambda n, _: received.append(n)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)
    for signal_number in received:
        signal.raise_signal(signal_number)


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], None]]:
    """Lets SIGTERM end the work as Ctrl-C does: with everything measured kept.

    Gives a function to call at every step. It raises an interrupt that got lost before, as an
    exception does in a finalizer or in a callback of a C library.
    """
    interrupted = False

    def interrupt(_: int, __: FrameType | None) -> NoReturn:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    def checkpoint() -> None:
        if interrupted:
            raise KeyboardInterrupt

    numbers = [signal.SIGTERM]
    # a shell's background jobs start with Ctrl-C ignored
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        numbers.append(signal.SIGINT)
    handlers = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield checkpoint
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            signal.signal(number, handler)
