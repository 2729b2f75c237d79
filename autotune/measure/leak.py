"""How much more memory a session holds with each run, long after its first runs."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.deploy.session import SessionConfig
from autotune.facts.workload import Workload
from autotune.measure.child_session import ChildSession, child_session
from autotune.measure.configuration_run import FIRST_LIMITS
from autotune.measure.outcome import Failure
from autotune.measure.replies import SliceTimes
from autotune.measure.statistics import student_t
from autotune.process.child import ChildFailure

# Arena and heap still grow in the first of them, and a leak fills the holes of the heap before the
# process grows: up to 20 MB of a small CNN's.
_SETTLING = 10
_BLOCKS = 16
_FEWEST_BLOCKS = 8
_BLOCK_S = 0.15
_FEWEST_RUNS, _MOST_RUNS = 20, 5000
# A heap that finds its size grows in a few steps; a leak does not stop.
_LEAST_GROWING = 0.75


@dataclass(frozen=True, kw_only=True)
class Leak:
    """The growth of a session's memory with each run.

    Attributes:
        kib_per_run: Its mean over many runs.
        low: The lower end of the mean's 95 % interval.
        growing: Share of the blocks of runs in which the memory grew.
    """

    kib_per_run: float
    low: float
    high: float
    growing: float
    runs: int

    @property
    def is_leak(self) -> bool:
        """Whether the memory grows for as long as the session runs."""
        return self.low > 0 and self.growing >= _LEAST_GROWING

    @classmethod
    def of(cls, held_kib: Sequence[float], runs: int) -> "Leak":
        """Returns the growth by what was held after each block of so many runs.

        Args:
            held_kib: Memory after each block, that of the first ones left out.
        """
        steps = [after - before for before, after in itertools.pairwise(held_kib)]
        mean = statistics.fmean(steps) / runs
        half = student_t(len(steps) - 1) * statistics.stdev(steps) / runs / len(steps) ** 0.5
        return cls(
            kib_per_run=mean,
            low=mean - half,
            high=mean + half,
            growing=sum(step > 0 for step in steps) / len(steps),
            runs=runs * len(steps),
        )


def measure_leak(
    model: Path,
    config: SessionConfig,
    workload: Workload,
    site: Path | None = None,
    fewest_runs: int = _FEWEST_RUNS,
) -> Leak | Failure:
    """Returns how a session's memory grows, in a process of its own; it takes a few seconds."""
    try:
        with child_session(model, config, workload, site) as session:
            runs = int(_BLOCK_S * 1e3 / session.first_runs().run_ms)
            runs = min(max(runs, fewest_runs), _MOST_RUNS)
            held_kib = [_held_after(session, runs) for _ in range(_SETTLING + _BLOCKS + 1)]
    except ChildFailure as fault:
        return Failure(kind=fault.kind, phase="run", message=fault.message)
    per_call = 1 if workload.one_shape else len(workload.timing)
    return Leak.of(held_kib[_SETTLING:], runs * per_call)


def _held_after(session: ChildSession, runs: int) -> float:
    """Returns the private memory after some runs, in KiB."""
    order = {"do": "slice", "seconds": 0, "fewest_runs": runs, "unrecorded_runs": 0}
    session.child.request(order, FIRST_LIMITS.of_runs(runs), SliceTimes)
    held = session.held()
    mib = held.resident_mib if held.anonymous_mib is None else held.anonymous_mib
    return mib * 1024
