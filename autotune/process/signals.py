"""Moments that Ctrl-C and SIGTERM must not cut through."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_received: list[int] = []
_is_waiting = False


@contextlib.contextmanager
def signals_later() -> Iterator[None]:
    """Lets Ctrl-C and SIGTERM wait for the end of the block; a second signal does not wait.

    For transactions: SQLAlchemy may leave an interrupted one open, and with it the lock of a SQLite
    file, for which the next transaction waits a minute. For the end of a child, which takes several
    steps.

    Python runs signal handlers in its main thread alone, so the block changes nothing in others.
    """
    global _is_waiting
    if _is_waiting or threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM)
        if (handler := signal.getsignal(number)) is not None  # one that is not Python's own
    }

    def give_back() -> None:
        global _is_waiting
        _is_waiting = False
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def receive(number: int, _: FrameType | None) -> None:
        _received.append(number)
        if len(_received) > 1:  # the block may never end, as where a server does not answer
            give_back()
            _received.clear()
            signal.raise_signal(number)

    try:
        for number in handlers:
            signal.signal(number, receive)
        _is_waiting = True
        yield
    finally:
        give_back()
        if _received:
            signal.raise_signal(_received.pop())


def signal_waits() -> bool:
    """Returns whether a signal waits for the end of a block of :func:`signals_later`."""
    return bool(_received)
