"""The luck of the heap: how far peaks of memory can be believed."""

import random

import pytest
from fakes import measurement

from autotune.measure.outcome import Measurement
from autotune.results.score import SMALLEST_MEMORY_GAIN, HeapLuck, most_held_mib


def _peaks(*mib: float) -> list[Measurement]:
    return [measurement(10.0, peak) for peak in mib]


def test_luck_is_pooled_over_configurations() -> None:
    """Configurations of different size count by how much their own processes differ."""
    small, large = _peaks(10.0, 10.0), _peaks(100.0, 110.0, 121.0)
    luck = HeapLuck.of([small, large, []])
    assert luck.scatter.freedom == 3
    assert luck.scatter.deviation == pytest.approx((2 * 0.09531**2 / 3) ** 0.5, rel=1e-3)


def test_a_single_measurement_says_nothing_about_luck() -> None:
    own, base = _peaks(10.0), _peaks(20.0)
    luck = HeapLuck.of([own, base])
    assert luck.expected(own) is None
    assert luck.gain(own, base).low == 0.0
    assert luck.floor(1) == 1.0


def test_processes_that_never_differ_leave_the_smallest_floor() -> None:
    """Even then another application differs by a little, as two starts of one program do."""
    own = _peaks(10.0, 10.0, 10.0)
    luck = HeapLuck.of([own])
    expected = luck.expected(own)
    assert expected is not None
    assert (expected.low, expected.value, expected.high) == pytest.approx((9.5, 10.0, 10.5))
    assert luck.floor(3) == SMALLEST_MEMORY_GAIN


def test_the_range_holds_what_another_process_sees() -> None:
    """Of made-up processes whose logarithms are normal, nineteen in twenty lie within it."""
    chance = random.Random(1)

    def peak() -> float:
        return 50.0 * chance.lognormvariate(0.0, 0.1)

    held = 0
    for _ in range(1000):
        configurations = [_peaks(peak(), peak(), peak()) for _ in range(3)]
        expected = HeapLuck.of(configurations).expected(configurations[0])
        assert expected is not None
        held += expected.low <= peak() <= expected.high
    assert 930 < held < 990


def test_the_promise_of_held_memory_holds_in_twenty_processes() -> None:
    """Of made-up configurations whose processes differ by 2 %, hardly one breaks its promise."""
    chance = random.Random(2)

    def held() -> float:
        return 50.0 * chance.lognormvariate(0.0, 0.02)

    kept = 0
    for _ in range(200):
        most_mib = most_held_mib(_peaks(held(), held(), held()))
        assert most_mib is not None
        assert most_mib < 62
        kept += max(held() for _ in range(20)) <= most_mib
    assert kept > 190
    assert most_held_mib(_peaks(10.0)) is None


def test_the_range_holds_every_peak_that_was_seen() -> None:
    """One process in a hundred was unlucky; its peak was seen, so it is possible."""
    odd = _peaks(10.0, 10.0, 10.0, 14.0)
    others = [_peaks(10.0, 10.0, 10.0, 10.0) for _ in range(20)]
    expected = HeapLuck.of([odd, *others]).expected(odd)
    assert expected is not None
    assert expected.value == 14.0 < expected.high


def test_chance_rarely_passes_for_a_gain() -> None:
    """Of equal configurations whose processes differ by a tenth, few seem leaner than the floor."""
    chance = random.Random(2)
    wrong = 0
    for _ in range(1000):
        field = [
            _peaks(*(50.0 * chance.lognormvariate(0.0, 0.1) for _ in range(3))) for _ in range(4)
        ]
        luck = HeapLuck.of(field)
        gain = luck.gain(field[1], field[0])
        wrong += gain.low > 1 and gain.value > 1 + luck.floor(3)
    assert wrong < 50


def test_a_gain_is_measured_round_by_round() -> None:
    gain = HeapLuck.of([_peaks(10.0, 10.0)]).gain(_peaks(10.0, 20.0), _peaks(20.0, 40.0, 900.0))
    assert gain.value == pytest.approx(2.0)
