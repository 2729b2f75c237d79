"""How long the end of a study may take, and how many measurements that pays for."""

import math
import time
from collections.abc import Callable

# The least of a final comparison, and of an ablation with one attempt: some 20 measurements each.
_SHORT = 40


class Budget:
    """Time for the final comparison and what follows it; it begins when it is made.

    Args:
        limit_s: How long all of it may take; infinite if nothing limits it.
        monotonic: Returns seconds that never go back.

    Attributes:
        monotonic: The same.
    """

    def __init__(
        self, limit_s: float = math.inf, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.monotonic = monotonic
        self._limit_s = limit_s
        self._began_s = monotonic()
        self._measurements = 0
        self._measuring_s = 0.0

    def book(self, measurements: int, seconds: float) -> None:
        """Takes how long some measurements took: the next ones take as long in the mean."""
        self._measurements += measurements
        self._measuring_s += seconds

    @property
    def is_short(self) -> bool:
        """Whether all of the time is not even enough for the least of an ablation after rounds."""
        return self._measurements_in(self._limit_s) < _SHORT

    def pays_for(self, reserve: float = 0.0) -> float:
        """Returns how many more measurements there is time for; 0 or less where there is none.

        Infinite before the first one, and where nothing limits the time.

        Args:
            reserve: Share of the whole time that is kept for later.
        """
        spent_s = self.monotonic() - self._began_s
        return self._measurements_in(self._limit_s * (1 - reserve) - spent_s)

    def _measurements_in(self, seconds: float) -> float:
        """Returns how many measurements this time pays for, as :meth:`pays_for` does."""
        if math.isinf(self._limit_s) or not self._measuring_s:
            return math.inf
        return seconds * self._measurements / self._measuring_s
