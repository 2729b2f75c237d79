"""Which trials go into the final comparison (the run-off), by what the model believes."""

from collections.abc import Sequence

from autotune.measure.outcome import Measurement
from autotune.search import pareto
from autotune.search.effects import believed
from autotune.search.objective import Objective, Values, values
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import BASELINE
from autotune.space.space import Space

MOST_FINALISTS = 6


# Another order of the same sums in fp32 differs by that much.
EXACT_ERROR = 1e-5


# What is believed to be that much slower than the best may yet be it.
_MAY_BE_BEST = 1.05


def finalists(
    trials: Sequence[Trial], limits: Limits, objectives: Sequence[Objective], space: Space
) -> list[Trial]:
    """Returns the trials that go into the run-off, by what the model of effects believes of them.

    They are a spread of the front, the best two in the first objective and the one that was
    measured best, the best of those that give exact answers, and as far as there is room what may
    yet be the best; each in its simplest form that was measured and is as good.

    Args:
        trials: What was measured, the baseline among it.
        limits: What they must keep.
        objectives: Of the study.
        space: What could be tried.
    """
    measured = [(trial, m) for trial in trials if (m := trial.measurement) is not None]
    told = [(trial.candidate, values(m, objectives)) for trial, m in measured]
    admitted = [
        (trial, belief)
        for (trial, m), belief in zip(measured, believed(space, told), strict=True)
        if trial.candidate != BASELINE
        and limits.admit(m.latency_ms, m.peak_memory_mib, m.fidelity.error, m.fidelity.drop)
    ]
    if not admitted:
        return []
    best = pareto.front(admitted, lambda item: item[1], objectives)
    first = objectives[0]
    ranked = sorted(admitted, key=lambda item: item[1][first.name])
    luckiest = min(admitted, key=lambda item: _measured(item[0], first))
    exact = [item for item in ranked if is_exact(item[0].measurement)]
    surely = [*ranked[:2], luckiest, *exact[:1]]
    least = ranked[0][1][first.name]
    near = [item for item in ranked if item[1][first.name] <= _MAY_BE_BEST * least]
    # what is chosen twice leaves room for the next
    chosen = [*surely, *pareto.spread(best, MOST_FINALISTS - len(surely)), *best, *near]
    simplest = [_simplest(item, admitted, objectives) for item in chosen]
    return list({trial.number: trial for trial in simplest}.values())[:MOST_FINALISTS]


def _measured(trial: Trial, objective: Objective) -> float:
    assert trial.measurement is not None
    return values(trial.measurement, (objective,))[objective.name]


def _simplest(
    item: tuple[Trial, Values],
    admitted: Sequence[tuple[Trial, Values]],
    objectives: Sequence[Objective],
) -> Trial:
    """Returns the trial that changes least of those that change nothing else and are as good.

    As good within twice the tolerance: some luck is left in both, and the item was chosen for its.
    """
    trial, mine = item
    changes = set(trial.candidate.values)
    as_good = [
        other
        for other, values_ in admitted
        if changes.issuperset(other.candidate.values)
        and not any(
            o.is_less(mine[o.name], values_[o.name] / (1 + o.tolerance)) for o in objectives
        )
    ]
    return min(as_good, key=lambda other: (len(other.candidate.values), other.number))


def is_exact(measurement: Measurement | None) -> bool:
    """Returns whether answers are the unoptimised model's but for rounding."""
    return measurement is not None and measurement.fidelity.error < EXACT_ERROR
