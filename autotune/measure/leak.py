"""How much more memory a session holds with each run, long after its first runs."""

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.measure.statistics import student_t

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


def settled_growth(held_kib: Sequence[float], runs: int) -> Leak | None:
    """Returns the growth by what was held after each block, once arena and heap have settled.

    None where there are too few blocks to tell.
    """
    settled = held_kib[_SETTLING:]
    return Leak.of(settled, runs) if len(settled) > _FEWEST_BLOCKS else None
