"""A child that outlives its task and takes the next one: it has imported its tools already."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psutil

from autotune.process.child import Child, memory_limit

# A child that has grown beyond this would take memory from what is measured.
_MOST_KEPT_MIB = 512


class LastingChild:
    """The child that takes one task after another, while it is kept."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._is_kept = False
        self._idle: Child | None = None
        self._site: Path | None = None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keeps the child from one task to the next until the end of the block.

        A child takes half a second of computing to import its tools. An idle one is suspended: it
        takes no time from what is measured, whatever threads a tool left behind.
        """
        self._is_kept = True
        try:
            yield
        finally:
            self._is_kept = False
            if child := self._take_idle():
                child.stop()

    @contextlib.contextmanager
    def at_work(self, site: Path | None = None) -> Iterator[Child]:
        """Gives the child for one task; its folder is empty.

        Args:
            site: A folder whose packages come before the user's own. Another one than that of the
                last task takes another child.

        After an exception in the block the child is stopped: what failed may leave things behind,
        and an answer that nobody waited for would be taken for that to the next message.
        """
        if site != self._site and (other := self._take_idle()):
            other.stop()
        self._site = site
        child = self._take_idle() or Child(self._module, memory_limit(), site)
        try:
            yield child
            if self._is_kept and _may_stay(child) and child.empty_folder():
                child.freeze()
                self._idle = child
        finally:
            if child is not self._idle:
                child.stop()

    def _take_idle(self) -> Child | None:
        child, self._idle = self._idle, None
        if child and not child.is_running():
            child.stop()
            return None
        if child:
            child.thaw()
        return child


def _may_stay(child: Child) -> bool:
    """Returns whether the child is small and has left no process of its own."""
    try:
        process = psutil.Process(child.pid)
        return process.memory_info().rss < _MOST_KEPT_MIB << 20 and not process.children()
    except psutil.Error:  # it is gone
        return False
