"""The final comparison (run-off): configurations and the default, measured side by side.

The best of a hundred noisy measurements was lucky as well as good, so its own number promises too
much (the winner's curse). Here every finalist is measured anew, in rounds, in random order, each
time in a fresh process beside a fresh reference; only these numbers are reported.
"""

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from autotune.errors import CannotMeasureError
from autotune.measure.outcome import RUN_OFF, Effort, Failure, Measurement, Measurer, Outcome
from autotune.results.score import Score, score
from autotune.search.objective import OBJECTIVES, Objective, complete, effort_for
from autotune.search.trial import Trial

MOST_ROUNDS = 7
# A machine that was not quiet so often when a measurement was taken again is a busy one.
_MOST_IN_VAIN = 3
_HALF_WIDTH = 0.01

Entrants = Mapping[int, Callable[[Effort], Outcome]]
"""What takes part, the default first: by number, a function that measures it once."""

OnStep = Callable[[int, int], None]
"""Called with the measurements done and the most that there can be."""


IsSettled = Callable[[Score, Iterable[Score]], bool]
"""Called with an entrant and all that it competes with: would more rounds change nothing?"""


def is_settled(entrant: Score, field: Iterable[Score]) -> bool:
    """Returns whether more rounds would change nothing: known to 1 %, or beaten on both axes."""
    reach = (entrant.speedup.high - entrant.speedup.low) / 2
    if reach <= _HALF_WIDTH * entrant.speedup.value:
        return True
    memory = OBJECTIVES["peak_memory_mib"]
    return any(
        other.speedup.low > entrant.speedup.high
        and not memory.is_better(entrant.peak_memory_mib, other.peak_memory_mib)
        for other in field
        if other is not entrant
    )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How rounds are played; the defaults are those of the final comparison.

    Attributes:
        effort: How much each measurement may cost.
        fewest: Rounds that every entrant takes part in.
        most: Rounds at most.
        is_settled: Whether an entrant rests in further rounds.
    """

    effort: Effort = RUN_OFF
    fewest: int = 3
    most: int = MOST_ROUNDS
    is_settled: IsSettled = is_settled


FINAL = Plan()
"""The rounds of the final comparison."""


@dataclass(frozen=True, kw_only=True)
class Finalist(Score):
    """The score of one trial of a study in the final comparison.

    Attributes:
        trial: The trial.
    """

    trial: Trial


def run_off(
    measurer: Measurer,
    baseline: Trial,
    candidates: Sequence[Trial],
    objectives: Sequence[Objective],
    *,
    seed: int,
    on_step: OnStep,
    beyond_limits: Sequence[Trial] = (),
    fewest_runs: int = 0,
) -> list[Finalist]:
    """Returns the default and all other trials that never failed, in the order of the arguments.

    Args:
        measurer: Measures candidates.
        baseline: The trial of the default.
        candidates: The other finalists.
        objectives: The objectives of the study.
        seed: Random seed of the order.
        on_step: Called after each measurement.
        beyond_limits: Trials that break a limit and are measured to say what it costs; they beat
            no other.
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
        out_of_competition={trial.number for trial in beyond_limits},
        fewest_runs=fewest_runs,
    )
    return [
        Finalist(**vars(entrant), trial=trials[number]) for number, entrant in rounds.play().items()
    ]


class Rounds:
    """Rounds in which configurations are measured side by side.

    A configuration that fails in any round is left out: it cannot be relied on. One that is settled
    rests in further rounds, and where none is left to compare with the first entrant, the rounds
    end.

    Args:
        entrants: What takes part, the default first.
        renew: Starts a fresh reference; called before each round.
        objectives: The objectives.
        seed: Random seed of the order.
        on_step: Called after each measurement.
        plan: How many rounds there are, and how much they cost.
        out_of_competition: Entrants that settle no other.
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
        plan: Plan = FINAL,
        out_of_competition: Collection[int] = (),
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
        self._fewest_runs = fewest_runs
        self._baseline, *self._others = entrants
        self._measurements: dict[int, list[Measurement]] = {number: [] for number in entrants}
        self._done = 0
        self._in_vain = 0

    def play(self) -> dict[int, Score]:
        """Returns the score of each entrant that never failed, the default first.

        Raises:
            CannotMeasureError: the default fails.
        """
        racing = list(self._others)
        for round_number in range(self._plan.most):
            self._play_round(racing, self._plan.most - round_number - 1)
            racing = [number for number in racing if number not in self.failures]
            if round_number + 1 >= self._plan.fewest:
                racing = self._unsettled(racing)
            if not racing:
                break
        return self._scores([n for n in self._entrants if n not in self.failures])

    def beside(self, number: int, other: int) -> Score:
        """Returns the score of an entrant beside that of another one, by the rounds of both."""
        return score(self._measurements[number], self._measurements[other])

    def last(self, number: int) -> Measurement:
        """Returns the last measurement of an entrant."""
        return self._measurements[number][-1]

    def _unsettled(self, racing: Sequence[int]) -> list[int]:
        scores = self._scores([self._baseline, *racing])
        field = [own for n, own in scores.items() if n not in self._out_of_competition]
        return [n for n in racing if not self._plan.is_settled(scores[n], field)]

    def _play_round(self, racing: Sequence[int], rounds_left: int) -> None:
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

    def _measure(self, number: int) -> Outcome:
        """Measures; a measurement on a loud machine is taken again, while that is of any use."""
        effort = effort_for(self._plan.effort, self._objectives, self._fewest_runs)
        outcome = self._entrants[number](effort)
        if _is_loud(outcome) and self._in_vain < _MOST_IN_VAIN:
            outcome = self._entrants[number](effort)
            self._in_vain += _is_loud(outcome)
        return outcome

    def _scores(self, numbers: Sequence[int]) -> dict[int, Score]:
        base = self._measurements[self._baseline]
        return {number: score(self._measurements[number], base) for number in numbers}


def _is_loud(outcome: Outcome) -> bool:
    return isinstance(outcome, Measurement) and not outcome.is_quiet
