"""The front, and the choice of one of its members."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.search.pareto import PREFERENCES, Preference, front, less_memory, pick, spread

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


def _itself(point: Point) -> Point:
    return point


@given(_POINTS)
def test_no_member_beats_another(points: list[Point]) -> None:
    """Of two members the faster one needs more memory, by more than the tolerance."""
    members = front(points, _itself)
    for faster, slower in pairwise(members):
        assert faster[0] <= slower[0]
        assert less_memory(slower[1], faster[1])


@given(_POINTS)
def test_every_item_is_answered_by_a_member(points: list[Point]) -> None:
    """For whatever was measured a member is as fast and needs no more memory, ties aside."""
    members = front(points, _itself)
    assert members
    for latency, memory in points:
        assert any(m[0] <= latency and not less_memory(memory, m[1]) for m in members)


@given(_POINTS, st.integers(1, 8))
def test_a_spread_keeps_the_ends(points: list[Point], count: int) -> None:
    """Thinning out keeps the order, the first and, from two on, the last; never too many."""
    chosen = spread(points, count)
    assert len(chosen) == min(count, len(points))
    assert chosen[0] == points[0]
    if count > 1:
        assert chosen[-1] == points[-1]
    indices = iter(points)
    assert all(item in indices for item in chosen)


@given(_POINTS, _PREFERENCES)
def test_what_is_picked_is_near_the_best(points: list[Point], prefer: Preference) -> None:
    """The choice is within the tolerance of the best on the axis that was asked for."""
    latency, memory = pick(points, _itself, prefer)
    assert (latency, memory) in points
    if prefer == "latency":
        assert latency <= 1.01 * min(point[0] for point in points)
    elif prefer == "memory":
        assert not less_memory(min(point[1] for point in points), memory)
    else:
        assert latency * memory == min(point[0] * point[1] for point in points)


def test_each_preference_has_its_choice() -> None:
    """The three preferences choose three different members of a front with a knee."""
    points = [(1.0, 100.0), (1.5, 20.0), (10.0, 10.0)]
    assert {name: pick(points, _itself, name) for name in ("latency", "balanced", "memory")} == {
        "latency": (1.0, 100.0),
        "balanced": (1.5, 20.0),
        "memory": (10.0, 10.0),
    }
    assert set(PREFERENCES) == {"latency", "balanced", "memory"}


def test_ties_go_to_the_other_axis() -> None:
    """Of two that are equally fast the leaner one is chosen, of equally lean ones the faster."""
    assert pick([(1.0, 100.0), (1.005, 50.0)], _itself, "latency") == (1.005, 50.0)
    assert pick([(9.0, 50.0), (1.0, 50.4)], _itself, "memory") == (1.0, 50.4)


def test_differences_within_the_noise_are_none() -> None:
    """Less memory counts from half a MiB and two per cent on, whichever is more."""
    assert not less_memory(0.6, 1.0)
    assert less_memory(0.4, 1.0)
    assert not less_memory(99.0, 100.0)
    assert less_memory(97.0, 100.0)


def test_nothing_cannot_be_picked_from() -> None:
    """Without items there is an empty front and no choice."""
    assert front([], _itself) == []
    with pytest.raises(ValueError, match="empty"):
        pick([], _itself, "balanced")
