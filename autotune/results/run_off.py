"""The final comparison (run-off): configurations and the default, measured side by side.

The best of a hundred noisy measurements was lucky as well as good, so its own number promises too
much (the winner's curse). Here every finalist is measured anew, in rounds, in random order, each
time in a fresh process beside a fresh reference; only these numbers are reported.
"""

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from autotune.deploy.config import Interval
from autotune.errors import CannotMeasureError
from autotune.measure.outcome import RUN_OFF, Effort, Failure, Measurement, Measurer, Outcome
from autotune.results.budget import Budget
from autotune.results.score import Score, score
from autotune.search import pareto
from autotune.search.objective import SPEEDS, Objective, complete, effort_for
from autotune.search.trial import Trial

MOST_ROUNDS = 7
# With two, the interval of a mean is 1.4 times as wide beside other configurations, alone seven.
_ENOUGH_ROUNDS = 3
# One round has no interval.
_FEWEST_ROUNDS = 2
# A machine that was not quiet so often when a measurement was taken again is a busy one.
_MOST_IN_VAIN = 3
_HALF_WIDTH = 0.01

Entrants = Mapping[int, Callable[[Effort], Outcome]]
"""What takes part, the default first: by number, a function that measures it once."""

OnStep = Callable[[int, int], None]
"""Called with the measurements done and the most that there can be."""


IsSettled = Callable[[Score, Iterable[Score], Sequence[Objective]], bool]
"""Called with an entrant, all that it competes with and the objectives: would more rounds change
nothing?"""


def is_settled(entrant: Score, field: Iterable[Score], objectives: Sequence[Objective]) -> bool:
    """Returns whether more rounds would change nothing.

    Either the entrant's speed-up is known to 1 %, and so are its other gains as far as they matter,
    or another one is surely better in an objective and the entrant may be better in none.
    """
    reach = (entrant.speedup.high - entrant.speedup.low) / 2
    is_precise = reach <= _HALF_WIDTH * entrant.speedup.value
    if entrant.rounds >= _ENOUGH_ROUNDS and is_precise and are_known(entrant, objectives):
        return True
    return any(_beats(other, entrant, objectives) for other in field if other is not entrant)


def are_known(entrant: Score, objectives: Sequence[Objective]) -> bool:
    """Returns whether the gains beside speed and memory are known.

    Each is known if it surely is a gain, or none, or to within the objective's tolerance. A load or
    a percentile scatters more from process to process than the time of a run.
    """
    return all(
        _is_known(entrant.gains[objective.name], objective.tolerance)
        for objective in objectives
        if objective.name not in (*SPEEDS, "peak_memory_mib")
    )


def _is_known(gain: Interval, tolerance: float) -> bool:
    is_decided = gain.low > 1 or gain.high < 1
    return is_decided or gain.high - gain.low <= 2 * tolerance * gain.value


