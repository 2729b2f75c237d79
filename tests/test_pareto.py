"""The front, and the choice of one of its members."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import RequestError
from autotune.search.objective import (
    DEFAULT,
    LOADED_DEFAULT,
    OBJECTIVES,
    Values,
    check_preference,
    find,
)
from autotune.search.pareto import front, pick, spread

Point = tuple[float, float]

_POINTS = st.lists(
    st.tuples(
        st.integers(1, 40).map(lambda n: n / 4) | st.floats(0.01, 1e4),
        st.integers(1, 40).map(float) | st.floats(0.0, 1e5),
    ),
    min_size=1,
    max_size=40,
)
_PREFERENCES = st.sampled_from(["latency", "memory", "balanced"])


_BOTH = find(DEFAULT)


def _named(point: Point) -> Values:
    return {"latency_ms": point[0], "peak_memory_mib": point[1]}


def less_memory(mib: float, than_mib: float) -> bool:
    return OBJECTIVES["peak_memory_mib"].is_better(mib, than_mib)


@given(_POINTS)
def test_no_member_beats_another(points: list[Point]) -> None:
    members = front(points, _named, _BOTH)
    for faster, slower in pairwise(members):
        assert faster[0] <= slower[0]
        assert less_memory(slower[1], faster[1])


@given(_POINTS)
def test_every_item_is_answered_by_a_member(points: list[Point]) -> None:
    """For whatever was measured a member is as fast and needs no more memory, ties aside."""
    members = front(points, _named, _BOTH)
    assert members
    for latency, memory in points:
        assert any(m[0] <= latency and not less_memory(memory, m[1]) for m in members)


@given(_POINTS, st.integers(1, 8))
def test_a_spread_keeps_the_ends(points: list[Point], count: int) -> None:
    chosen = spread(points, count)
    assert len(chosen) == min(count, len(points))
    assert chosen[0] == points[0]
    if count > 1:
        assert chosen[-1] == points[-1]
    indices = iter(points)
    assert all(item in indices for item in chosen)


@given(_POINTS, _PREFERENCES)
def test_what_is_picked_is_near_the_best(points: list[Point], prefer: str) -> None:
    latency, memory = pick(points, _named, _BOTH, prefer)
    assert (latency, memory) in points
    if prefer == "latency":
        assert latency <= 1.01 * min(point[0] for point in points)
    elif prefer == "memory":
        assert not less_memory(min(point[1] for point in points), memory)
    else:
        assert latency * memory == min(point[0] * point[1] for point in points)


def test_ties_go_to_the_other_axis() -> None:
    assert pick([(1.0, 100.0), (1.005, 50.0)], _named, _BOTH, "latency") == (1.005, 50.0)
    assert pick([(9.0, 50.0), (1.0, 50.4)], _named, _BOTH, "memory") == (1.0, 50.4)


def test_differences_within_the_noise_are_none() -> None:
    """Less memory counts from half a MiB and two per cent on, whichever is more."""
    assert not less_memory(0.6, 1.0)
    assert less_memory(0.4, 1.0)
    assert not less_memory(99.0, 100.0)
    assert less_memory(97.0, 100.0)


def test_nothing_cannot_be_picked_from() -> None:
    assert front([], _named, _BOTH) == []
    with pytest.raises(ValueError, match="empty"):
        pick([], _named, _BOTH, "balanced")


def test_a_third_objective_makes_room_on_the_front() -> None:
    points = [(1.0, 100.0, 5.0), (2.0, 100.0, 5.0), (2.0, 110.0, 1.0)]
    three = find([*DEFAULT, "cpu_s"])

    def named(point: tuple[float, float, float]) -> Values:
        return dict(zip((o.name for o in three), point, strict=True))

    assert front(points, named, three) == [points[0], points[2]]
    assert pick(points, named, three, "cpu") == points[2]


@pytest.mark.parametrize(
    ("names", "message"),
    [(["latencyms"], "Did you mean 'latency_ms'"), ([], "once"), (["cpu_s", "cpu"], "once")],
)
def test_objectives_are_checked(names: list[str], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        find(names)


def test_a_preference_must_be_an_objective() -> None:
    check_preference("balanced", _BOTH)
    with pytest.raises(RequestError, match="latency, memory, balanced"):
        check_preference("cpu", _BOTH)


def test_the_front_of_throughput_begins_with_the_most() -> None:
    objectives = find(LOADED_DEFAULT)

    def named(point: Point) -> Values:
        return {"throughput_per_s": point[0], "peak_memory_mib": point[1]}

    points = [(100.0, 50.0), (300.0, 90.0), (200.0, 95.0), (299.5, 60.0)]
    assert front(points, named, objectives) == [(300.0, 90.0), (299.5, 60.0), (100.0, 50.0)]
    # as much throughput within the tolerance, and less memory
    assert pick(points, named, objectives, "throughput") == (299.5, 60.0)
    assert pick(points, named, objectives, "memory") == (100.0, 50.0)
    assert pick(points, named, objectives, "balanced") == (299.5, 60.0)
