"""The sequential test of a metric: its error rates by simulation, and what it needs."""

import numpy as np
import pytest

from autotune.measure.sequential import BEYOND, UNDECIDED, WITHIN, look, looks_at

_LIMIT = 0.01
_DRAWS = 400
# the share of so many draws scatters by 1.1 points around a true share of 5 %
_MOST = 0.05 + 2 * 0.011


def _decide(differences: list[float], samples: int) -> tuple[str, int]:
    """Returns the decision on these samples, and how many of them were needed."""
    for size in looks_at(samples):
        decision, _ = look(differences[:size], samples, _LIMIT)
        if decision != UNDECIDED:
            return decision, size
    return UNDECIDED, samples


def _draws(drop: float, disagreement: float, samples: int) -> list[tuple[str, int]]:
    """Returns the decisions on draws of labels that two models get right or wrong."""
    random = np.random.default_rng(7)
    worse, better = (disagreement + drop) / 2, (disagreement - drop) / 2
    rows = random.choice([-1.0, 1.0, 0.0], (_DRAWS, samples), p=[worse, better, 1 - disagreement])
    return [_decide(row, samples) for row in rows.tolist()]


def _share(decision: str, draws: list[tuple[str, int]]) -> float:
    return sum(found == decision for found, _ in draws) / len(draws)


@pytest.mark.parametrize(("disagreement", "samples"), [(0.01, 2000), (0.03, 5000), (0.2, 500)])
def test_a_drop_of_one_point_is_found_in_95_percent(disagreement: float, samples: int) -> None:
    draws = _draws(0.01, disagreement, samples)
    assert _share(WITHIN, draws) <= _MOST
    assert _share(BEYOND, draws) <= _MOST


@pytest.mark.parametrize(("disagreement", "samples"), [(0.01, 2000), (0.03, 5000)])
def test_no_drop_is_a_false_alarm_in_at_most_5_percent(disagreement: float, samples: int) -> None:
    draws = _draws(0.0, disagreement, samples)
    assert _share(BEYOND, draws) <= _MOST
    assert _share(WITHIN, draws) >= 1 - _MOST
    assert np.mean([size for _, size in draws]) < 0.8 * samples


def test_a_large_drop_is_found_at_the_first_look() -> None:
    """A third of the labels is lost: 64 samples suffice."""
    assert _decide([-1.0, 0.0, 0.0] * 4000, 10_000) == (BEYOND, 64)


def test_samples_that_agree_prove_nothing_while_they_are_few() -> None:
    """Sixty equal labels do not show that fewer than one in a hundred is lost; 2,000 do."""
    assert _decide([0.0] * 60, 60) == (UNDECIDED, 60)
    decision, size = _decide([0.0] * 2000, 2000)
    assert decision == WITHIN
    assert size < 2000


def test_values_between_right_and_wrong_need_few_samples() -> None:
    assert _decide([-0.001, -0.0012] * 250, 500) == (WITHIN, 64)


def test_the_last_look_is_at_all_samples() -> None:
    assert looks_at(300) == [64, 128, 256, 300]
    assert looks_at(10) == [10]
