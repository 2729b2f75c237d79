"""From raw times to estimates: what disturbs a machine must not disturb them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure.statistics import (
    Scatter,
    chosen_slices,
    mean_log_interval,
    median_interval,
    percentile,
    undisturbed_limit,
    warm_up,
)


def test_disturbed_slices_are_above_the_limit() -> None:
    times = [1.0, 1.05, 1.1, 1.0, 2.0, 1.0, 1.3]
    assert 1.1 <= undisturbed_limit(times) < 1.3


def test_one_lucky_slice_does_not_make_the_rest_loud() -> None:
    """A single time slice that is too fast to be true does not decide what is quiet."""
    assert undisturbed_limit([0.5, *[1.0] * 39]) >= 1.0


def test_no_warm_up_in_a_steady_series() -> None:
    noise = np.random.default_rng(3)
    estimate = [
        warm_up(list(1 + 0.02 * noise.standard_normal(30)), [True] * 30) for _ in range(200)
    ]
    assert estimate.count(0) >= 195


def test_warm_up_is_cut_off() -> None:
    ratios = [1.5, 1.4, 9.0, 1.3, 1.3, *[1.0] * 25]
    start = warm_up(ratios, [True, True, False, *[True] * 27])
    assert start is not None
    assert 5 <= start <= 15
    assert median_interval(ratios[start:]).value == pytest.approx(1.0)


@pytest.mark.parametrize("slope", [0.02, -0.02])
def test_a_trend_is_no_steady_state(slope: float) -> None:
    ratios = [1.0 + slope * i for i in range(40)]
    assert warm_up(ratios, [True] * 40) is None


def test_few_slices_say_nothing_of_a_warm_up() -> None:
    assert warm_up([3.0, 1.0, 1.0, 1.0], [True] * 4) == 0
    assert warm_up([3.0] + [1.0] * 20, [True] * 5 + [False] * 16) == 0


def test_the_median_interval_covers_as_promised() -> None:
    noise = np.random.default_rng(7)
    estimate = [median_interval(noise.lognormal(0, 1, 30)) for _ in range(1000)]
    assert sum(item.low <= 1 <= item.high for item in estimate) >= 930


@pytest.mark.parametrize(
    ("count", "rank", "place"),
    [(64, 90, 1), (130, 95, 1), (662, 99, 1), (200, 90, 10), (1000, 99, 2)],
)
def test_percentiles_are_mlperfs(count: int, rank: int, place: int) -> None:
    """The estimate is the t-th largest run, t as the binomial distribution allows.

    With one run less than the first one takes there is none.
    """
    runs = [float(i) for i in range(count)]
    assert percentile(runs, rank) == runs[-place]
    assert (percentile(runs[:-1], rank) is None) == (place == 1)


@given(st.integers(0, 10_000), st.integers(662, 3000))
def test_percentiles_are_in_order(seed: int, count: int) -> None:
    runs = [float(ms) for ms in np.random.default_rng(seed).lognormal(0, 1, count)]
    estimate = [percentile(runs, rank) for rank in (50, 90, 95, 99)]
    estimates = [value for value in estimate if value is not None]
    assert len(estimates) == 4
    assert estimates == sorted(estimates)
    ordered = sorted(runs)
    for rank, value in zip((90, 95, 99), estimates[1:], strict=True):
        assert value >= ordered[math.floor(len(ordered) * rank / 100)]


def test_mean_log_interval_of_one_is_open() -> None:
    estimate = mean_log_interval([1.5])
    assert estimate.value == pytest.approx(1.5)
    assert (estimate.low, estimate.high) == (0.0, math.inf)


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=20))
def test_mean_log_interval_treats_both_directions_alike(ratios: list[float]) -> None:
    estimate = mean_log_interval(ratios)
    turned = mean_log_interval([1 / ratio for ratio in ratios])
    assert estimate.low <= estimate.value * (1 + 1e-9)
    assert estimate.value <= estimate.high * (1 + 1e-9)
    assert turned.value == pytest.approx(1 / estimate.value)
    assert turned.low == pytest.approx(1 / estimate.high)
    assert turned.high == pytest.approx(1 / estimate.low)


def test_mean_log_interval_is_student_t() -> None:
    logs = [0.0, 0.1, 0.2]
    estimate = mean_log_interval([math.exp(value) for value in logs])
    reach = 4.303 * 0.1 / math.sqrt(3)
    assert estimate.high == pytest.approx(math.exp(0.1 + reach))


def test_mean_log_interval_bears_one_odd_ratio() -> None:
    """From six on the odd one does not count for more than the next; before, it does."""
    logs = [0.0, 0.01, 0.02, 0.03, 0.04, 0.05]
    known = mean_log_interval([math.exp(value) for value in [*logs, 0.06]])
    odd = mean_log_interval([math.exp(value) for value in [*logs, 0.6]])
    assert (odd.low, odd.value, odd.high) == (known.low, known.value, known.high)
    # seven, five of them kept: the standard error of Tukey and McLaughlin by hand
    deviation = np.std([0.01, 0.01, 0.02, 0.03, 0.04, 0.05, 0.05], ddof=1)
    reach = 2.776 * deviation / (5 / 7 * math.sqrt(7))
    assert known.high == pytest.approx(math.exp(0.03 + reach))
    assert mean_log_interval([1.0, 1.01, 1.02, 1.03, 2.0]).high > 1.5


@pytest.mark.parametrize("count", [3, 5, 7])
def test_mean_log_interval_holds_the_truth_so_often(count: int) -> None:
    random = np.random.default_rng(0)
    estimate = [
        mean_log_interval(np.exp(random.normal(size=count) / 50).tolist()) for _ in range(2000)
    ]
    assert 0.92 < np.mean([item.low <= 1 <= item.high for item in estimate]) < 0.98


def test_scatter_is_pooled_over_groups() -> None:
    """Two pairs and a single one have two degrees of freedom, whatever their means."""
    scatter = Scatter.of([[1.0, math.e], [5.0, 5.0], [7.0], []])
    assert scatter.freedom == 2
    assert scatter.deviation == pytest.approx(math.sqrt(0.5 / 2))


def test_others_lend_two_degrees_of_freedom() -> None:
    """The moderated variance and its t by hand; many others lend no more than two."""
    logs = [0.0, 0.1, 0.2]
    ratios = [math.exp(value) for value in logs]
    variance = (2 * 0.1**2 + 2 * 0.05**2) / 4
    reach = 2.776 * math.sqrt(variance / 3)
    for freedom in (2, 20):
        estimate = mean_log_interval(ratios, Scatter(deviation=0.05, freedom=freedom))
        assert math.log(estimate.high) == pytest.approx(0.1 + reach)
    lent_one = mean_log_interval(ratios, Scatter(deviation=0.05, freedom=1))
    assert lent_one.high > math.exp(0.1 + reach)


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("spread", [0.0, 0.8])
def test_borrowed_scatter_holds_the_truth_as_often(count: int, spread: float) -> None:
    """Of configurations that scatter differently, 93 % and more have the truth in the interval.

    All share a default that scatters as well, and one measurement in twelve is four times as far
    off.
    """
    random = np.random.default_rng(0)
    held = []
    for _ in range(1000):
        deviations = np.exp(random.normal(0, spread, size=(5, 1))) / 50
        odd = np.where(random.random((5, count)) < 1 / 12, 4, 1)
        noise = random.normal(size=(5, count)) * odd * deviations
        ratios = np.exp(noise - random.normal(size=count) / 50)
        estimate = mean_log_interval(ratios[0].tolist(), Scatter.of(ratios[1:].tolist()))
        held.append(estimate.low <= 1 <= estimate.high)
    assert np.mean(held) > 0.93


@pytest.mark.parametrize(
    ("ratios", "quiet", "ratio"),
    [
        # hits on a minority of the configuration's own time slices do not move the median
        ([0.8 if i % 4 else 3.0 for i in range(40)], [True] * 40, 0.8),
        # ratios between noisy time slices are left out, however many: they may be biased
        ([1.9] * 10 + [1.2] * 30, [True] * 10 + [False] * 30, 1.9),
        # where hardly a time slice lies between quiet ones, all are taken
        ([1.0] * 19 + [5.0], [False] * 19 + [True], 1.0),
        # a model of seconds a run has three time slices, and two quiet ones count
        ([2.0, 2.1, 9.0], [True, True, False], 2.05),
    ],
    ids=["outvoted", "noisy", "never quiet", "three"],
)
def test_the_ratio_is_that_of_quiet_slices(
    ratios: list[float], quiet: list[bool], ratio: float
) -> None:
    chosen = [ratios[i] for i in chosen_slices(quiet)]
    assert median_interval(chosen).value == pytest.approx(ratio)
