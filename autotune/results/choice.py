"""The choice of the config to emit, after the final comparison."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.results.parts import Ablation
from autotune.results.process_effect import ProcessEffect
from autotune.results.run_off import Finalist
from autotune.results.score import is_gain, is_loss
from autotune.search import pareto
from autotune.search.objective import BALANCED, SPEEDS, Objective
from autotune.search.trial import Limits

# A finalist that wins on another objective alone may be that much worse on the preferred one, at
# the pessimistic end of the interval.
_MAY_COST = 0.05


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a final comparison comes to.

    Attributes:
        members: The default first, then the front.
        picked: The member to emit.
        others: What was measured as well.
        ablation: What each change of `picked` brings; None where it is the default.
        process: What options of the process do, apart from the session; None where nobody asked.
        complete: Whether the final comparison measured them; otherwise their numbers are those of
            the search.
    """

    members: Sequence[Finalist]
    picked: Finalist
    others: Sequence[Finalist] = ()
    ablation: Ablation | None = None
    process: ProcessEffect | None = None
    complete: bool = True


def choose(
    finalists: Sequence[Finalist], limits: Limits, objectives: Sequence[Objective], prefer: str
) -> Finalist:
    """Returns the finalist to emit: the preferred one if it wins by more than the noise.

    Otherwise, or where nothing keeps the limits, that is the default, ``finalists[0]``. A finalist
    wins if it is better in the preferred objective; or in another one and surely no more than 5 %
    worse in the preferred one; or if it keeps limits that the default breaks.

    Args:
        finalists: The default first, then the others.
        limits: The limits of the study.
        objectives: The objectives of the study.
        prefer: The word of an objective, or ``balanced``.
    """
    baseline, *others = finalists
    first = next((o for o in objectives if o.word == prefer), objectives[0])

    def admitted(finalist: Finalist) -> bool:
        return limits.admit(finalist.values, finalist.error, finalist.drop)

    def better(objective: Objective, finalist: Finalist) -> bool:
        name = objective.name
        if name in SPEEDS:
            return is_gain(finalist.gains[name], finalist.noise_floor)
        if name == "peak_memory_mib":
            return finalist.leaner
        is_better = objective.is_better(finalist.values[name], baseline.values[name])
        return is_better and finalist.gains[name].low > 1

    def wins(finalist: Finalist) -> bool:
        if not admitted(baseline) or better(first, finalist):
            return True
        costs_little = finalist.gains[first.name].low > 1 - _MAY_COST
        return costs_little and any(better(objective, finalist) for objective in objectives)

    def outdoes(finalist: Finalist) -> bool:
        """Returns whether nothing speaks for the default beside this winner."""
        if prefer == BALANCED or first.name not in SPEEDS:
            return False
        costs = [objective for objective in objectives if objective.name not in SPEEDS]
        is_worse = any(finalist.is_surely_worse(objective, baseline) for objective in costs)
        is_slower = is_loss(finalist.gains[first.name], finalist.noise_floor)
        return better(first, finalist) or not (is_worse or is_slower)

    winners = [finalist for finalist in others if admitted(finalist) and wins(finalist)]
    if not winners:
        return baseline
    # the default competes as well: a leaner winner is no better for a user who wants speed, unless
    # it is as fast within the noise
    competes = admitted(baseline) and not any(map(outdoes, winners))
    field = [baseline, *winners] if competes else winners
    compared = beyond_luck(objectives, baseline)
    return pareto.pick(field, lambda finalist: finalist.values, compared, prefer)


def beyond_luck(objectives: Sequence[Objective], baseline: Finalist) -> tuple[Objective, ...]:
    """Returns the objectives, with memory that is the same within its noise floor.

    Args:
        objectives: The objectives of a study.
        baseline: The default in the final comparison.
    """
    return tuple(
        replace(objective, tolerance=max(objective.tolerance, baseline.memory_noise_floor))
        if objective.name == "peak_memory_mib"
        else objective
        for objective in objectives
    )
