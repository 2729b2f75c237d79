"""Keeps faults of autotune's own from an application, and gives it those that are its own."""

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any


def say(text: str) -> None:
    """Writes a line to stderr, where there is one."""
    try:
        sys.stderr.write(f"autotune: {text}\n")
    except Exception as fault:  # noqa: BLE001  # an application may have closed it
        swallow(fault)


def swallow(fault: Exception, note: Callable[[Exception], None] | None = None) -> None:
    """Lets an application go on after a fault of autotune's own.

    Args:
        fault: The fault.
        note: Writes it down, as far as that works.

    Raises:
        BaseException: the fault is the application's, or took the place of one that is: its signal
            handler raised it, such as that of an alarm.
    """
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = [getattr(handler, "__code__", None) for handler in handlers if callable(handler)]
    own: BaseException | None = fault
    while own is not None:
        place = own.__traceback__
        while place is not None and place.tb_frame.f_code not in codes:
            place = place.tb_next
        if place is not None or not isinstance(own, Exception):  # Ctrl-C and exits are none of ours
            raise own from own.__cause__
        own = own.__context__
    if note is not None:
        try:
            note(fault)
        except Exception as another:  # noqa: BLE001
            swallow(another)


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that an application may call: a fault of it changes nothing."""

    @functools.wraps(function)
    def entry(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except Exception as fault:  # noqa: BLE001  # the application goes on
            swallow(fault)
            return None

    return entry


@contextlib.contextmanager
def signals_held(struck: list[Callable[[], object]]) -> Iterator[None]:
    """Lets no signal handler of the application run inside the block.

    What a handler raises, such as the TimeoutError of an alarm, might be taken for the fault of a
    file that is read inside. Python calls handlers in its main thread alone.

    Args:
        struck: Gets a call of the handler for each signal that came meanwhile.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers: dict[int, Any] = {}
    is_held = True

    def receive(number: int, frame: Any) -> None:
        call = functools.partial(handlers[number], number, frame)
        struck.append(call) if is_held else call()

    try:
        for each in signal.valid_signals():
            handler = signal.getsignal(each)
            if callable(handler):
                handlers[each] = handler
                signal.signal(each, receive)
        yield
    finally:
        is_held = False
        for number, handler in handlers.items():
            signal.signal(number, handler)
