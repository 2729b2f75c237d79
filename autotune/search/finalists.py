"""Which trials go into the final comparison, by what the model believes."""

import math
from collections.abc import Sequence

from autotune.deploy.options import OWN
from autotune.measure.outcome import Measurement
from autotune.search import pareto
from autotune.search.effects import believed
from autotune.search.objective import OBJECTIVES, Objective, Values, values
from autotune.search.trial import Limits, Trial
from autotune.space.configuration import BASELINE
from autotune.space.session import EXECUTION_PROVIDER
from autotune.space.space import Space

MOST_FINALISTS = 6
# Another order of the same sums in fp32 differs by that much.
EXACT_ERROR = 1e-5
# A configuration that the model believes to be that much slower may still be the best.
_MAY_BE_BEST = 1.05
# What is not better by so much is not worth measuring for the summary.
_CLEARLY_BETTER = 1.05


def finalists(
    trials: Sequence[Trial], limits: Limits, objectives: Sequence[Objective], space: Space
) -> list[Trial]:
    """Returns the trials that go into the final comparison, by the model of effects.

    They are a spread of the front, the best two in the first objective and the one that was
    measured best, the best with exact answers, and, as far as there is room, others that may still
    be the best; each in its simplest form that was measured and is as good. Where the model
    contradicts the best measurement of an objective, that trial takes part as it is: it was lucky,
    or the model is wrong.

    Args:
        limits: The limits that they may keep: of too few runs no percentile is known.
    """
    measured = [(trial, m) for trial in trials if (m := trial.measurement) is not None]
    numbers = [(trial.configuration, values(m, objectives)) for trial, m in measured]
    admitted = [
        (trial, belief)
        for (trial, m), belief in zip(measured, believed(space, numbers), strict=True)
        if trial.configuration != BASELINE and limits.may_admit(m)
    ]
    if not admitted:
        return []
    best = pareto.front(admitted, lambda item: item[1], objectives)
    first = objectives[0]

    def cost(item: tuple[Trial, Values]) -> float:
        return first.cost(item[1][first.name])

    ranked = sorted(admitted, key=cost)

    def best_by(objective: Objective) -> tuple[Trial, Values]:
        return min(admitted, key=lambda item: _measured_cost(item[0], objective))

    best_measured = [best_by(objective) for objective in objectives]
    contradicted = [
        item
        for item, o in zip(best_measured, objectives, strict=True)
        if o.cost(item[1][o.name]) > _MAY_BE_BEST * _measured_cost(item[0], o)
    ]
    exact = [item for item in ranked if is_exact(item[0].measurement)]
    surely = [*contradicted, *ranked[:2], best_measured[0], *exact[:1]]
    least = cost(ranked[0])
    near = [item for item in ranked if cost(item) <= _MAY_BE_BEST * least]
    # a trial that is chosen twice leaves room for the next
    chosen = [*surely, *pareto.spread(best, MOST_FINALISTS - len(surely)), *best, *near]
    simplest = [
        item[0] if item in contradicted else _simplest(item, admitted, objectives)
        for item in chosen
    ]
    return list({trial.number: trial for trial in simplest}.values())[:MOST_FINALISTS]


def default_of_provider(chosen: Sequence[Trial], trials: Sequence[Trial]) -> Trial | None:
    """Returns the trial of the default options of the fastest finalist's execution provider.

    It shows what tuning gives beyond choosing the provider.

    Returns:
        None where the CPU provider is the fastest, or the other one's default failed.
    """
    fastest = min(
        chosen, key=lambda trial: _measured_cost(trial, OBJECTIVES["latency_ms"]), default=None
    )
    word = None if fastest is None else fastest.configuration.to_json().get(EXECUTION_PROVIDER)
    if word is None:
        return None
    own = [t for t in trials if t.configuration.to_json().get(EXECUTION_PROVIDER) == word]
    simplest = min(own, key=lambda trial: len(trial.configuration.values))
    # the user's fixed values are in all of them
    shared = set.intersection(*(set(trial.configuration.values) for trial in own))
    is_default = shared.issuperset(simplest.configuration.values)
    return simplest if is_default and simplest.measurement else None


