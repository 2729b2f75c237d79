"""The hypervolume: how much of the space of the objectives a set of points dominates."""

from collections.abc import Sequence

Point = tuple[float, ...]


def hypervolume(points: Sequence[Point], reference: Point) -> float:
    """Returns the volume between the points and the reference; all objectives are minimised.

    The volume is cut into slabs along the last objective (hypervolume by slicing objectives; While
    et al., A Faster Algorithm for Calculating Hypervolume, 2006), which suits fronts of some tens
    of points.

    Args:
        points: A number for each objective; a point that is not below the reference in all of them
            adds nothing.
    """
    inside = [p for p in points if all(x < bound for x, bound in zip(p, reference, strict=True))]
    if not inside:
        return 0.0
    if len(reference) == 1:
        return reference[0] - min(inside)[0]
    inside.sort(key=lambda point: point[-1])
    ends = [*(point[-1] for point in inside[1:]), reference[-1]]
    volume = 0.0
    for number, (point, end) in enumerate(zip(inside, ends, strict=True), start=1):
        if end > point[-1]:
            below = [other[:-1] for other in inside[:number]]
            volume += (end - point[-1]) * hypervolume(below, reference[:-1])
    return volume
