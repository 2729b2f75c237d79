"""The processes of one side of a duet: one, or one for each client."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from autotune.measure.clients import Burst, together
from autotune.measure.device_memory import DeviceUsage
from autotune.measure.replies import FirstRuns, Held, Opened, Written
from autotune.process.child import Child
from autotune.process.child_end import Message

R = TypeVar("R")


class Crew:
    """Processes that are asked, suspended and ended together, as if they were one.

    Args:
        start: Starts one of them.
        count: How many there are.
    """

    def __init__(self, start: Callable[[], Child], count: int) -> None:
        with ExitStack() as started:
            self._children = [started.enter_context(start()) for _ in range(count)]
            started.pop_all()

    def request(self, message: Message, timeout_s: float, reply: type[R]) -> R:
        """Sends `message` to all at once; returns what they reply together.

        Memory is the sum over the processes, and a time is that of the slowest. One of them alone
        writes answers: they are the same in all.

        Raises:
            ChildFailure: one of them failed; see :meth:`autotune.process.child.Child.request`.
        """
        asked = self._children[:1] if reply is Written else self._children
        for child in asked:
            child.send(message)
        replies = [child.receive(timeout_s, reply) for child in asked]
        joined: R = replies[0] if len(replies) == 1 else _JOIN[reply](replies)
        return joined

    @property
    def count(self) -> int:
        """How many processes there are."""
        return len(self._children)

    def request_each(
        self, messages: Sequence[Message], timeout_s: float, reply: type[R]
    ) -> list[R]:
        """Sends each process a message of its own, all at once; returns all replies.

        Raises:
            ChildFailure: as :meth:`request`.
        """
        for child, message in zip(self._children, messages, strict=True):
            child.send(message)
        return [child.receive(timeout_s, reply) for child in self._children]

    def freeze(self) -> None:
        """Suspends all."""
        for child in self._children:
            child.freeze()

    def thaw(self) -> None:
        """Resumes all."""
        for child in self._children:
            child.thaw()

    def stop(self) -> None:
        """Ends all, with the processes that they started."""
        for child in self._children:
            child.stop()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


Side = Child | Crew
"""What a measurement asks: a process, or several that work as one."""


def _opened(replies: Sequence[Opened]) -> Opened:
    return replace(
        replies[0],
        load_ms=max(reply.load_ms for reply in replies),
        base_mib=math.fsum(reply.base_mib for reply in replies),
        load_peak_mib=math.fsum(reply.load_peak_mib for reply in replies),
    )


def _first_runs(replies: Sequence[FirstRuns]) -> FirstRuns:
    return replace(
        replies[0],
        first_run_ms=max(reply.first_run_ms for reply in replies),
        run_ms=float(np.median([reply.run_ms for reply in replies])),
        run_peak_mib=math.fsum(reply.run_peak_mib for reply in replies),
        device=_device([reply.device for reply in replies]),
    )


def _device(usages: Sequence[DeviceUsage | None]) -> DeviceUsage | None:
    measured = [usage for usage in usages if usage is not None]
    if len(measured) < len(usages):
        return None
    if any(usage.by_difference for usage in measured):
        # each difference holds what all of them have allocated
        return max(measured, key=lambda usage: usage.mib)
    return replace(measured[0], mib=math.fsum(usage.mib for usage in measured))


def _held(replies: Sequence[Held]) -> Held:
    anonymous = [reply.anonymous_mib for reply in replies if reply.anonymous_mib is not None]
    return Held(
        resident_mib=math.fsum(reply.resident_mib for reply in replies),
        anonymous_mib=math.fsum(anonymous) if len(anonymous) == len(replies) else None,
    )


_JOIN: Mapping[type, Callable[[Sequence[Any]], Any]] = {
    Opened: _opened,
    FirstRuns: _first_runs,
    Held: _held,
    Burst: together,
}
