"""What is made small, and who is given up early."""

from dataclasses import replace

import pytest
from fakes import measurement, under_load

from autotune.deploy.config import Interval
from autotune.measure.outcome import Failure, Measurement
from autotune.search.objective import (
    DEFAULT,
    LOADED_DEFAULT,
    OBJECTIVES,
    RATES,
    complete,
    find,
    is_dominated,
    product,
    values,
)

_BOTH = find(DEFAULT)
_RIVALS = [values(measurement(10.0, 100.0)), values(measurement(20.0, 50.0))]


def _under_way(latency_ms: float, memory_mib: float, reach: float = 0.02) -> Measurement:
    plain = measurement(latency_ms, memory_mib)
    ratio = plain.ratio.value
    return replace(
        plain, ratio=Interval(value=ratio, low=ratio * (1 - reach), high=ratio * (1 + reach))
    )


@pytest.mark.parametrize(
    ("latency_ms", "memory_mib", "reach", "dominated"),
    [
        (15.0, 100.0, 0.02, True),  # slower than the first, as large
        (15.0, 120.0, 0.02, True),
        (15.0, 90.0, 0.02, False),  # leaner than the first, faster than the second
        (25.0, 60.0, 0.02, True),  # dominated by the second
        (10.2, 100.0, 0.02, False),  # within the noise of the first
        (15.0, 100.0, 0.5, False),  # not known well enough
        (9.0, 110.0, 0.02, False),
        (10.2, 110.0, 0.001, True),  # as fast, and clearly larger
    ],
)
def test_only_the_hopeless_is_dominated(
    latency_ms: float, memory_mib: float, reach: float, dominated: bool
) -> None:
    assert is_dominated(_under_way(latency_ms, memory_mib, reach), _RIVALS, _BOTH) is dominated


def test_without_rivals_and_for_a_percentile_nothing_is_stopped_early() -> None:
    hopeless = _under_way(1e6, 1e6)
    assert not is_dominated(hopeless, [], _BOTH)
    assert not is_dominated(hopeless, [{"p99_ms": 1.0}], find(["p99_ms"]))


def test_a_measurement_without_its_objective_is_none() -> None:
    outcome = complete(measurement(10.0), find(["p99_ms"]))
    assert isinstance(outcome, Failure)
    assert "662" in outcome.message
    assert complete(measurement(10.0), _BOTH) == measurement(10.0)


def test_values_are_those_that_are_known() -> None:
    lacking = {"p99_ms", "peak_device_memory_mib", "throughput_per_s", "tokens_per_s", "ttft_ms"}
    assert set(values(measurement(10.0))) == set(OBJECTIVES) - lacking
    assert values(measurement(10.0, 70.0), _BOTH) == {"latency_ms": 10.0, "peak_memory_mib": 70.0}


_THROUGHPUT = OBJECTIVES["throughput_per_s"]


def test_more_throughput_is_better() -> None:
    assert [o.name for o in OBJECTIVES.values() if o.maximised] == list(RATES)
    assert _THROUGHPUT.is_better(110.0, 100.0)
    assert not _THROUGHPUT.is_better(100.5, 100.0)
    assert not _THROUGHPUT.is_better(90.0, 100.0)
    assert _THROUGHPUT.cost(200.0) < _THROUGHPUT.cost(100.0)
    assert _THROUGHPUT.gain(200.0, 100.0) == pytest.approx(2.0)
    assert _THROUGHPUT.better_by(100.0, 0.1) == pytest.approx(110.0)
    assert OBJECTIVES["latency_ms"].gain(5.0, 10.0) == 2.0


def test_throughput_is_clients_over_latency() -> None:
    assert _THROUGHPUT.of(under_load(measurement(10.0), 4)) == pytest.approx(400.0)
    assert _THROUGHPUT.of(measurement(10.0)) is None


@pytest.mark.parametrize(("latency_ms", "dominated"), [(12.0, True), (10.0, False), (8.0, False)])
def test_a_configuration_that_serves_less_is_dominated(latency_ms: float, dominated: bool) -> None:
    objectives = find(LOADED_DEFAULT)
    rival = values(under_load(measurement(10.0), 4), objectives)
    own = under_load(_under_way(latency_ms, 100.0), 4)
    assert is_dominated(own, [rival], objectives) is dominated


def test_a_balanced_choice_counts_throughput_as_a_cost() -> None:
    objectives = find(LOADED_DEFAULT)
    once, twice = (
        product({"throughput_per_s": t, "peak_memory_mib": 50.0}, objectives) for t in (100, 200)
    )
    assert twice == pytest.approx(once / 2)
