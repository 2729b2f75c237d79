"""Children that are started ahead: the next one imports its tools while one is at work."""

import contextlib
from collections.abc import Iterator
from typing import TypeVar

from autotune.process.child import Child, ChildFailure, memory_limit
from autotune.process.child_end import Message, Ready

R = TypeVar("R")

_READY_S = 60.0


class Successors:
    """Children that answer one message each.

    Args:
        module: The module that they run; it answers ``get_ready`` with :class:`Ready`.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._is_ahead = False
        self._next: Child | None = None

    @contextlib.contextmanager
    def ahead(self) -> Iterator[None]:
        """Starts the next child while one is at work.

        A child takes half a second to import its tools. That never happens beside a measurement:
        :meth:`answer` returns once the next child is ready, and then that child waits.
        """
        self._is_ahead = True
        try:
            yield
        finally:
            self._is_ahead = False
            if child := self._take_next():
                child.stop()

    def child(self) -> Child:
        """Returns a child that has answered nothing yet; the caller stops it."""
        if child := self._take_next():
            if child.is_running():
                return child
            child.stop()
        return Child(self._module, memory_limit())

    def answer(self, child: Child, message: Message, timeout_s: float, reply: type[R]) -> R:
        """Returns what a child answers, as :meth:`Child.request` does.

        Raises:
            ChildFailure: the child did not answer as it should.
            StorageError: a disk is full.
        """
        child.send(message)
        if self._is_ahead:
            self._next = Child(self._module, memory_limit())
            self._next.send({"do": "get_ready"})
        try:
            return child.receive(timeout_s, reply)
        finally:
            self._await_next()

    def _await_next(self) -> None:
        """Waits until the next child is ready; one that fails is given up."""
        child = self._take_next()
        if child is None:
            return
        try:
            child.receive(_READY_S, Ready)
        except ChildFailure:
            child.stop()
        except BaseException:  # its answer would come late, and be taken for another one
            child.stop()
            raise
        else:
            self._next = child

    def _take_next(self) -> Child | None:
        child, self._next = self._next, None
        return child
