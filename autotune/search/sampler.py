"""Optuna's sampler of a study by the model of effects: which configuration is measured next."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from autotune.search.objective import Objective
from autotune.search.proposer import Observation, Prior, Proposal, Proposer, observe
from autotune.search.record import Record
from autotune.search.trial import Limits
from autotune.space.configuration import Configuration
from autotune.space.space import Parameter, Space

# The search ends early when for so many trials nothing came onto the front, and for so many in a
# row no configuration promised that much more hypervolume.
_STILL_TRIALS = 25
_STILL_PROPOSALS = 10
_WORTH_A_TRIAL = 0.004
# By this share of the budget more than one value of each parameter was tried.
_SEEN_BY = 0.6


class EffectsSampler(BaseSampler):
    """Samples the configuration with the largest expected gain of hypervolume.

    The gain is that of models of what each value, pair of values and set of graph parameters
    changes. No configuration is sampled twice, nor one that another worker measures.

    Args:
        record: The trials of the study that it samples for.
        names: The parameters' names in Optuna's study; those of the space if None.
        budget: How many trials the study may have in all.
        early_stop: Whether the search ends when nothing more is to be expected.
    """

    def __init__(
        self,
        space: Space,
        objectives: Sequence[Objective],
        limits: Limits,
        record: Record,
        *,
        seed: int | None = 0,
        prior: Prior | None = None,
        names: Mapping[str, str] | None = None,
        budget: int = 100,
        early_stop: bool = True,
    ) -> None:
        self._space = space
        self._objectives = objectives
        self._limits = limits
        self._record = record
        self._names = names or {p.name: p.name for p in space.parameters}
        self._budget = budget
        self._early_stop = early_stop
        self._random = np.random.default_rng(seed)
        self._proposer = Proposer(
            space, [objective.name for objective in objectives], limits.bounds, seed, prior
        )
        self._observations: dict[int, Observation] = {}
        self._next: Configuration | None = None
        self._planned: list[Configuration] = []
        self._still_proposals = 0
        self._unseen_planned = False

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Returns the parameters that have several values."""
        del study, trial
        return {
            self._names[p.name]: CategoricalDistribution(p.values)
            for p in self._space.parameters
            if len(p.values) > 1
        }

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Returns the values of the active parameters of the proposed configuration."""
        self._record.read(study, trial.number)
        if self._next is None or self._next in self._record:
            self._look_ahead()
        configuration, self._next = self._next, None
        if configuration is None:  # nothing is left, or nothing is known yet
            configuration = self._space.configuration(self._drawn)
        values = self._space.assignment(configuration)
        named = {self._names[name]: value for name, value in values.items()}
        return {name: value for name, value in named.items() if name in search_space}

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Returns a value of a parameter beside those that a trial began with, at random."""
        del study, trial, param_name
        assert isinstance(param_distribution, CategoricalDistribution)
        return self._random.choice(np.asarray(param_distribution.choices, object))

    def reseed_rng(self) -> None:
        """Gives the sampler another random seed."""
        self._random = np.random.default_rng()

    def reason_to_end(self, study: optuna.Study) -> str:
        """Returns why nothing is left to measure, or worth it; empty where something is."""
        self._record.read(study)
        if self._record.waiting:
            return ""
        return self._look_ahead()

    def _look_ahead(self) -> str:
        """Chooses the next configuration; returns why there is none."""
        self._next = None
        if not self._planned and len(self._record.trials) >= self._budget * _SEEN_BY:
            self._plan_unseen_values()
        self._next = self._next_planned()
        if self._next is not None or not self._knows_the_default:
            return ""
        proposal = self._proposer.propose(self._observed(), self._record)
        if proposal is None:
            return "every configuration is measured"
        if self._is_promising(proposal):
            self._next = proposal.configuration
            return ""
        self._plan_unseen_values()
        self._next = self._next_planned()
        if self._next is not None:
            return ""
        return (
            f"the front has not moved for {self._trials_since_front()} trials, and no "
            f"configuration promises over {100 * _WORTH_A_TRIAL:.1f} %"
        )

    @property
    def _knows_the_default(self) -> bool:
        baseline = self._record.baseline
        return baseline is not None and baseline.measurement is not None

    def _drawn(self, parameter: Parameter) -> Any:
        return parameter.values[self._random.integers(len(parameter.values))]

    def _next_planned(self) -> Configuration | None:
        while self._planned:
            configuration = self._planned.pop(0)
            if configuration not in self._record:
                return configuration
        return None

    def _observed(self) -> list[Observation]:
        for trial in self._record.trials:
            if trial.number not in self._observations:
                observation = observe(trial, self._objectives, self._limits)
                self._observations[trial.number] = observation
        return [self._observations[trial.number] for trial in self._record.trials]

    def _is_promising(self, proposal: Proposal) -> bool:
        """Returns whether a proposal is worth a trial, or the search is too young to end."""
        promising = proposal.gain >= _WORTH_A_TRIAL
        self._still_proposals = 0 if promising else self._still_proposals + 1
        if not self._early_stop or not self._record.front:
            return True  # nothing keeps the limits yet
        configurations = self._space.configurations
        if configurations is not None and len(configurations) <= self._budget:
            return True  # few enough to measure all of them
        still = self._trials_since_front() >= _STILL_TRIALS
        return not still or self._still_proposals < _STILL_PROPOSALS

    def _trials_since_front(self) -> int:
        newest = max((trial.number for trial in self._record.front), default=0)
        return sum(trial.number > newest for trial in self._record.trials)

    def _plan_unseen_values(self) -> None:
        """Plans the best so far with another value of each parameter that had one value alone.

        Where every good trial had the same value, the model may take that value for the reason.
        """
        best = self._record.best or self._record.baseline
        if best is None or self._unseen_planned:
            return
        self._unseen_planned = True
        assignments = [self._space.assignment(t.configuration) for t in self._record.trials]
        for parameter in self._space.parameters:
            seen = {chosen[parameter.name] for chosen in assignments if parameter.name in chosen}
            unseen = [value for value in parameter.values if value not in seen]
            if len(seen) > 1:
                continue
            holds = {name: wanted[0] for name, wanted in parameter.when.items()}
            for value in reversed(unseen):
                wanted = {**best.configuration.to_json(), **holds, parameter.name: value}
                other = self._space.nearest(wanted)
                # some values cannot be chosen beside the others
                if self._space.assignment(other).get(parameter.name) == value:
                    self._planned.append(other)
                    break
