"""What the kernel says of the neighbours, and the noise check made of measurements."""

from dataclasses import replace

import pytest
from fakes import measurement

from autotune.deploy.config import Interval
from autotune.measure.machine import Disturbance, disturbance, parse_pressure, parse_stolen
from autotune.measure.noise import summarise


def test_stolen_time_is_the_eighth_counter() -> None:
    """As proc_stat(5) has it; older or other systems tell nothing."""
    assert parse_stolen("cpu  393088 0 27355 2011620 1630 0 651 223 0 0\n") == 223
    assert parse_stolen("cpu  393088 0 27355 2011620\n") == 0
    assert parse_stolen("") == 0


def test_pressure_is_the_total_of_some() -> None:
    """The line of the kernel's pressure stall information."""
    line = "some avg10=0.07 avg60=0.22 avg300=0.14 total=871327997\n"
    assert parse_pressure(line) == 871327997
    assert parse_pressure("") == 0


def test_counters_only_grow() -> None:
    """What is added between two looks is never negative."""
    first = disturbance()
    added = disturbance().since(first)
    assert added.stolen_ticks >= 0
    assert added.pressure_us >= 0
    assert Disturbance(stolen_ticks=5, pressure_us=7).since(
        Disturbance(stolen_ticks=2, pressure_us=3)
    ) == Disturbance(stolen_ticks=3, pressure_us=4)


def test_the_floor_is_the_largest_deviation() -> None:
    """Repetitions 3 % apart at most from their median make a floor of 3 %."""
    ratios = (1.0, 1.0, 1.03, 0.99)
    found = [
        replace(
            measurement(10.0), ratio=Interval(value=ratio, low=ratio, high=ratio), p50_ms=10 * p50
        )
        for ratio, p50 in zip(ratios, (1.0, 1.5, 1.2, 1.1), strict=True)
    ]
    check = summarise(found, 4)
    assert check.floor == pytest.approx(0.03)
    assert check.plain_spread == pytest.approx(1.5)
    assert check.contaminated == pytest.approx(4 / (4 * 41))
    assert (check.stolen_ticks, check.repetitions) == (4, 4)
