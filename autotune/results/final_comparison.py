"""The final comparison: configurations and the default, measured side by side in rounds.

The best of a hundred noisy measurements was lucky as well as good, so its own number promises too
much (the winner's curse). Here every finalist is measured anew, in rounds, in random order, each
time in a fresh process beside a fresh reference; only these numbers are reported.
"""

import math
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial

from autotune.deploy.config import Interval, Numbers
from autotune.errors import CannotMeasureError
from autotune.measure.outcome import (
    FINAL_COMPARISON,
    Effort,
    Failure,
    Measurement,
    Measurer,
    Outcome,
)
from autotune.results.score import (
    MAY_COST,
    SMALLEST_GAIN,
    may_be_leaner,
    may_be_slower,
    numbers_of,
)
from autotune.search import pareto
from autotune.search.objective import (
    SPEEDS,
    Objective,
    complete,
    effort_for,
    values,
)
from autotune.search.trial import Trial

MOST_ROUNDS = 7
# With two, the interval of a mean is 1.4 times as wide beside other configurations, alone seven.
ENOUGH_ROUNDS = 3
# One round has no interval.
_FEWEST_ROUNDS = 2
# So many show that a configuration is not slower by more than 1 % where single rounds scatter by
# that much.
_MOST_ROUNDS_FOR_PROOF = 12
# Rounds of a noisy machine, beside those of another one, if the time pays for them.
_MOST_IN_NOISE = 4
# A machine that was not quiet so often when a measurement was taken again is a busy one.
_MOST_IN_VAIN = 3
# A speed-up is known once its interval is as narrow as this, or as this share of the time it saves.
_HALF_WIDTH = 0.01
_SHARE_OF_GAIN = 0.05

Entrants = Mapping[int, Callable[[Effort], Outcome]]
"""What takes part, the default first: by number, a function that measures it once."""

OnStep = Callable[[int, int], None]
"""Called with the measurements done and the most that there can be."""

OnNote = Callable[[str], None]
"""Called with a sentence for the user."""


@dataclass
class Budget:
    """Time for the final comparison and what follows it; it begins when it is made.

    Attributes:
        limit_s: How long all of it may take; infinite if nothing limits it.
        is_strict: Whether the user's own limit of the whole study ends then, so that a noisy
            machine does not double it.
    """

    limit_s: float = math.inf
    monotonic: Callable[[], float] = time.monotonic
    is_strict: bool = False
    is_doubled: bool = field(default=False, init=False)
    _measurements: int = field(default=0, init=False)
    _measuring_s: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._began_s = self.monotonic()

    def book(self, measurements: int, seconds: float) -> None:
        """Takes how long some measurements took: the next ones take as long in the mean."""
        self._measurements += measurements
        self._measuring_s += seconds

    def double(self) -> None:
        """Allows twice the time, once; not where the limit is the user's own."""
        self.limit_s *= 1 if self.is_doubled or self.is_strict else 2
        self.is_doubled = True

    def pays_for(self, reserve: float = 0.0) -> float:
        """Returns how many more measurements there is time for; 0 or less where there is none.

        Infinite before the first one, and where nothing limits the time.

        Args:
            reserve: Share of the whole time that is kept for later.
        """
        if math.isinf(self.limit_s) or not self._measuring_s:
            return math.inf
        left_s = self.limit_s * (1 - reserve) - (self.monotonic() - self._began_s)
        return left_s * self._measurements / self._measuring_s


IsSettled = Callable[[int, Mapping[int, Numbers], Sequence[Objective]], bool]
"""Called with the number of an entrant, the numbers of all that compete and the objectives: would
more rounds of this entrant change nothing?"""


def is_settled(number: int, scores: Mapping[int, Numbers], objectives: Sequence[Objective]) -> bool:
    """Returns whether more rounds would change nothing.

    Either the entrant's speed-up is known to 1 %, or to a twentieth of the time that it saves, and
    so are its other gains as far as they matter, and one that saves something else alone is shown
    to be no slower, or slower; or another one dominates it: that one is surely better in an
    objective, and the entrant may be better in none.
    """
    entrant = scores[number]
    speedup = entrant.speedup
    reach = (speedup.high - speedup.low) / 2
    enough = max(_HALF_WIDTH, _SHARE_OF_GAIN * (1 - 1 / speedup.value))
    is_precise = reach <= enough * speedup.value
    is_precise = is_precise and not _needs_proof(entrant, objectives)
    if entrant.rounds >= ENOUGH_ROUNDS and is_precise and are_known(entrant, objectives):
        return True
    return any(
        _dominates(other, entrant, objectives) for other in scores.values() if other is not entrant
    )


