"""The samplers of a study: autotune's own, and Optuna's behind the same first candidates.

:class:`EffectsSampler` works in any Optuna study over categorical parameters::

    study = optuna.create_study(sampler=EffectsSampler(seed=0))
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.trial import FrozenTrial, TrialState

from autotune.deploy.options import Value
from autotune.errors import RequestError, did_you_mean
from autotune.search.planner import Planner, Standing
from autotune.search.portfolio import DEFAULT_SAMPLER
from autotune.search.proposer import Proposer
from autotune.space.candidate import Candidate
from autotune.space.space import Space
from autotune.study.plain_study import (
    candidate_of,
    least_tried,
    names_of,
    observations_of,
    space_of,
)

OUTSIDE = "outside"
"""User attribute of a trial whose candidate has values outside the space: its parameters."""

# A plain study begins with so many trials that spread over all choices before the model proposes.
_FIRST_TRIALS = 10
_TOLERANCE = 0.01

_OPTUNA: Mapping[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: optuna.samplers.TPESampler(multivariate=True, group=True, seed=seed),
    "tpe_independent": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "nsga2": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "brute": lambda seed: optuna.samplers.BruteForceSampler(seed=seed),
}
SAMPLERS = (DEFAULT_SAMPLER, *_OPTUNA)
"""The names that ``--sampler`` takes."""


def check_sampler(name: str) -> None:
    """Refuses a name that no sampler has.

    Raises:
        RequestError: no sampler has it.
    """
    if name not in SAMPLERS:
        near = did_you_mean(name, SAMPLERS)
        raise RequestError(f"--sampler must be one of {', '.join(SAMPLERS)}, not '{name}'.{near}")


class PlannedSampler(BaseSampler):
    """Suggests the candidates of a plan; where the plan has none, another sampler chooses.

    Optuna's ``enqueue_trial`` could plan as well, but another worker of the study may take what is
    enqueued.

    Args:
        planner: Decides the candidates; None leaves every trial to the other sampler.
        other: The other sampler.
    """

    def __init__(self, planner: Planner | None, other: BaseSampler) -> None:
        self._planner = planner
        self._other = other
        self._next: Candidate | None = None
        # by number of the trial: several threads may run trials at once
        self._assignments: dict[int, Mapping[str, Value]] = {}

    @property
    def ended(self) -> str:
        """Why :meth:`plan_next` found nothing to measure; empty if it did."""
        return self._planner.ended if self._planner else ""

    def plan_next(self, standing: Standing, duplicates: int = 0) -> bool:
        """Decides the candidate of the next trial; returns False if nothing is left to measure.

        Args:
            standing: The state of the search.
            duplicates: How many trials in a row repeated a measured candidate.
        """
        assert self._planner is not None
        self._next = self._planner.decide(standing, duplicates)
        return not self._planner.ended

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Gives the planned candidate to the trial, or lets the other sampler prepare."""
        planned, self._next = self._next, None
        if planned is None or self._planner is None:
            self._other.before_trial(study, trial)
            return
        space = self._planner.space
        inside = space.nearest(planned.to_json())
        self._assignments[trial.number] = space.assignment(inside)
        if inside != planned:
            # Optuna's storage takes no value outside the space; the attribute keeps the candidate
            storage, trial_id = study._storage, trial._trial_id  # noqa: SLF001  # as its own do
            storage.set_trial_user_attr(trial_id, OUTSIDE, planned.to_json())
            trial.set_user_attr(OUTSIDE, planned.to_json())  # the copy that the trial reads

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Returns the parameters that are chosen together."""
        if trial.number in self._assignments and self._planner is not None:
            return distributions_of(self._planner.space)
        return self._other.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Returns the values of the planned candidate, or those of the other sampler."""
        if trial.number in self._assignments:
            return dict(self._assignments[trial.number])
        return self._other.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Returns a value of the other sampler."""
        return self._other.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Forgets the planned candidate, and lets the other sampler learn."""
        self._assignments.pop(trial.number, None)
        self._other.after_trial(study, trial, state, values)

    def reseed_rng(self) -> None:
        """Gives the other sampler a new random seed."""
        self._other.reseed_rng()


class EffectsSampler(PlannedSampler):
    """Proposes candidates by a model of the effect of each value, each pair and each graph half.

    In a plain Optuna study the first trial takes the first choice of each parameter, the next ones
    spread over all choices, and then the model proposes the candidate with the largest expected
    gain of hypervolume. No candidate is proposed twice before all are measured. Any number of
    objectives in any direction, constraints and pruned trials are learnt from. Parameters that are
    no choices, and those that not every trial has, are chosen at random.

    Args:
        seed: Random seed.
        planner: The plan of a study of autotune's, which proposes as well; None in a plain study.
    """

    def __init__(self, seed: int | None = None, *, planner: Planner | None = None) -> None:
        super().__init__(planner, optuna.samplers.RandomSampler(seed=seed))
        self._seed = seed
        self._random = np.random.default_rng(seed)
        self._common = IntersectionSearchSpace()
        self._choices: dict[str, CategoricalDistribution] = {}
        self._proposer: Proposer | None = None
        self._lock = threading.Lock()

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Returns the categorical parameters that all finished trials have."""
        if self._planner is not None:
            return super().infer_relative_search_space(study, trial)
        common = self._common.calculate(study)
        return {
            name: domain
            for name, domain in common.items()
            if isinstance(domain, CategoricalDistribution) and not domain.single()
        }

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Returns the values of the proposed candidate."""
        if self._planner is not None:
            return super().sample_relative(study, trial, search_space)
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
        if self._planner is not None or not isinstance(param_distribution, CategoricalDistribution):
            return super().sample_independent(study, trial, param_name, param_distribution)
        if trial.number == 0:
            return param_distribution.choices[0]
        trials = study.get_trials(deepcopy=False)
        with self._lock:
            number = least_tried(trials, param_name, param_distribution, self._random)
        return param_distribution.choices[number]

    def reseed_rng(self) -> None:
        """Gives the sampler a new random seed."""
        super().reseed_rng()
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
        candidates = (candidate_of(t, choices) for t in trials if t.state != TrialState.FAIL)
        taken = {candidate for candidate in candidates if candidate is not None}
        if self._proposer is None or self._choices != choices:
            tolerances = dict.fromkeys(names_of(study), _TOLERANCE)
            self._proposer = Proposer(space_of(choices), tolerances, {}, self._seed)
            self._choices = choices
        proposal = self._proposer.propose(observations, taken)
        if proposal is None:  # every candidate is measured
            return {n: least_tried(trials, n, d, self._random) for n, d in choices.items()}
        numbers = {name: int(number) for name, number in proposal.candidate.values}
        return {name: numbers.get(name, 0) for name in choices}


def distributions_of(space: Space) -> dict[str, BaseDistribution]:
    """Returns the parameters of a space that leave a choice, as Optuna has them."""
    return {
        parameter.name: CategoricalDistribution(parameter.values)
        for parameter in space.parameters
        if len(parameter.values) > 1
    }


def make_sampler(name: str, planner: Planner, seed: int, trials_so_far: int) -> PlannedSampler:
    """Returns the sampler for the rest of a study, by its name in :data:`SAMPLERS`.

    The seed moves on with the trials: with the same one, a study that goes on would repeat the
    random first points that it has measured already.
    """
    shifted = (seed * 1_000_003 + trials_so_far) % 2**32
    if name == DEFAULT_SAMPLER:
        return EffectsSampler(shifted, planner=planner)
    return PlannedSampler(planner, _OPTUNA[name](shifted))