def _beats(one: Score, other: Score, objectives: Sequence[Objective]) -> bool:
    """Returns whether `other` may be better in no objective, and surely is worse in one.

    Memory is compared by its peaks, and all else by intervals.
    """
    is_better = False
    for objective in objectives:
        name = objective.name
        if name == "peak_memory_mib":
            if objective.is_better(other.values[name], one.values[name]):
                return False
        elif one.gains[name].low <= other.gains[name].high:
            return False
        else:
            is_better = True
    return is_better


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How rounds are played; the defaults are those of a comparison that is not short of time.

    Attributes:
        effort: How much each measurement may cost.
        fewest: Rounds after which an entrant may rest.
        enough: Rounds that are played however short the time is.
        most: Rounds at most.
        is_settled: Whether an entrant rests in further rounds.
        keep: Entrants beside the first one that stay for `enough` rounds however short the time is.
        reserve: Share of the budget that is kept for what follows.
        spare: Measurements that are kept for what follows.
    """

    effort: Effort = RUN_OFF
    fewest: int = _ENOUGH_ROUNDS
    enough: int = _ENOUGH_ROUNDS
    most: int = MOST_ROUNDS
    is_settled: IsSettled = is_settled
    keep: float = math.inf
    reserve: float = 0.0
    spare: int = 0


FINAL = Plan(fewest=_FEWEST_ROUNDS, keep=2, reserve=0.5)
"""The rounds of the final comparison."""


@dataclass(frozen=True, kw_only=True)
class Finalist(Score):
    """The score of one trial of a study in the final comparison.

    Attributes:
        trial: The trial.
        measurements: What was measured of it, round by round from the first one on.
    """

    trial: Trial
    measurements: tuple[Measurement, ...] = ()


def run_off(
    measurer: Measurer,
    baseline: Trial,
    candidates: Sequence[Trial],
    objectives: Sequence[Objective],
    *,
    seed: int,
    on_step: OnStep,
    beyond_limits: Sequence[Trial] = (),
    budget: Budget | None = None,
    fewest_runs: int = 0,
) -> list[Finalist]:
    """Returns the default and the other trials, in the order of the arguments.

    Trials that failed are left out, and those that the budget had no second round for.

    Args:
        measurer: Measures candidates.
        baseline: The trial of the default.
        candidates: The other finalists.
        objectives: The objectives of the study.
        seed: Random seed of the order.
        on_step: Called after each measurement.
        beyond_limits: Trials that break a limit and are measured to say what it costs; they beat
            no other.
        budget: How long this may take; None means that nothing limits it.
        fewest_runs: Timed runs of each measurement at least.

    Raises:
        CannotMeasureError: the default fails.
    """
    trials = {trial.number: trial for trial in (baseline, *candidates, *beyond_limits)}
    rounds = Rounds(
        {n: partial(measurer.measure, trial.candidate) for n, trial in trials.items()},
        measurer.renew,
        objectives,
        seed=seed,
        on_step=on_step,
        plan=FINAL,
        out_of_competition={trial.number for trial in beyond_limits},
        budget=budget,
        fewest_runs=fewest_runs,
    )
    return [
        Finalist(
            **vars(entrant), trial=trials[number], measurements=tuple(rounds.measurements(number))
        )
        for number, entrant in rounds.play().items()
    ]


class Rounds:
    """Rounds in which configurations are measured side by side.

    A configuration that fails in any round is left out: it cannot be relied on. One that is settled
    rests in further rounds. Where the time is short, those leave that are needed least. Where none
    is left to compare with the first entrant, the rounds end. Answers are compared in the first
    round.

    Args:
        entrants: What takes part, the default first.
        renew: Starts a fresh reference; called before each round.
        objectives: The objectives.
        seed: Random seed of the order.
        on_step: Called after each measurement.
        plan: How many rounds there are, and how much they cost.
        out_of_competition: Entrants that settle no other.
        budget: How long this may take; None means that nothing limits it.
        fewest_runs: Timed runs of each measurement at least.

    Attributes:
        failures: By number, why an entrant was left out.
    """

    def __init__(
        self,
        entrants: Entrants,
        renew: Callable[[], None],
        objectives: Sequence[Objective],
        *,
        seed: int,
        on_step: OnStep,
        plan: Plan = Plan(),
        out_of_competition: Collection[int] = (),
        budget: Budget | None = None,
        fewest_runs: int = 0,
    ) -> None:
        self.failures: dict[int, Failure] = {}
        self._entrants = entrants
        self._renew = renew
        self._objectives = objectives
        self._order = random.Random(seed)
        self._on_step = on_step
        self._plan = plan
        self._out_of_competition = out_of_competition
        self._budget = budget or Budget()
        self._fewest_runs = fewest_runs
        self._baseline, *self._others = entrants
        self._measurements: dict[int, list[Measurement]] = {number: [] for number in entrants}
        self._done = 0
        self._in_vain = 0

    def play(self) -> dict[int, Score]:
        """Returns the score of each entrant that never failed, the default first.

        One that left after the first of several rounds has none.

        Raises:
            CannotMeasureError: the default fails.
        """
        racing = list(self._others)
        for played in range(1, self._plan.most + 1):
            self._play_round(racing, self._plan.most - played)
            racing = [number for number in racing if number not in self.failures]
            if played >= self._plan.fewest:
                racing = self._unsettled(racing)
            racing = self._paid_for(racing, played)
            if not racing:
                break
        fewest = min(_FEWEST_ROUNDS, len(self._measurements[self._baseline]))
        return self._scores(
            [
                number
                for number, own in self._measurements.items()
                if number not in self.failures and len(own) >= fewest
            ]
        )

    def beside(self, number: int, other: int) -> Score:
        """Returns the score of an entrant beside that of another one, by the rounds of both."""
        field = self._measurements.values()
        return score(self._measurements[number], self._measurements[other], field)

    def measurements(self, number: int) -> Sequence[Measurement]:
        """Returns the measurements of an entrant, round by round from the first one on."""
        return self._measurements[number]

    def last(self, number: int) -> Measurement:
        """Returns the last measurement of an entrant."""
        return self._measurements[number][-1]

    def _unsettled(self, racing: Sequence[int]) -> list[int]:
        scores = self._scores([self._baseline, *racing])
        field = [own for n, own in scores.items() if n not in self._out_of_competition]
        return [n for n in racing if not self._plan.is_settled(scores[n], field, self._objectives)]

    def _paid_for(self, racing: Sequence[int], played: int) -> list[int]:
        """Returns the entrants that there is time for, those that are needed most first."""
        rounds = max(1, self._plan.enough - played)
        paid_for = self._budget.pays_for(self._plan.reserve) - self._plan.spare
        room = paid_for / rounds - 1  # one is the default's
        if played < self._plan.enough:
            room = max(room, self._plan.keep)
        return list(racing) if room >= len(racing) else self._most_needed(racing, int(room))

    def _most_needed(self, racing: Sequence[int], count: int) -> list[int]:
        """Returns so many entrants: a spread of their front, and those next to it."""
        if count < 1:
            return []
        scores = self._scores(racing)
        competing = [n for n in racing if n not in self._out_of_competition]
        front = pareto.front(competing, lambda n: scores[n].values, self._objectives)
        first = self._objectives[0].name
        ranked = sorted(competing, key=lambda n: scores[n].values[first])
        chosen = [*pareto.spread(front, count), *front, *ranked, *racing]
        return list(dict.fromkeys(chosen))[:count]

    def _play_round(self, racing: Sequence[int], rounds_left: int) -> None:
        began_s = self._budget.monotonic()
        self._renew()
        field = [self._baseline, *racing]
        for number in self._order.sample(field, len(field)):
            outcome = complete(self._measure(number), self._objectives)
            if isinstance(outcome, Measurement):
                self._measurements[number].append(outcome)
            elif number == self._baseline:
                raise CannotMeasureError(f"the baseline failed: {outcome.message}")
            else:
                self.failures[number] = outcome
            self._done += 1
            self._on_step(self._done, self._done + len(field) * rounds_left)
        self._budget.book(len(field), self._budget.monotonic() - began_s)

    def _measure(self, number: int) -> Outcome:
        """Measures; a measurement on a loud machine is taken again, while that is of any use."""
        effort = replace(
            effort_for(self._plan.effort, self._objectives, self._fewest_runs),
            compares_answers=not self._measurements[number],
        )
        outcome = self._entrants[number](effort)
        if _is_loud(outcome) and self._in_vain < _MOST_IN_VAIN:
            outcome = self._entrants[number](effort)
            self._in_vain += _is_loud(outcome)
        return outcome

    def _scores(self, numbers: Sequence[int]) -> dict[int, Score]:
        base = self._measurements[self._baseline]
        field = self._measurements.values()
        return {number: score(self._measurements[number], base, field) for number in numbers}


def _is_loud(outcome: Outcome) -> bool:
    return isinstance(outcome, Measurement) and not outcome.is_quiet
