"""A plain Optuna study over categorical parameters, as the models of the search see it.

Values are the numbers of the choices, so that choices of any type can be modelled; the first choice
of each parameter is its default.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.search.coding import Floats
from autotune.search.observation import Observation
from autotune.space.candidate import BASELINE, Candidate
from autotune.space.space import Parameter, Space

Choices = Mapping[str, CategoricalDistribution]
"""The parameters of a study, by name."""

# The models expect that one value changes the logarithm of an objective by a fifth or so.
_SPREAD = 0.3


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


def candidate_of(trial: FrozenTrial, choices: Choices) -> Candidate | None:
    """Returns the candidate of a trial; None where it lacks a parameter or has other choices."""
    if any(trial.distributions.get(name) != domain for name, domain in choices.items()):
        return None
    numbers = {
        name: int(domain.to_internal_repr(trial.params[name])) for name, domain in choices.items()
    }
    return Candidate(tuple(sorted((name, n) for name, n in numbers.items() if n)))


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
    candidates = [candidate_of(trial, choices) for trial in trials]
    usable = [(t, c) for t, c in zip(trials, candidates, strict=True) if c is not None]
    complete = [_has_finite_values(trial) for trial, _ in usable]
    values = [trial.values for (trial, _), ok in zip(usable, complete, strict=True) if ok]
    scaled = _scaled(np.asarray(values, float), study.directions) if values else None
    worst = None if scaled is None else _by_name(scaled.max(axis=0))
    rows = iter(() if scaled is None else scaled)
    observations = [
        Observation(
            candidate=candidate,
            values=_by_name(next(rows)) if ok else worst,
            violations={"valid": -1.0 if ok and _is_feasible(trial) else 1.0, "error": -1.0},
        )
        for (trial, candidate), ok in zip(usable, complete, strict=True)
    ]
    if not any(o.candidate == BASELINE and o.values is not None for o in observations):
        observations = [o for o in observations if o.candidate != BASELINE]
        middle = [1.0] * len(study.directions)
        observations.append(
            Observation(
                candidate=BASELINE,
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


def size_of(choices: Choices) -> int:
    """Returns how many candidates there are."""
    return math.prod(len(domain.choices) for domain in choices.values())
