"""From raw times to estimates: what disturbs a machine must not disturb them."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.statistics import (
    duet_ratio,
    mean_log_interval,
    median_interval,
    percentile,
    quiet_turns,
)

_TIMES = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=60)


def test_disturbed_turns_are_not_quiet() -> None:
    """A turn that is slower than the fastest by more than the share is told apart."""
    times = [1.0, 1.05, 1.1, 1.0, 2.0, 1.0, 1.3]
    assert quiet_turns(times) == [True, True, True, True, False, True, False]


def test_one_lucky_turn_does_not_make_the_rest_loud() -> None:
    """A single turn that is too fast to be true does not decide what is quiet."""
    times = [0.5, *[1.0] * 39]
    assert sum(quiet_turns(times)) == 40


@pytest.mark.parametrize("true_ratio", [0.5, 0.97, 1.0, 1.4])
def test_contamination_of_both_sides_cancels(true_ratio: float) -> None:
    """A neighbour that slows a third of the time down does not move the ratio."""
    noise = np.random.default_rng(5)
    slowness = np.ones(121)
    slowness[20:40] = 1.8
    slowness[70:90] = 2.5
    times = slowness * (1 + 0.01 * np.abs(noise.standard_normal(121)))
    reference, candidate = times[::2], times[1::2] * true_ratio
    ratio = duet_ratio(list(reference), list(candidate))
    assert ratio.value == pytest.approx(true_ratio, rel=0.02)
    assert ratio.low <= ratio.value <= ratio.high


def test_contamination_of_the_candidate_alone_is_outvoted() -> None:
    """Hits on a minority of the candidate's own turns do not move the median."""
    reference = [1.0] * 41
    candidate = [0.8 if i % 4 else 3.0 for i in range(40)]
    assert duet_ratio(reference, candidate).value == pytest.approx(0.8)


def test_a_machine_that_is_never_quiet_still_gives_a_ratio() -> None:
    """Where hardly a turn lies between quiet ones, all turns are taken."""
    reference = [1.0 if i % 2 else 3.0 for i in range(21)]
    candidate = [2.0] * 20
    assert duet_ratio(reference, candidate).value == pytest.approx(1.0)


def test_a_drift_cancels() -> None:
    """A clock that slows down steadily is the same to both sides."""
    times = np.linspace(1.0, 1.1, 81)
    assert duet_ratio(list(times[::2]), list(times[1::2])).value == pytest.approx(1.0, rel=1e-3)


@given(_TIMES)
def test_the_median_interval_lies_within_the_sample(values: list[float]) -> None:
    """The interval holds the median and does not leave what was seen."""
    found = median_interval(values)
    assert min(values) <= found.low <= found.value <= found.high <= max(values)


@given(_TIMES, st.randoms(use_true_random=False))
def test_the_median_interval_ignores_the_order(values: list[float], order: random.Random) -> None:
    """The interval of a sample does not depend on the order of its values."""
    shuffled = list(values)
    order.shuffle(shuffled)
    assert median_interval(shuffled) == median_interval(values)


def test_the_median_interval_narrows() -> None:
    """More values of the same kind give a narrower interval."""
    few = median_interval(list(np.linspace(0, 1, 21)))
    many = median_interval(list(np.linspace(0, 1, 401)))
    assert many.high - many.low < few.high - few.low


def test_the_median_interval_covers_as_promised() -> None:
    """The interval holds the true median in at least about 95 of 100 samples."""
    noise = np.random.default_rng(7)
    found = [median_interval(noise.lognormal(0, 1, 30)) for _ in range(1000)]
    assert sum(item.low <= 1 <= item.high for item in found) >= 930


@pytest.mark.parametrize(("rank", "fewest"), [(90, 64), (95, 130), (99, 662)])
def test_percentiles_need_enough_runs(rank: int, fewest: int) -> None:
    """Below MLPerf's count there is no percentile; from it on there is one of the sample."""
    runs = [float(i) for i in range(fewest)]
    assert percentile(runs[:-1], rank) is None
    found = percentile(runs, rank)
    assert found in runs


@given(st.integers(0, 10_000), st.integers(662, 3000))
def test_percentiles_are_in_order(seed: int, count: int) -> None:
    """A higher percentile is never below a lower one, and none is below the plain quantile."""
    runs = [float(ms) for ms in np.random.default_rng(seed).lognormal(0, 1, count)]
    found = [percentile(runs, rank) for rank in (50, 90, 95, 99)]
    told = [value for value in found if value is not None]
    assert len(told) == 4
    assert told == sorted(told)
    ordered = sorted(runs)
    for rank, value in zip((90, 95, 99), told[1:], strict=True):
        assert value >= ordered[math.floor(len(ordered) * rank / 100)]


def test_the_median_needs_a_run() -> None:
    """p50 is the plain median of however few runs, and None of none."""
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([], 50) is None


def test_mean_log_interval_of_one_is_open() -> None:
    """One ratio says nothing of its spread."""
    found = mean_log_interval([1.5])
    assert found.value == pytest.approx(1.5)
    assert (found.low, found.high) == (0.0, math.inf)


def test_mean_log_interval_of_equals_has_no_width() -> None:
    """Ratios that agree leave no doubt."""
    found = mean_log_interval([1.5] * 4)
    assert (found.low, found.value, found.high) == pytest.approx((1.5, 1.5, 1.5))


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=20))
def test_mean_log_interval_treats_both_directions_alike(ratios: list[float]) -> None:
    """Turning every ratio over turns the interval over: faster and slower weigh the same."""
    found = mean_log_interval(ratios)
    turned = mean_log_interval([1 / ratio for ratio in ratios])
    assert found.low <= found.value * (1 + 1e-9)
    assert found.value <= found.high * (1 + 1e-9)
    assert turned.value == pytest.approx(1 / found.value)
    assert turned.low == pytest.approx(1 / found.high)
    assert turned.high == pytest.approx(1 / found.low)


def test_mean_log_interval_is_student_t() -> None:
    """Three ratios give the interval that a statistics table gives."""
    logs = [0.0, 0.1, 0.2]
    found = mean_log_interval([math.exp(value) for value in logs])
    reach = 4.303 * 0.1 / math.sqrt(3)
    assert found.high == pytest.approx(math.exp(0.1 + reach))
