"""A shared storage that is away for a while: a study waits for it."""

from collections.abc import Callable

from autotune.storage.clock import Clock
from autotune.storage.faults import FAULTS
from autotune.study.progress import OnProgress, Progress

# How long a storage may be away, and the pauses between the tries to reach it.
_PATIENCE_S = 180.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0


class Outage:
    """Does something with a storage until it succeeds, for minutes in all.

    Args:
        clock: Time and waiting.
        report: Called when the storage is away, and when it is back.
    """

    def __init__(self, clock: Clock, report: OnProgress) -> None:
        self._clock = clock
        self._report = report
        self._began_s: float | None = None

    def surely(self, act: Callable[[], None]) -> None:
        """Does something with the storage, and again where the storage is away.

        Raises:
            Exception: the storage is still away after minutes.
        """
        try:
            act()
        except FAULTS as fault:
            self.outlast(fault, act)

    def outlast(self, fault: Exception, act: Callable[[], None]) -> None:
        """Waits, after a fault of the storage, until something with it succeeds.

        Raises:
            Exception: the fault; the storage is still away after minutes.
        """
        if self._began_s is None:
            self._began_s = self._clock.monotonic()
            self._report(Progress(stage="search", note="The storage is away; waiting for it."))
        pause_s = _FIRST_PAUSE_S
        while self._clock.monotonic() - self._began_s < _PATIENCE_S:
            self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                act()
            except FAULTS as again:
                fault = again
            else:
                self._began_s = None
                self._report(Progress(stage="search", note="The storage is back."))
                return
        raise fault
