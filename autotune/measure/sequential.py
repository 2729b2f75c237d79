"""A sequential test: has a configuration lost more of a metric than is allowed?

Samples are judged in growing looks, and the test stops at the first look that is clear. It is a
non-inferiority test on paired differences: the metric of a sample by the configuration less that by
the unoptimised model. The level of 5 % for each side is split among the looks in proportion to the
samples that each adds (Bonferroni; Wellek, Testing Statistical Hypotheses of Equivalence and
Noninferiority, 2010, has the test of one look), so that

- a configuration whose true drop is the limit or more is found within it in at most 5 % of draws;
- one whose true drop is the limit or less is found beyond it in at most 5 %.

Where there are too few samples for either, the test says so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

WITHIN, BEYOND, UNDECIDED = "within", "beyond", "undecided"
"""What samples show of a drop: it is within the limit, beyond it, or they are too few to tell."""

_LEVEL = 0.05
_FIRST_LOOK = 64
"""Below so many samples the normal approximation of a proportion is poor."""


@dataclass(frozen=True, kw_only=True)
class Drop:
    """By how much a metric fell: the mean over the samples, and the bounds of the test."""

    value: float
    low: float
    high: float


def looks_at(samples: int) -> list[int]:
    """Returns after how many samples the test looks: 64, twice as many each time, and all."""
    looks = []
    look = _FIRST_LOOK
    while look < samples:
        looks.append(look)
        look *= 2
    return [*looks, samples]


def look(differences: Sequence[float], samples: int, max_drop: float) -> tuple[str, Drop]:
    """Returns what the differences show at a look, and the drop with its bounds.

    Args:
        differences: The paired differences of the samples so far, as many as a look has; positive
            where the configuration is better.
        max_drop: The largest drop that is allowed, at least 0.
    """
    added = len(differences) - max(
        (other for other in looks_at(samples) if other < len(differences)), default=0
    )
    drop = _drop(differences, _LEVEL * added / samples, max_drop)
    if drop.high < max_drop:
        return WITHIN, drop
    return BEYOND if drop.low > max_drop else UNDECIDED, drop


def _drop(differences: Sequence[float], level: float, max_drop: float) -> Drop:
    """Returns the mean drop with a one-sided bound of this level on each side.

    The bounds are normal. Where every sample is right or wrong, few of them differ, and their own
    variance is too small whenever luck has hidden some. So the variance is at least that of a drop
    of `max_drop`, as in a score test, and one sample that is better and one that is worse are added
    (Agresti and Min, Statistics in Medicine 24, 2005).
    """
    is_binary = all(difference in (-1.0, 0.0, 1.0) for difference in differences)
    added = 1.0 if is_binary else 0.0
    count = len(differences) + 2 * added
    mean = math.fsum(differences) / count
    square = (math.fsum(difference**2 for difference in differences) + 2 * added) / count
    smallest = max_drop * (1 - max_drop) if is_binary else 0.0
    variance = max(smallest, square - mean**2)
    reach = NormalDist().inv_cdf(1 - level) * math.sqrt(variance / count)
    return Drop(value=-mean, low=-mean - reach, high=-mean + reach)
