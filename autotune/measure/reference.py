"""A turn of a process, and the long-lived process that gives the baseline's turns."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autotune.measure.clients import Burst
from autotune.measure.crew import Side
from autotune.measure.machine import stolen_ticks
from autotune.measure.outcome import Effort
from autotune.measure.patience import Patience
from autotune.measure.replies import TurnTimes
from autotune.measure.statistics import quiet_limit
from autotune.process.child import Child, ChildFailure

_TURN_S = 0.010
# Under load runs wait for each other: longer turns scatter less.
_LOADED_TURN_S = 0.050
_FEWEST_LOADED_RUNS = 2
# After its cold run a turn has two more at least where runs are this short.
_SHORT_RUN_MS = 5.0
# The speed of a quiet machine comes from the last turns of some 20 trials.
_MEMORY_TURNS = 2000
_FEWEST_CALIBRATION_TURNS = 3
_CALIBRATION_PAUSE_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One turn of one process.

    Attributes:
        run_ns: The time of each run.
        cpu_ns: The CPU time of all threads in all of them.
        stolen: Whether the host took a core away meanwhile.
        mean_ms: With several clients the mean latency while all of them were busy, which is their
            number over the throughput; None with one client.
    """

    run_ns: tuple[int, ...]
    cpu_ns: int
    stolen: bool
    mean_ms: float | None = None

    @property
    def ms(self) -> float:
        """The turn's own estimate of a run: the median, or with several clients the mean.

        A ratio of means is the inverse ratio of throughputs.
        """
        return float(np.median(self.run_ns)) / 1e6 if self.mean_ms is None else self.mean_ms


def take_turn(
    child: Side,
    run_ms: float,
    limit_s: float,
    clients: int = 1,
    *,
    long_run_ms: float = Effort.long_run_ms,
) -> Turn:
    """Thaws `child` for a turn and freezes it again.

    Args:
        child: A worker with an open session.
        run_ms: About how long its runs take.
        limit_s: How long to wait for it.
        clients: How many clients run at once.
        long_run_ms: Longer runs are not repeated for warmth; see
            :attr:`autotune.measure.outcome.Effort.long_run_ms`.

    Raises:
        ChildFailure: it did not answer.
    """
    request = {
        "do": "turn",
        "seconds": _TURN_S,
        "unrecorded_runs": 0 if run_ms > long_run_ms else 1,
        "fewest_runs": 1 if run_ms > _SHORT_RUN_MS else 2,
    }
    if clients > 1:
        request |= {
            "do": "burst",
            "seconds": _LOADED_TURN_S,
            "fewest_runs": _FEWEST_LOADED_RUNS,
        }
    reply: type[TurnTimes | Burst] = Burst if clients > 1 else TurnTimes
    stolen_before = stolen_ticks()
    child.thaw()
    times = child.request(request, limit_s, reply)
    child.freeze()
    stolen = stolen_ticks() > stolen_before
    mean_ms = None
    if isinstance(times, Burst):
        if times.clients != clients:
            raise ChildFailure("protocol", f"runs of {times.clients} clients, not {clients}")
        mean_ms = times.mean_ms
    return Turn(run_ns=times.run_ns, cpu_ns=times.cpu_ns, stolen=stolen, mean_ms=mean_ms)


class Reference:
    """The long-lived process of the baseline, and how fast it is while the machine is quiet.

    It does the same work in each turn, so what makes it slower comes from outside.

    Args:
        start: Starts the process and opens the baseline in it; returns it, frozen, with about how
            long a run takes, in ms.
        limit_s: Returns how long to wait for a turn; called before each.
        clients: How many clients run at once.

    Attributes:
        patience: How long measurements beside it wait for a quiet machine.
    """

    def __init__(
        self,
        start: Callable[[], tuple[Child, float]],
        limit_s: Callable[[], float],
        clients: int = 1,
    ) -> None:
        self.patience = Patience()
        self._start = start
        self._limit_s = limit_s
        self._clients = clients
        self._times: deque[float] = deque(maxlen=_MEMORY_TURNS)
        self._child, self._run_ms = start()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._child.pid

    @property
    def quiet_ms(self) -> float:
        """A turn up to this long was not disturbed."""
        return quiet_limit(self._times)

    def turn(self, long_run_ms: float = Effort.long_run_ms) -> Turn:
        """Returns a turn of the process.

        Args:
            long_run_ms: Longer runs are not repeated for warmth.

        Raises:
            ChildFailure: it did not answer.
        """
        turn = take_turn(
            self._child, self._run_ms, self._limit_s(), self._clients, long_run_ms=long_run_ms
        )
        self._times.append(turn.ms)
        return turn

    def is_quiet(self, turn: Turn) -> bool:
        """Returns whether nothing disturbed this turn."""
        return turn.ms <= self.quiet_ms and not turn.stolen

    def calibrate(self, turns: int, budget_s: float) -> float:
        """Returns the time of a run in ms while the machine is quiet, by turns with pauses."""
        spent_s = 0.0
        count = 0
        while count < _FEWEST_CALIBRATION_TURNS or (count < turns and spent_s < budget_s):
            spent_s += sum(self.turn().run_ns) / 1e9 / self._clients
            count += 1
            if count % 8 == 0:
                time.sleep(_CALIBRATION_PAUSE_S)
        recent = list(self._times)[-count:]
        return float(np.median([ms for ms in recent if ms <= self.quiet_ms]))

    def is_running(self) -> bool:
        """Returns whether the process is alive, frozen or not."""
        return self._child.is_running()

    def renew(self) -> None:
        """Replaces the process by a fresh one; the times of its turns are kept."""
        self._child.stop()
        self._child, self._run_ms = self._start()

    def stop(self) -> None:
        """Ends the process."""
        self._child.stop()
