"""The Pareto front of latency and peak memory, and the choice of one member."""

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar, get_args

from autotune.errors import did_you_mean

Preference = Literal["latency", "memory", "balanced"]
PREFERENCES: tuple[str, ...] = get_args(Preference)

# Differences below these are not worth a place on the front: two processes of one configuration
# differ by as much.
LATENCY_TOLERANCE = 0.01
MEMORY_TOLERANCE = 0.02
MEMORY_TOLERANCE_MIB = 0.5

T = TypeVar("T")
Point = tuple[float, float]
"""Latency in ms and peak memory in MiB."""


def unknown_preference(word: str) -> str:
    """Returns the sentence that refuses a preference."""
    near = did_you_mean(word, PREFERENCES)
    return f"--prefer must be one of {', '.join(PREFERENCES)}, not '{word}'.{near}"


def less_memory(mib: float, than_mib: float) -> bool:
    """Returns whether a peak is below another by more than processes of one kind differ."""
    return mib < than_mib - max(MEMORY_TOLERANCE_MIB, MEMORY_TOLERANCE * than_mib)


def front(items: Sequence[T], point: Callable[[T], Point]) -> list[T]:
    """Returns the items that no other beats on both axes, fastest first.

    An item that is slower than another must need less memory by more than the tolerance to stay.
    """
    chosen: list[T] = []
    for item in sorted(items, key=point):
        if not chosen or less_memory(point(item)[1], point(chosen[-1])[1]):
            chosen.append(item)
    return chosen


def spread(items: Sequence[T], count: int) -> list[T]:
    """Returns at most `count` of the items, evenly spaced, the first and last among them."""
    if len(items) <= count:
        return list(items)
    if count == 1:
        return [items[0]]
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def pick(items: Sequence[T], point: Callable[[T], Point], prefer: Preference) -> T:
    """Returns the item that suits the preference; ties go to the better one on the other axis.

    ``balanced`` is the smallest product of both, so that a tenth less of either counts the same.

    Raises:
        ValueError: there are no items.
    """
    if prefer == "balanced":
        return min(items, key=lambda item: point(item)[0] * point(item)[1])
    if prefer == "latency":
        fastest = min(point(item)[0] for item in items)
        tied = [item for item in items if point(item)[0] <= fastest * (1 + LATENCY_TOLERANCE)]
        return min(tied, key=lambda item: (point(item)[1], point(item)[0]))
    leanest = min(point(item)[1] for item in items)
    tied = [item for item in items if not less_memory(leanest, point(item)[1])]
    return min(tied, key=point)