def _needs_proof(entrant: Numbers, objectives: Sequence[Objective]) -> bool:
    """Returns whether what it saves may have it chosen while its speed is not known well enough."""
    saves = (
        may_be_leaner(entrant) if o.name == "peak_memory_mib" else entrant.gains[o.name].low > 1
        for o in objectives
        if o.name not in SPEEDS
    )
    return may_be_slower(entrant) and any(saves)


def are_known(entrant: Numbers, objectives: Sequence[Objective]) -> bool:
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


def _dominates(one: Numbers, other: Numbers, objectives: Sequence[Objective]) -> bool:
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
class RoundsPlan:
    """How rounds are played; the defaults are those of a comparison that is not short of time.

    Attributes:
        effort: How much each measurement may cost.
        fewest: Rounds after which an entrant may rest.
        enough: Rounds that are played however short the time is.
        most: Rounds at most.
        most_for_proof: Rounds at most of an entrant that may be chosen for what it saves, while it
            is not known whether it is slower.
        is_settled: Whether an entrant rests in further rounds.
        keep: Entrants beside the first one that stay for `enough` rounds however short the time is.
        together: Whether all entrants leave where the time does not pay for all of them.
        reserve: Share of the budget that is kept for what follows.
        spare: Measurements that are kept for what follows.
        gain_in_sight: The largest gain that the search saw. While noise hides it, the rounds go
            on, up to twice the budget; 0 where none is sought.
    """

    effort: Effort = FINAL_COMPARISON
    fewest: int = ENOUGH_ROUNDS
    enough: int = ENOUGH_ROUNDS
    most: int = MOST_ROUNDS
    most_for_proof: int = 0
    is_settled: IsSettled = is_settled
    keep: float = math.inf
    together: bool = False
    reserve: float = 0.0
    spare: int = 0
    gain_in_sight: float = 0.0


FINAL = RoundsPlan(
    fewest=_FEWEST_ROUNDS, most_for_proof=_MOST_ROUNDS_FOR_PROOF, keep=2, reserve=0.5
)
"""The rounds of the final comparison."""


@dataclass(frozen=True, kw_only=True)
class Finalist:
    """One trial of a study in the final comparison.

    Attributes:
        measurements: What was measured of it, round by round from the first one on.
    """

    trial: Trial
    numbers: Numbers
    measurements: tuple[Measurement, ...] = ()


def compare_finalists(
    measurer: Measurer,
    baseline: Trial,
    configurations: Sequence[Trial],
    objectives: Sequence[Objective],
    *,
    seed: int,
    on_step: OnStep,
    beyond_limits: Sequence[Trial] = (),
    budget: Budget | None = None,
    fewest_runs: int = 0,
    on_note: OnNote = lambda _: None,
) -> list[Finalist]:
    """Returns the default and the other trials, in the order of the arguments.

    Trials that failed are left out, and those that the budget had no second round for.

    Args:
        beyond_limits: Trials that break a limit and are measured to say what it costs; they
            dominate no other.

    Raises:
        CannotMeasureError: the default fails.
    """
    plan = replace(FINAL, gain_in_sight=gain_in_sight(baseline, configurations, objectives))
    if budget is not None and budget.is_strict:
        plan = replace(plan, enough=_FEWEST_ROUNDS, gain_in_sight=0.0)
        room = budget.pays_for(plan.reserve) / _FEWEST_ROUNDS - 1  # one is the default's
        if room < len(configurations) + len(beyond_limits):
            configurations, beyond_limits = configurations[: max(1, int(room))], ()
    trials = {trial.number: trial for trial in (baseline, *configurations, *beyond_limits)}
    rounds = Rounds(
        {n: partial(measurer.measure, trial.configuration) for n, trial in trials.items()},
        measurer.renew,
        objectives,
        seed=seed,
        on_step=on_step,
        plan=plan,
        out_of_competition={trial.number for trial in beyond_limits},
        budget=budget,
        fewest_runs=fewest_runs,
        on_note=on_note,
    )
    return [
        Finalist(
            trial=trials[number],
            numbers=own,
            measurements=tuple(rounds.measurements(number)),
        )
        for number, own in rounds.play().items()
    ]


