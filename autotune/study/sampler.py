"""The model of effects as a sampler, for any Optuna study over categorical parameters.

Such as::

    study = optuna.create_study(sampler=EffectsSampler(seed=0))
"""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.search.coding import Floats
from autotune.search.proposer import Observation, Proposer
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.space import Parameter, Space

# A plain study begins with so many trials that spread over all choices before the model proposes.
_FIRST_TRIALS = 10
# The models expect that one value changes the logarithm of an objective by a fifth or so.
_SPREAD = 0.3

Choices = Mapping[str, CategoricalDistribution]
"""The parameters of a plain study, by name."""


class EffectsSampler(BaseSampler):
    """Proposes configurations by a model of the effects of values, pairs and graph parameters.

    The first trial takes the first choice of each parameter, the next ones spread over all choices,
    and then the model proposes the configuration with the largest expected gain of hypervolume. No
    configuration is proposed twice before all are measured. Any number of objectives in any
    direction, constraints and pruned trials are learnt from. Parameters that are no choices, and
    those that not every trial has, are chosen at random.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._others = RandomSampler(seed=seed)
        self._seed = seed
        self._random = np.random.default_rng(seed)
        self._common = IntersectionSearchSpace()
        self._choices: dict[str, CategoricalDistribution] = {}
        self._proposer: Proposer | None = None
        self._lock = threading.Lock()

    def infer_relative_search_space(
        self,
        study: optuna.Study,
        trial: FrozenTrial,  # noqa: ARG002  # Optuna names it
    ) -> dict[str, BaseDistribution]:
        """Returns the categorical parameters that all finished trials have."""
        common = self._common.calculate(study)
        return {
            name: domain
            for name, domain in common.items()
            if isinstance(domain, CategoricalDistribution) and not domain.single()
        }

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Returns the values of the proposed configuration."""
        choices = {n: d for n, d in search_space.items() if isinstance(d, CategoricalDistribution)}
        others = search_space.keys() - choices.keys()
        values = {
            name: self.sample_independent(study, trial, name, search_space[name]) for name in others
        }
        if choices:
            with self._lock:
                numbers = self._proposed(study, trial, choices)
            values |= {name: domain.choices[numbers[name]] for name, domain in choices.items()}
        return values

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Returns the first choice in the first trial, then a choice that few trials had."""
        if not isinstance(param_distribution, CategoricalDistribution):
            return self._others.sample_independent(study, trial, param_name, param_distribution)
        if trial.number == 0:
            return param_distribution.choices[0]
        trials = study.get_trials(deepcopy=False)
        with self._lock:
            number = least_tried(trials, param_name, param_distribution, self._random)
        return param_distribution.choices[number]

    def reseed_rng(self) -> None:
        """Gives the sampler a new random seed."""
        self._others.reseed_rng()
        self._random = np.random.default_rng()
        self._proposer = None

    def _proposed(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        choices: dict[str, CategoricalDistribution],
    ) -> dict[str, int]:
        """Returns the numbers of the choices to try next."""
        trials = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
        observations = observations_of(study, choices)
        if len(observations) < _FIRST_TRIALS:
            return {n: least_tried(trials, n, d, self._random) for n, d in choices.items()}
        configurations = (
            configuration_of(t, choices) for t in trials if t.state != TrialState.FAIL
        )
        taken = {configuration for configuration in configurations if configuration is not None}
        if self._proposer is None or self._choices != choices:
            self._proposer = Proposer(space_of(choices), names_of(study), {}, self._seed)
            self._choices = choices
        proposal = self._proposer.propose(observations, taken)
        if proposal is None:  # every configuration is measured
            return {n: least_tried(trials, n, d, self._random) for n, d in choices.items()}
        numbers = {name: int(number) for name, number in proposal.configuration.values}
        return {name: numbers.get(name, 0) for name in choices}


def space_of(choices: Choices) -> Space:
    """Returns the search space over the numbers of the choices."""
    parameters = tuple(
        Parameter(
            name=name,
            values=tuple(range(len(distribution.choices))),
            default=0,
            when={},
            unless={},
            needs=(),
        )
        for name, distribution in choices.items()
    )
    return Space(name="optuna", description="", parameters=parameters, left_out={})


def configuration_of(trial: FrozenTrial, choices: Choices) -> Configuration | None:
    """Returns the configuration of a trial; None where its parameters or choices are others."""
    if any(trial.distributions.get(name) != domain for name, domain in choices.items()):
        return None
    numbers = {
        name: int(domain.to_internal_repr(trial.params[name])) for name, domain in choices.items()
    }
    return Configuration(tuple(sorted((name, n) for name, n in numbers.items() if n)))


def observations_of(study: optuna.Study, choices: Choices) -> list[Observation]:
    """Returns the finished trials of the study, the default among them.

    Objectives are brought to one scale: the logarithm of positive values that are minimised, other
    values as they are, maximised ones negated; then both shifted and stretched to the spread that
    the models expect. A pruned trial and one that breaks a constraint count as failed; a pruned one
    has the worst value of all, or its unseen choices would look promising for ever. Where the
    default was not measured, the median of all trials stands for it.
    """
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    trials = study.get_trials(deepcopy=False, states=states)
    configurations = [configuration_of(trial, choices) for trial in trials]
    usable = [(t, c) for t, c in zip(trials, configurations, strict=True) if c is not None]
    complete = [_has_finite_values(trial) for trial, _ in usable]
    values = [trial.values for (trial, _), ok in zip(usable, complete, strict=True) if ok]
    scaled = _scaled(np.asarray(values, float), study.directions) if values else None
    worst = None if scaled is None else _by_name(scaled.max(axis=0))
    rows = iter(() if scaled is None else scaled)
    observations = [
        Observation(
            configuration=configuration,
            values=_by_name(next(rows)) if ok else worst,
            violations={"valid": -1.0 if ok and _is_feasible(trial) else 1.0, "error": -1.0},
        )
        for (trial, configuration), ok in zip(usable, complete, strict=True)
    ]
    if not any(o.configuration == BASELINE and o.values is not None for o in observations):
        observations = [o for o in observations if o.configuration != BASELINE]
        middle = [1.0] * len(study.directions)
        observations.append(
            Observation(
                configuration=BASELINE,
                values=_by_name(middle),
                violations={"valid": -1.0, "error": -1.0},
            )
        )
    return observations


def names_of(study: optuna.Study) -> list[str]:
    """Returns a name for each objective of the study."""
    return [f"objective {i}" for i in range(len(study.directions))]


def _by_name(values: Sequence[float] | Floats) -> dict[str, float]:
    return {f"objective {i}": float(value) for i, value in enumerate(values)}


def _has_finite_values(trial: FrozenTrial) -> bool:
    return trial.state == TrialState.COMPLETE and bool(np.isfinite(trial.values).all())


def _is_feasible(trial: FrozenTrial) -> bool:
    return max(trial.constraints.values(), default=0.0) <= 0


def _scaled(values: Floats, directions: Sequence[StudyDirection]) -> Floats:
    """Returns positive values, lower is better, around 1; rows are trials, columns objectives."""
    signs = np.asarray([-1.0 if d == StudyDirection.MAXIMIZE else 1.0 for d in directions])
    signed = values * signs
    columns = []
    for column in signed.T:
        level = np.log(column) if (column > 0).all() else column
        spread = float(level.std())
        shifted = level - float(np.median(level))
        # a difference of e is the farthest that one outlier may lie
        columns.append(np.exp(np.clip(shifted * _SPREAD / spread, -3, 3) if spread else shifted))
    scaled: Floats = np.stack(columns, axis=1)
    return scaled


def least_tried(
    trials: Sequence[FrozenTrial],
    name: str,
    domain: CategoricalDistribution,
    random: np.random.Generator,
) -> int:
    """Returns the number of a choice of the parameter `name` that few trials had."""
    counts = np.zeros(len(domain.choices))
    for trial in trials:
        if trial.distributions.get(name) == domain:
            counts[int(domain.to_internal_repr(trial.params[name]))] += 1
    fewest = np.flatnonzero(counts == counts.min())
    return int(random.choice(fewest))
