"""The Pareto front of a study's objectives, and the choice of one member."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from autotune.search.objective import BALANCED, Objective, Values, product

T = TypeVar("T")


def front(
    items: Sequence[T], values: Callable[[T], Values], objectives: Sequence[Objective]
) -> list[T]:
    """Returns the items that no other dominates, best in the first objective first.

    To stay beside an item that is ahead of it in the first objective, an item must be better in
    another one by more than the tolerance.
    """
    chosen: list[T] = []
    for item in sorted(items, key=_key(values, objectives)):
        mine = values(item)
        if all(
            any(o.is_better(mine[o.name], values(other)[o.name]) for o in objectives)
            for other in chosen
        ):
            chosen.append(item)
    return chosen


def spread(items: Sequence[T], count: int) -> list[T]:
    """Returns at most `count` of the items, evenly spaced, the first and last among them."""
    if len(items) <= count:
        return list(items)
    if count == 1:
        return [items[0]]
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]


def pick(
    items: Sequence[T],
    values: Callable[[T], Values],
    objectives: Sequence[Objective],
    prefer: str,
) -> T:
    """Returns the item that suits the preference; ties go to the better one in the others.

    Args:
        prefer: The word of one of them, or ``balanced``: the smallest product of all costs.

    Raises:
        ValueError: there are no items.
    """
    if prefer == BALANCED:
        return min(items, key=lambda item: product(values(item), objectives))
    first = next(objective for objective in objectives if objective.word == prefer)
    others = [objective for objective in objectives if objective is not first]
    best = min((values(item)[first.name] for item in items), key=first.cost)
    tied = [item for item in items if not first.is_better(best, values(item)[first.name])]
    return min(tied, key=_key(values, [*others, first]))


def _key(
    values: Callable[[T], Values], objectives: Sequence[Objective]
) -> Callable[[T], tuple[float, ...]]:
    return lambda item: tuple(o.cost(values(item)[o.name]) for o in objectives)
