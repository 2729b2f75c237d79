"""The final comparison (run-off): configurations and the default, measured side by side.

The best of a hundred noisy measurements was lucky as well as good, so its own number promises too
much (the winner's curse). Here every finalist is measured anew, in rounds, in random order, each
time in a fresh process beside a fresh reference; only these numbers are reported.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from autotune.errors import CannotMeasureError
from autotune.measure.outcome import RUN_OFF, Effort, Failure, Measurement, Measurer, Outcome
from autotune.results.score import Score, score
from autotune.search.objective import OBJECTIVES, Objective, complete, effort_for
from autotune.search.trial import Trial

_FEWEST_ROUNDS = 3
MOST_ROUNDS = 7
# A machine that was not quiet so often when a measurement was taken again is a busy one.
_MOST_IN_VAIN = 3
_HALF_WIDTH = 0.01

Entrants = Mapping[int, Callable[[Effort], Outcome]]
"""What takes part, the default first: by number, a function that measures it once."""

OnStep = Callable[[int, int], None]
"""Called with the measurements done and the most that there can be."""


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
) -> list[Finalist]:
    """Returns the default and those of `candidates` that never failed, in this order.

    Args:
        measurer: Measures candidates.
        baseline: The trial of the default.
        candidates: The other finalists.
        objectives: The objectives of the study.
        seed: Random seed of the order.
        on_step: Called after each measurement.

    Raises:
        CannotMeasureError: the default fails.
    """
    trials = {trial.number: trial for trial in (baseline, *candidates)}
    entrants = {n: partial(measurer.measure, trial.candidate) for n, trial in trials.items()}
    rounds = Rounds(entrants, measurer.renew, objectives, seed=seed, on_step=on_step)
    return [
        Finalist(**vars(entrant), trial=trials[number]) for number, entrant in rounds.play().items()
    ]


class Rounds:
    """The rounds of a final comparison.

    A configuration that fails in any round is left out: it cannot be relied on. One whose numbers
    are known well enough, or that surely has no place on the front, rests in further rounds.

    Args:
        entrants: What takes part, the default first.
        renew: Starts a fresh reference; called before each round.
        objectives: The objectives.
        seed: Random seed of the order.
        on_step: Called after each measurement.

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
    ) -> None:
        self.failures: dict[int, Failure] = {}
        self._entrants = entrants
        self._renew = renew
        self._objectives = objectives
        self._order = random.Random(seed)
        self._on_step = on_step
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
        for round_number in range(MOST_ROUNDS):
            self._play_round(racing, MOST_ROUNDS - round_number - 1)
            racing = [number for number in racing if number not in self.failures]
            if round_number + 1 >= _FEWEST_ROUNDS:
                scores = self._scores([self._baseline, *racing])
                racing = [n for n in racing if not _is_settled(scores[n], scores.values())]
                if not racing:
                    break
        return self._scores([n for n in self._entrants if n not in self.failures])

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
        effort = effort_for(RUN_OFF, self._objectives)
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


def _is_settled(entrant: Score, field: Iterable[Score]) -> bool:
    """Returns whether more rounds would change nothing: known to 1 %, or beaten on both axes."""
    reach = (entrant.speedup.high - entrant.speedup.low) / 2
    if reach <= _HALF_WIDTH * entrant.speedup.value:
        return True
    memory = OBJECTIVES["peak_memory_mib"]
    return any(
        other.speedup.low > entrant.speedup.high
        and not memory.is_less(entrant.peak_memory_mib, other.peak_memory_mib)
        for other in field
        if other is not entrant
    )
