"""Where the time of a search goes: what search.py and shared.py tell it with."""

import contextlib
import inspect
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any

from optuna.storages import RDBStorage

from autotune.search.proposer import Proposer


class Stopwatch:
    """Adds up the main thread's time inside of wrapped functions, without that of those they call.

    Attributes:
        spent_s: Seconds by part.
    """

    def __init__(self) -> None:
        self.spent_s: dict[str, float] = defaultdict(float)
        self._inside: list[str] = []
        self._since = time.monotonic()

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, its time booked on `part`."""

        @wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return function(*arguments, **named)  # Optuna's heartbeat
            self._book()
            self._inside.append(part)
            try:
                return function(*arguments, **named)
            finally:
                self._book()
                self._inside.pop()

        return timed

    def _book(self) -> None:
        now = time.monotonic()
        if self._inside:
            self.spent_s[self._inside[-1]] += now - self._since
        self._since = now


Methods = Mapping[str, tuple[type, Sequence[str]]]
"""By part, a class with names of its methods."""


@contextlib.contextmanager
def timed(watch: Stopwatch, methods: Methods) -> Iterator[None]:
    """Books the time of methods on their parts while the context lasts."""
    kept = []
    for part, (owner, names) in methods.items():
        for name in names:
            function = vars(owner)[name]
            kept.append((owner, name, function))
            setattr(owner, name, watch.wrap(part, function))
    try:
        yield
    finally:
        for owner, name, function in kept:
            setattr(owner, name, function)


def optuna_methods() -> Methods:
    """Returns those of Optuna's storage, and of the search's own thinking."""
    return {
        "storage": (RDBStorage, _functions(RDBStorage)),
        "search": (Proposer, _functions(Proposer)),
    }


def _functions(owner: type) -> list[str]:
    """Returns the names of a class's methods; Optuna's cache calls some private ones."""
    return [
        name
        for name, function in vars(owner).items()
        if inspect.isfunction(function) and not name.startswith("__")
    ]
