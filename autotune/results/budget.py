"""How long the end of a study may take, and how many measurements that pays for."""

import math
import time
from collections.abc import Callable


class Budget:
    """Time for the final comparison and what follows it; it begins when it is made.

    Args:
        limit_s: How long all of it may take; infinite if nothing limits it.
        monotonic: Returns seconds that never go back.
    """

    def __init__(
        self, limit_s: float = math.inf, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit_s = limit_s
        self._monotonic = monotonic
        self._began_s = monotonic()
        self._measurements = 0

    def count(self) -> None:
        """Counts a measurement: what one takes is what they took so far in the mean."""
        self._measurements += 1

    def pays_for(self, reserve: float = 0.0) -> float:
        """Returns how many more measurements there is time for; 0 or less where there is none.

        Args:
            reserve: Share of the whole time that is kept for later.
        """
        if math.isinf(self._limit_s) or not self._measurements:
            return math.inf
        spent_s = self._monotonic() - self._began_s
        left_s = self._limit_s * (1 - reserve) - spent_s
        return left_s * self._measurements / spent_s if spent_s else math.inf
