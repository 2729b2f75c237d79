"""Proposers for searches of tables: the model of effects, and Optuna's samplers."""

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import TrialState

from autotune.search.objective import Objective
from autotune.search.proposer import Observation, Prior, Proposal, Proposer
from autotune.search.trial import Limits
from autotune.space.configuration import Configuration
from autotune.space.space import Parameter, Space

EFFECTS = "effects"
_OPTUNA: Mapping[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: optuna.samplers.TPESampler(multivariate=True, group=True, seed=seed),
    "tpe_independent": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "nsga2": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
    "random": lambda seed: RandomSampler(seed=seed),
}
STRATEGIES = (EFFECTS, *_OPTUNA)
# After so many repeated proposals in a row, an unseen neighbour of the last trials is measured.
_MOST_REPEATED = 5


def make_proposer(
    name: str,
    space: Space,
    objectives: Sequence[Objective],
    limits: Limits,
    seed: int,
    prior: Prior | None = None,
) -> Any:
    """Returns what proposes configurations, by its name in :data:`STRATEGIES`."""
    names = [objective.name for objective in objectives]
    if name == EFFECTS:
        return Proposer(space, names, limits.bounds, seed, prior)
    return SamplerProposer(space, names, _OPTUNA[name]((seed * 1_000_003) % 2**32))


class SamplerProposer:
    """Proposes what a sampler of Optuna's suggests, in a study in memory that knows all trials."""

    def __init__(self, space: Space, objectives: Sequence[str], sampler: BaseSampler) -> None:
        self._space = space
        self._objectives = objectives
        self._study = optuna.create_study(
            sampler=sampler, directions=["minimize"] * len(objectives)
        )
        self._told = 0
        self._open: dict[Configuration, optuna.Trial] = {}

    def propose(
        self, observations: Sequence[Observation], taken: Container[Configuration]
    ) -> Proposal | None:
        """Returns the configuration to measure next; None if every configuration is taken."""
        known = {observation.configuration: observation for observation in observations}
        for observation in observations[self._told :]:
            self._tell(self._open.pop(observation.configuration, None), observation)
        self._told = len(observations)
        for _ in range(_MOST_REPEATED):
            trial = self._study.ask()
            configuration = self._space.configuration(lambda p: _suggested(trial, p))  # noqa: B023
            if configuration not in taken:
                self._open[configuration] = trial
                return Proposal(configuration=configuration, gain=math.inf)
            self._tell(trial, known.get(configuration))
        around = [observation.configuration for observation in reversed(observations)]
        unseen = unseen_neighbour(self._space, taken, around)
        return None if unseen is None else Proposal(configuration=unseen, gain=math.inf)

    def _tell(self, trial: optuna.Trial | None, observation: Observation | None) -> None:
        """Tells the sampler what came of a trial of its own, or of one that it did not suggest."""
        values = None
        if observation is not None and observation.values is not None:
            values = [observation.values[name] for name in self._objectives]
        state = TrialState.PRUNED if values is None else TrialState.COMPLETE
        violations = observation.violations if observation else {"valid": 1.0}
        if trial is not None:
            for name, violation in violations.items():
                trial.set_constraint(name, violation)
            self._study.tell(trial, values, state=state)
        elif observation is not None:
            inside = self._space.assignment(
                self._space.nearest(observation.configuration.to_json())
            )
            domains = {p.name: CategoricalDistribution(p.values) for p in self._space.parameters}
            self._study.add_trial(
                optuna.trial.create_trial(
                    state=state,
                    params=inside,
                    distributions={name: domains[name] for name in inside},
                    values=values,
                    constraints=dict(violations),
                )
            )


def _suggested(trial: optuna.Trial, parameter: Parameter) -> Any:
    return trial.suggest_categorical(parameter.name, parameter.values)


def unseen_neighbour(
    space: Space, taken: Container[Configuration], around: Iterable[Configuration]
) -> Configuration | None:
    """Returns a configuration that was not measured yet, near the given ones if possible.

    None means that the space is exhausted (or too large to tell and well covered around them).
    """
    for centre in around:
        for configuration in space.neighbours(centre):
            if configuration not in taken:
                return configuration
    return next((c for c in space.configurations or () if c not in taken), None)
