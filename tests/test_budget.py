"""What a budget pays for, by a clock that the test moves."""

import math
from dataclasses import dataclass

import pytest

from autotune.results.final_comparison import Budget


@dataclass
class _Clock:
    """A clock that a test moves."""

    now_s: float = 100.0

    def monotonic(self) -> float:
        return self.now_s


def test_the_time_left_pays_for_measurements_of_the_mean_length() -> None:
    """Four measurements of 2 s leave 12 s of 20, which pay for six; half of the time for one."""
    clock = _Clock()
    budget = Budget(20.0, clock.monotonic)
    clock.now_s += 8.0
    budget.book(4, 8.0)
    assert budget.pays_for() == pytest.approx(6.0)
    assert budget.pays_for(reserve=0.5) == pytest.approx(1.0)


def test_other_work_takes_time_and_is_no_measurement() -> None:
    """A model of effects that takes 4 s leaves less time, and measurements as cheap as before."""
    clock = _Clock()
    budget = Budget(20.0, clock.monotonic)
    budget.book(4, 8.0)
    clock.now_s += 12.0
    assert budget.pays_for() == pytest.approx(4.0)


def test_a_spent_budget_pays_for_nothing() -> None:
    clock = _Clock()
    budget = Budget(20.0, clock.monotonic)
    budget.book(1, 1.0)
    clock.now_s += 30.0
    assert budget.pays_for() < 0


def test_what_a_measurement_takes_is_unknown_before_the_first() -> None:
    """The first round is played whole; without a limit, all of them."""
    assert Budget(1.0).pays_for() == math.inf
    unlimited = Budget()
    unlimited.book(10, 1e6)
    assert unlimited.pays_for() == math.inf
