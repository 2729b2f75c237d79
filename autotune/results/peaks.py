"""How far peaks of memory can be believed: the luck of the heap.

Fresh processes with one configuration differ in their peaks, because the allocator leaves other
holes where the process did other things before, and where the kernel put the heap elsewhere. How
much they differ is learned from all configurations of a comparison together, because each of them
has a few processes only.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.deploy.config import Interval
from autotune.measure.outcome import Measurement
from autotune.measure.statistics import Scatter, mean_log_interval, student_t
from autotune.search.objective import OBJECTIVES

# Another application, another build of its libraries: what is smaller does not survive them.
SMALLEST_MEMORY_GAIN = 0.05
"""No gain of memory below this is claimed, however little processes differ."""

_STARTS_DIFFER_MIB = OBJECTIVES["peak_memory_mib"].tolerance_absolute


@dataclass(frozen=True, kw_only=True)
class HeapLuck:
    """How much the peaks of fresh processes with one configuration differ.

    Attributes:
        scatter: The scatter within configurations, pooled over all of them.
    """

    scatter: Scatter

    @classmethod
    def of(cls, configurations: Iterable[Sequence[Measurement]]) -> "HeapLuck":
        """Returns the luck in the measurements of configurations, a sequence for each of them."""
        return cls(scatter=Scatter.of([m.peak_memory_mib for m in own] for own in configurations))

    def expected(self, measurements: Sequence[Measurement]) -> Interval | None:
        """Returns the largest peak, and the range in which a further process lies with 95 %.

        It is the prediction interval of a normal distribution of logarithms, with all peaks that
        were seen, and with what two starts of one program differ by. None where nothing was
        measured twice.

        Args:
            measurements: Those of one configuration.
        """
        if not self.scatter.freedom:
            return None
        peaks = [m.peak_memory_mib for m in measurements]
        mean = math.exp(float(np.log(peaks).mean()))
        reach = math.exp(self._reach(1 + 1 / len(peaks)))
        return Interval(
            value=max(peaks),
            low=max(0.0, min(mean / reach, *peaks) - _STARTS_DIFFER_MIB),
            high=max(mean * reach, *peaks) + _STARTS_DIFFER_MIB,
        )

    def gain(self, own: Sequence[Measurement], base: Sequence[Measurement]) -> Interval:
        """Returns the peak of `base` over that of `own`: geometric mean, with its 95 % interval.

        Round by round, as far as both took part: the processes of a round have the same history.
        """
        pairs = zip(own, base, strict=False)
        ratios = [theirs.peak_memory_mib / mine.peak_memory_mib for mine, theirs in pairs]
        mean = mean_log_interval(ratios)
        if not self.scatter.freedom:
            return mean
        reach = math.exp(self._reach(2 / len(ratios)))
        return Interval(value=mean.value, low=mean.value / reach, high=mean.value * reach)

    def floor(self, rounds: int) -> float:
        """Returns the relative difference that chance explains, at least 5 %; see :meth:`gain`.

        Args:
            rounds: Rounds in which both of them were measured.
        """
        if not self.scatter.freedom:
            return 1.0
        return max(SMALLEST_MEMORY_GAIN, min(1.0, math.expm1(self._reach(2 / rounds))))

    def _reach(self, variance: float) -> float:
        """Returns half of a 95 % interval of logarithms, for so many times the variance of one."""
        # a larger number overflows, and a range of a factor of a thousand says all
        return min(
            math.log(1e3),
            student_t(self.scatter.freedom) * self.scatter.deviation * math.sqrt(variance),
        )