def best_of_runtimes(trials: Sequence[Trial], limits: Limits, objective: Objective) -> list[Trial]:
    """Returns the best on the user's own ONNX Runtime and the best on another one, as measured.

    They say what there is to gain with what is installed, and with something else.

    Returns:
        Nothing where no trial had another ONNX Runtime.
    """
    by_kind: dict[bool, list[Trial]] = {False: [], True: []}
    for trial in trials:
        admitted = (m := trial.measurement) is not None and limits.may_admit(m)
        if admitted and trial.configuration != BASELINE:
            by_kind[trial.configuration.runtime == OWN].append(trial)
    if not by_kind[False]:
        return []
    kinds = [kind for kind in by_kind.values() if kind]
    return [min(kind, key=lambda trial: _measured_cost(trial, objective)) for kind in kinds]


def beyond_limit(
    trials: Sequence[Trial], limits: Limits, objectives: Sequence[Objective], space: Space
) -> Trial | None:
    """Returns the trial that a looser limit of the answers would let win, by the model of effects.

    None if no trial whose answers alone are beyond the limits is clearly better in the first
    objective than all trials that keep them.
    """
    first = objectives[0]
    measured = [(trial, m) for trial in trials if (m := trial.measurement) is not None]
    numbers = [(trial.configuration, values(m, objectives)) for trial, m in measured]
    least = math.inf
    outside: list[tuple[float, int, Trial]] = []
    for (trial, m), belief in zip(measured, believed(space, numbers), strict=True):
        if not limits.may_admit_cost(m):
            continue
        cost = first.cost(belief[first.name])
        if limits.admit_answers(m.fidelity.error, m.fidelity.drop):
            least = min(least, cost)
        else:
            outside.append((cost, trial.number, trial))
    best = min(outside, default=None)
    return best[2] if best and best[0] < least / _CLEARLY_BETTER else None


def leanest_exact(trials: Sequence[Trial], limits: Limits) -> Trial | None:
    """Returns the trial with exact answers that clearly saves most memory, by its measurement.

    One that is not clearly slower than the default comes before one that is. None if there is none
    that may keep the limits.
    """
    base = next(
        m for t in trials if t.configuration == BASELINE and (m := t.measurement) is not None
    )
    longest_ms = _CLEARLY_BETTER * base.latency_ms
    exact = [
        (m.latency_ms > longest_ms, m.peak_memory_mib, trial.number, trial)
        for trial in trials
        if (m := trial.measurement) is not None
        and is_exact(m)
        and limits.may_admit(m)
        and m.peak_memory_mib < base.peak_memory_mib / _CLEARLY_BETTER
    ]
    return min(exact)[3] if exact else None


def _measured_cost(trial: Trial, objective: Objective) -> float:
    assert trial.measurement is not None
    return objective.cost(values(trial.measurement, (objective,))[objective.name])


def _simplest(
    item: tuple[Trial, Values],
    admitted: Sequence[tuple[Trial, Values]],
    objectives: Sequence[Objective],
) -> Trial:
    """Returns the trial with the fewest of the item's changes that is as good.

    As good means within twice the tolerance: some luck is left in both values.
    """
    trial, mine = item
    changes = set(trial.configuration.values)
    as_good = [
        other
        for other, values_ in admitted
        if changes.issuperset(other.configuration.values)
        and not any(
            o.is_better(mine[o.name], o.better_by(values_[o.name], o.tolerance)) for o in objectives
        )
    ]
    return min(as_good, key=lambda other: (len(other.configuration.values), other.number))


def is_exact(measurement: Measurement | None) -> bool:
    """Returns whether the answers equal those of the unoptimised model but for rounding."""
    return measurement is not None and measurement.fidelity.error < EXACT_ERROR
