"""The noise check: what repeated measurements of one configuration show."""

from dataclasses import replace

import pytest
from fakes import measurement

from autotune.deploy.config import Interval
from autotune.measure.noise import summarise


def test_the_floor_is_the_largest_deviation() -> None:
    ratios = (1.0, 1.0, 1.03, 0.99)
    measurements = [
        replace(
            measurement(10.0), ratio=Interval(value=ratio, low=ratio, high=ratio), p50_ms=10 * p50
        )
        for ratio, p50 in zip(ratios, (1.0, 1.5, 1.2, 1.1), strict=True)
    ]
    check = summarise(measurements)
    assert check.floor == pytest.approx(0.03)
    assert check.plain_spread == pytest.approx(1.5)
    assert check.contaminated == pytest.approx(4 / (4 * 41))
    assert check.repetitions == 4
