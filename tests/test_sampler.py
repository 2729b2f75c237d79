"""EffectsSampler in plain Optuna studies, by Optuna's own tests and by tests of its promises.

Of Optuna's test cases for samplers these do not apply: ``SingleOnlySamplerTestCase``, because any
number of objectives is modelled.
"""

from collections.abc import Callable

import numpy as np
import optuna
import pytest
from optuna.samplers import BaseSampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    MultiObjectiveSamplerTestCase,
    RelativeSamplerTestCase,
)

from autotune.study.sampler import EffectsSampler

pytestmark = pytest.mark.usefixtures("quiet")


class TestWithOptunasCases(
    BasicSamplerTestCase, RelativeSamplerTestCase, MultiObjectiveSamplerTestCase
):
    """The cases that Optuna publishes for samplers."""

    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return lambda: EffectsSampler(seed=0)


def _latency(trial: optuna.Trial) -> float:
    threads = trial.suggest_categorical("threads", [1, 2, 4])
    layout = str(trial.suggest_categorical("layout", ["plain", "blocked", None]))
    spin = trial.suggest_categorical("spin", [True, False])
    trial.suggest_categorical("unused", ["a", "b", "c", "d"])
    return 10.0 / threads * {"plain": 1.0, "blocked": 0.6, "None": 1.3}[layout] * (1.2 - 0.4 * spin)


def test_the_first_trial_takes_the_first_choices() -> None:
    study = optuna.create_study(sampler=EffectsSampler(seed=1))
    study.optimize(_latency, n_trials=1)
    expected = {"threads": 1, "layout": "plain", "spin": True, "unused": "a"}
    assert study.trials[0].params == expected


def test_the_best_is_found_in_few_trials() -> None:
    """Of 72 configurations with additive effects, the best is found in 16 trials for every seed."""
    for seed in range(5):
        study = optuna.create_study(sampler=EffectsSampler(seed=seed))
        study.optimize(_latency, n_trials=16)
        assert study.best_value == pytest.approx(10 / 4 * 0.6 * 0.8)


def test_nothing_is_proposed_twice_by_the_model() -> None:
    study = optuna.create_study(sampler=EffectsSampler(seed=0))
    study.optimize(_latency, n_trials=60)
    proposed = [tuple(trial.params.values()) for trial in study.trials[10:]]
    assert len(set(proposed)) == len(proposed)
    study.optimize(_latency, n_trials=40)
    assert len({tuple(trial.params.values()) for trial in study.trials}) == 72


def test_maximising_mirrors_minimising() -> None:
    down = optuna.create_study(sampler=EffectsSampler(seed=3))
    up = optuna.create_study(sampler=EffectsSampler(seed=3), direction="maximize")
    down.optimize(lambda trial: -1.0 / _latency(trial), n_trials=15)
    up.optimize(lambda trial: 1.0 / _latency(trial), n_trials=15)
    assert [t.params for t in down.trials] == [t.params for t in up.trials]


def test_pruned_trials_do_not_mislead() -> None:

    def objective(trial: optuna.Trial) -> float:
        value = _latency(trial)
        if trial.params["layout"] == "blocked":
            raise optuna.TrialPruned
        return value

    for seed in range(3):
        study = optuna.create_study(sampler=EffectsSampler(seed=seed))
        study.optimize(objective, n_trials=20)
        assert study.best_value == pytest.approx(10 / 4 * 0.8)


def test_constraints_are_kept() -> None:

    def objective(trial: optuna.Trial) -> float:
        value = _latency(trial)
        trial.set_constraint("threads", trial.params["threads"] - 2)
        return value

    study = optuna.create_study(sampler=EffectsSampler(seed=0))
    study.optimize(objective, n_trials=20)
    kept = [t.value for t in study.trials if t.params["threads"] <= 2 and t.value is not None]
    assert min(kept) == pytest.approx(10 / 2 * 0.6 * 0.8)


def test_two_objectives_give_a_front() -> None:

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        latency = _latency(trial)
        memory = 100.0 * (1 + trial.params["threads"]) * (1.5 if trial.params["spin"] else 1.0)
        return latency, memory

    study = optuna.create_study(sampler=EffectsSampler(seed=0), directions=["minimize", "minimize"])
    study.optimize(objective, n_trials=25)
    latencies, memories = np.asarray([trial.values for trial in study.best_trials]).T
    assert latencies.min() == pytest.approx(1.2)
    assert memories.min() == pytest.approx(200.0)


def test_parameters_that_come_and_go_are_chosen_at_random() -> None:

    def objective(trial: optuna.Trial) -> float:
        kind = trial.suggest_categorical("kind", ["one", "two", "three"])
        if kind == "two":
            return 1.0 + trial.suggest_categorical("depth", [0, 1, 2])
        return 5.0

    study = optuna.create_study(sampler=EffectsSampler(seed=0))
    study.optimize(objective, n_trials=20)
    assert study.best_value == 1.0


def test_several_threads_share_a_sampler() -> None:
    study = optuna.create_study(sampler=EffectsSampler(seed=0))
    study.optimize(_latency, n_trials=30, n_jobs=3)
    assert all(trial.state == optuna.trial.TrialState.COMPLETE for trial in study.trials)
    assert study.best_value == pytest.approx(1.2)
