"""The strategies of a study: autotune's own model of effects, or one of Optuna's samplers.

Each proposes configurations by the trials so far. The model of effects is also a sampler,
:class:`EffectsSampler`, for any Optuna study over categorical parameters::

    study = optuna.create_study(sampler=EffectsSampler(seed=0))
"""

import math
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.deploy.options import BATCH, RUNTIME
from autotune.errors import RequestError, did_you_mean
from autotune.search.coding import Floats
from autotune.search.context import Context
from autotune.search.objective import Objective
from autotune.search.planner import DEFAULT_SAMPLER, Planner, unseen_neighbour
from autotune.search.proposer import Observation, Prior, Proposal, Proposer
from autotune.search.transfer import RelatedStudy, prior, starting_points
from autotune.search.trial import Limits
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.space import Parameter, Space
from autotune.space.start import alone, provider_forms, providers_alone
from autotune.study.options import StudyOptions

# After so many repeated proposals in a row, an unseen neighbour of the last trials is measured.
_MOST_REPEATED = 5
# A plain study begins with so many trials that spread over all choices before the model proposes.
_FIRST_TRIALS = 10
# The models expect that one value changes the logarithm of an objective by a fifth or so.
_SPREAD = 0.3

_OPTUNA: Mapping[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: optuna.samplers.TPESampler(multivariate=True, group=True, seed=seed),
    "tpe_independent": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "nsga2": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
    "random": lambda seed: RandomSampler(seed=seed),
}
SAMPLERS = (DEFAULT_SAMPLER, *_OPTUNA)
"""The names that ``--sampler`` takes."""

Choices = Mapping[str, CategoricalDistribution]
"""The parameters of a plain study, by name."""


def check_sampler(name: str) -> None:
    """Refuses a name that no sampler has.

    Raises:
        RequestError: no sampler has it.
    """
    if name not in SAMPLERS:
        near = did_you_mean(name, SAMPLERS)
        raise RequestError(f"--sampler must be one of {', '.join(SAMPLERS)}, not '{name}'.{near}")


def make_proposer(
    name: str,
    space: Space,
    objectives: Sequence[Objective],
    limits: Limits,
    seed: int,
    trials_so_far: int = 0,
    prior: Prior | None = None,
) -> "Proposer | SamplerProposer":
    """Returns what proposes the configurations of a study, by its name in :data:`SAMPLERS`.

    The seed moves on with the trials: with the same one, a study that goes on would repeat the
    random first points that it has measured already.
    """
    names = [objective.name for objective in objectives]
    if name == DEFAULT_SAMPLER:
        return Proposer(space, names, limits.bounds, seed + trials_so_far, prior)
    sampler = _OPTUNA[name]((seed * 1_000_003 + trials_so_far) % 2**32)
    return SamplerProposer(space, names, sampler)


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


def strategy_of(
    ctx: Context, options: StudyOptions, related: Sequence[RelatedStudy], trials_so_far: int
) -> Planner:
    """Returns what decides which configuration of a study is measured next.

    The user's configurations come right after the default, then each execution provider and batch
    size with default options, each provider in each of its precisions, and the fronts of related
    studies.

    Args:
        related: Studies of the same model on other machines, or of another space.
    """
    space, cores = ctx.space, ctx.environment.cores
    singles = [*alone(space, RUNTIME), *providers_alone(space), *alone(space, BATCH)]
    begin_with = starting_points(related, space, cores, ctx.limits, ctx.objectives)
    return Planner(
        space=space,
        objectives=ctx.objectives,
        limits=ctx.limits,
        proposer=make_proposer(
            options.sampler,
            space,
            ctx.objectives,
            ctx.limits,
            ctx.seed,
            trials_so_far,
            prior(related, space, cores, ctx.objectives),
        ),
        first=[*ctx.first, *singles, *provider_forms(space), *begin_with],
        early_stop=options.early_stop,
    )