def gain_in_sight(
    baseline: Trial, configurations: Sequence[Trial], objectives: Sequence[Objective]
) -> float:
    """Returns the largest gain over the default in any objective, as the search measured it.

    It is the share of the time or the memory that is saved, such as 0.46.
    """
    base = {} if baseline.measurement is None else values(baseline.measurement, objectives)
    gains = [
        1 - 1 / objective.gain(own[objective.name], base[objective.name])
        for trial in configurations
        if trial.measurement is not None
        for own in [values(trial.measurement, objectives)]
        for objective in objectives
        if objective.name in own.keys() & base.keys()
    ]
    return max([0.0, *gains])


@dataclass
class Rounds:
    """Rounds in which configurations are measured side by side.

    A configuration that fails in any round is left out: it cannot be relied on. One that is settled
    rests in further rounds; it dominates others all the same. Where the time is short, those leave
    that are needed least. Where none is left to compare with the first entrant, the rounds end.
    Answers are compared in the first round.

    Attributes:
        entrants: What takes part, the default first.
        renew: Starts a fresh reference; called before each round.
        plan: How many rounds there are, and how much they cost.
        budget: How long this may take; None means that nothing limits it.
        fewest_runs: Timed runs of each measurement at least.
        on_note: Called where the rounds go on because the machine is noisy.
        failures: By number, why an entrant was left out.
    """

    entrants: Entrants
    renew: Callable[[], None]
    objectives: Sequence[Objective]
    _: KW_ONLY
    seed: int
    on_step: OnStep
    plan: RoundsPlan = RoundsPlan()
    out_of_competition: Collection[int] = ()
    budget: Budget | None = None
    fewest_runs: int = 0
    on_note: OnNote = lambda _: None
    failures: dict[int, Failure] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._order = random.Random(self.seed)
        self._budget = self.budget or Budget()
        self._doubled = False
        self._baseline, *self._others = self.entrants
        self._measurements: dict[int, list[Measurement]] = {n: [] for n in self.entrants}
        self._done = 0
        self._in_vain = 0

    def play(self) -> dict[int, Numbers]:
        """Returns the numbers of each entrant that never failed, the default first.

        One that left after the first of several rounds has none.

        Raises:
            CannotMeasureError: the default fails.
        """
        active = list(self._others)
        played = 0
        while played == 0 or active:
            self._play_round(active, max(0, self.plan.most - played - 1))
            played += 1
            active = self._going_on(active, played)
        fewest = min(_FEWEST_ROUNDS, len(self._measurements[self._baseline]))
        return self._scores(
            [
                number
                for number, own in self._measurements.items()
                if number not in self.failures and len(own) >= fewest
            ]
        )

    def beside(self, number: int, other: int) -> Numbers:
        """Returns the numbers of an entrant beside those of another one, by the rounds of both."""
        field = self._measurements.values()
        return numbers_of(self._measurements[number], self._measurements[other], field)

    def measurements(self, number: int) -> Sequence[Measurement]:
        """Returns the measurements of an entrant, round by round from the first one on."""
        return self._measurements[number]

    def _going_on(self, active: Sequence[int], played: int) -> list[int]:
        """Returns the entrants of the next round; none where the rounds end."""
        active = [number for number in active if number not in self.failures]
        if played >= self.plan.fewest:
            active = self._unsettled(active)
        if active and played >= self.plan.enough and not self._budget.is_doubled:
            is_at_end = played >= self.plan.most or len(self._paid_for(active, played)) < len(
                active
            )
            if is_at_end and self._is_gain_hidden(active):
                self._double()
        if played >= self.plan.most and not self._is_looking_on(active, played):
            scores = self._scores(active)
            in_time = played < self.plan.most_for_proof
            active = [n for n in active if in_time and _needs_proof(scores[n], self.objectives)]
        return self._paid_for(active, played)

    def _is_looking_on(self, active: Sequence[int], played: int) -> bool:
        """Returns whether the rounds go on in the doubled time, because a gain is hidden still."""
        is_allowed = self._doubled and played < _MOST_IN_NOISE * self.plan.most
        return is_allowed and self._is_gain_hidden(active)

    def _is_gain_hidden(self, active: Sequence[int]) -> bool:
        """Returns whether a gain that counts is in sight, and lost in the noise of the machine.

        So is what saves memory where the noise hides whether it costs more than it may.
        """
        scores = self._scores([self._baseline, *active])
        floor, gain = scores[self._baseline].noise_floor, self.plan.gain_in_sight
        if gain <= SMALLEST_GAIN:
            return False
        needs_proof = any(_needs_proof(scores[n], self.objectives) for n in active)
        return floor > gain or (floor > MAY_COST and needs_proof)

    def _double(self) -> None:
        (base,) = self._scores([self._baseline]).values()
        self._doubled = True
        self._budget.double()
        self.on_note(
            f"The machine is noisy: the final comparison cannot tell differences below "
            f"{base.noise_floor:.0%}, and the search saw a gain of {self.plan.gain_in_sight:.0%}. "
            "It goes on, up to twice its time.".replace("%", " %")
        )

    def _unsettled(self, active: Sequence[int]) -> list[int]:
        """Returns the entrants that are not settled; those that rest dominate others, too."""
        standing = self._scores(
            [
                number
                for number, own in self._measurements.items()
                if number not in self.failures and len(own) >= _FEWEST_ROUNDS
            ]
        )
        field = {n: own for n, own in standing.items() if n not in self.out_of_competition}
        return [
            n
            for n in active
            if not self.plan.is_settled(n, {**field, n: standing[n]}, self.objectives)
        ]

    def _paid_for(self, active: Sequence[int], played: int) -> list[int]:
        """Returns the entrants that there is time for, those that are needed most first."""
        rounds = max(1, self.plan.enough - played)
        paid_for = self._budget.pays_for(self.plan.reserve) - self.plan.spare
        room = paid_for / rounds - 1  # one is the default's
        if played < self.plan.enough:
            room = max(room, self.plan.keep)
        if room >= len(active):
            return list(active)
        return [] if self.plan.together else self._most_needed(active, int(room))

    def _most_needed(self, active: Sequence[int], count: int) -> list[int]:
        """Returns so many entrants: a spread of their front, and those next to it."""
        if count < 1:
            return []
        scores = self._scores(active)
        competing = [n for n in active if n not in self.out_of_competition]
        front = pareto.front(competing, lambda n: scores[n].values, self.objectives)
        first = self.objectives[0]
        ranked = sorted(competing, key=lambda n: first.cost(scores[n].values[first.name]))
        chosen = [*pareto.spread(front, count), *front, *ranked, *active]
        return list(dict.fromkeys(chosen))[:count]

    def _play_round(self, active: Sequence[int], rounds_left: int) -> None:
        began_s = self._budget.monotonic()
        self.renew()
        field = [self._baseline, *active]
        for number in self._order.sample(field, len(field)):
            outcome = self._measure(number)
            # two rounds with a percentile are enough; later ones may lack it
            if len(self._measurements[number]) < _FEWEST_ROUNDS:
                outcome = complete(outcome, self.objectives)
            if isinstance(outcome, Measurement):
                self._measurements[number].append(outcome)
            elif number == self._baseline:
                raise CannotMeasureError(f"the baseline failed: {outcome.message}")
            else:
                self.failures[number] = outcome
            self._done += 1
            self.on_step(self._done, self._done + len(field) * rounds_left)
        self._budget.book(len(field), self._budget.monotonic() - began_s)

    def _measure(self, number: int) -> Outcome:
        """Measures; again, while that is of any use, on a noisy machine or without a percentile."""
        effort = replace(
            effort_for(self.plan.effort, self.objectives, self.fewest_runs),
            compares_answers=not self._measurements[number],
        )
        outcome = self.entrants[number](effort)
        if self._is_poor(outcome) and self._in_vain < _MOST_IN_VAIN:
            outcome = self.entrants[number](effort)
            self._in_vain += self._is_poor(outcome)
        return outcome

    def _is_poor(self, outcome: Outcome) -> bool:
        """Returns whether a measurement was disturbed, or has too few runs for an objective."""
        return isinstance(outcome, Measurement) and not (
            outcome.is_undisturbed and isinstance(complete(outcome, self.objectives), Measurement)
        )

    def _scores(self, numbers: Sequence[int]) -> dict[int, Numbers]:
        base = self._measurements[self._baseline]
        field = self._measurements.values()
        return {number: numbers_of(self._measurements[number], base, field) for number in numbers}
