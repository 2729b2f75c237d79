"""The selection of the config to write, after the final comparison."""

from collections.abc import Sequence
from dataclasses import replace

from autotune.results.final_comparison import Finalist
from autotune.results.score import MAY_COST, MAY_LOSE, is_gain, is_leaner, is_surely_worse
from autotune.search import pareto
from autotune.search.objective import BALANCED, SPEEDS, Objective
from autotune.search.trial import Limits


def select(
    finalists: Sequence[Finalist], limits: Limits, objectives: Sequence[Objective], prefer: str
) -> Finalist:
    """Returns the finalist to write: the preferred one if it wins by more than the noise.

    Otherwise, or where nothing keeps the limits, that is the default, ``finalists[0]``. A finalist
    wins if it is better in the preferred objective; or in another one, and surely no more than 5 %
    worse in the preferred one; or if it keeps limits that the default breaks. Where a speed is
    preferred, one that wins by another objective must not be estimated to be slower by more than
    1 %; whether that is proven, its interval says.

    Args:
        finalists: The default first, then the others.
        prefer: The word of an objective, or ``balanced``.
    """
    baseline, *others = finalists
    first = next((o for o in objectives if o.word == prefer), objectives[0])
    is_speed_preferred = prefer != BALANCED and first.name in SPEEDS

    def admitted(finalist: Finalist) -> bool:
        own = finalist.numbers
        return limits.admit(own.promised, own.error, own.drop)

    def better(objective: Objective, finalist: Finalist) -> bool:
        name, own = objective.name, finalist.numbers
        if name in SPEEDS:
            return is_gain(own.gains[name], own.noise_floor)
        if name == "peak_memory_mib":
            return is_leaner(own)
        is_better = objective.is_better(own.values[name], baseline.numbers.values[name])
        return is_better and own.gains[name].low > 1

    def wins(finalist: Finalist) -> bool:
        if not admitted(baseline) or better(first, finalist):
            return True
        gain = finalist.numbers.gains[first.name]
        costs_little = gain.low > 1 - MAY_COST and (
            not is_speed_preferred or gain.value > 1 - MAY_LOSE
        )
        return costs_little and any(better(objective, finalist) for objective in objectives)

    def outdoes(finalist: Finalist) -> bool:
        """Returns whether nothing speaks for the default beside this winner."""
        costs = [objective for objective in objectives if objective.name not in SPEEDS]
        is_worse = any(
            is_surely_worse(finalist.numbers, objective, baseline.numbers) for objective in costs
        )
        return is_speed_preferred and (better(first, finalist) or not is_worse)

    winners = [finalist for finalist in others if admitted(finalist) and wins(finalist)]
    if not winners:
        return baseline
    # the default competes as well: a leaner winner is no better for a user who wants speed, unless
    # it is as fast within the noise
    competes = admitted(baseline) and not any(map(outdoes, winners))
    field = [baseline, *winners] if competes else winners
    compared = beyond_luck(objectives, baseline)
    return pareto.pick(field, lambda finalist: finalist.numbers.values, compared, prefer)


def beyond_luck(objectives: Sequence[Objective], baseline: Finalist) -> tuple[Objective, ...]:
    """Returns the objectives, with memory that is the same within its noise floor."""
    return tuple(
        replace(objective, tolerance=max(objective.tolerance, baseline.numbers.memory_noise_floor))
        if objective.name == "peak_memory_mib"
        else objective
        for objective in objectives
    )
