"""What is made small, and who is given up early."""

from dataclasses import replace

import pytest
from fakes import measurement

from autotune.deploy.config import Interval
from autotune.measure.outcome import Failure, Measurement
from autotune.search.objective import DEFAULT, OBJECTIVES, complete, find, is_beaten, values

_BOTH = find(DEFAULT)
_RIVALS = [values(measurement(10.0, 100.0)), values(measurement(20.0, 50.0))]


def _under_way(latency_ms: float, memory_mib: float, reach: float = 0.02) -> Measurement:
    found = measurement(latency_ms, memory_mib)
    ratio = found.ratio.value
    return replace(
        found, ratio=Interval(value=ratio, low=ratio * (1 - reach), high=ratio * (1 + reach))
    )


@pytest.mark.parametrize(
    ("latency_ms", "memory_mib", "reach", "beaten"),
    [
        (15.0, 100.0, 0.02, True),  # slower than the first, as large
        (15.0, 120.0, 0.02, True),
        (15.0, 90.0, 0.02, False),  # leaner than the first, faster than the second
        (25.0, 60.0, 0.02, True),  # beaten by the second
        (10.2, 100.0, 0.02, False),  # within the noise of the first
        (15.0, 100.0, 0.5, False),  # not known well enough
        (9.0, 110.0, 0.02, False),
        (10.2, 110.0, 0.001, True),  # as fast, and clearly larger
    ],
)
def test_only_the_hopeless_is_beaten(
    latency_ms: float, memory_mib: float, reach: float, beaten: bool
) -> None:
    """A candidate goes on while its best case has a place on the front."""
    assert is_beaten(_under_way(latency_ms, memory_mib, reach), _RIVALS, _BOTH) is beaten


def test_nobody_is_beaten_without_rivals() -> None:
    """The first of all has nobody to lose to."""
    assert not is_beaten(_under_way(1e6, 1e6), [], _BOTH)


def test_a_percentile_is_never_raced() -> None:
    """Of a percentile nothing is known before all runs are there."""
    objectives = find(["p99_ms"])
    assert not is_beaten(_under_way(1e6, 1e6), [{"p99_ms": 1.0}], objectives)


def test_a_measurement_without_its_objective_is_none() -> None:
    """Too few runs for a percentile that is an objective make a failure that says so."""
    found = complete(measurement(10.0), find(["p99_ms"]))
    assert isinstance(found, Failure)
    assert "662" in found.message
    assert complete(measurement(10.0), _BOTH) == measurement(10.0)


def test_values_are_those_that_are_known() -> None:
    """Without runs for a percentile, a device, or a second client there is no value of these."""
    lacking = {"p99_ms", "peak_device_memory_mib", "throughput_per_s"}
    assert set(values(measurement(10.0))) == set(OBJECTIVES) - lacking
    assert values(measurement(10.0, 70.0), _BOTH) == {"latency_ms": 10.0, "peak_memory_mib": 70.0}
