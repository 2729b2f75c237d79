"""Each change of the winner of a final comparison, put back alone and measured beside it."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from autotune.deploy.config import Interval
from autotune.graph.parameters import GRAPH_PARAMETERS
from autotune.measure.outcome import ABLATION, Failure, Measurer
from autotune.results.budget import Budget
from autotune.results.changes import Change, changes_of, is_free, put_back
from autotune.results.parts import ANSWERS, RUNNING, Part
from autotune.results.run_off import Finalist, OnStep, Plan, Rounds, are_known
from autotune.results.score import SMALLEST_GAIN, Score, is_gain, score
from autotune.results.setting import Setting
from autotune.search.beliefs import Effect
from autotune.search.finalists import EXACT_ERROR
from autotune.search.objective import OBJECTIVES, SPEEDS, Objective
from autotune.search.trial import Trial
from autotune.space.candidate import BASELINE, Candidate

# Of a longer list, or of one that takes too long, the weakest changes by the model of the search
# are put back together.
_MOST_ALONE = 6
_FEWEST_ALONE = 4
# Three rounds of the default, the winner and the config without what is needless follow.
_SPARE = 9
_FEWEST_TO_DROP = 3
CLEAR_FACTOR = 1.1
"""A change that does so much in two rounds matters, whatever a third one says."""

_CLEARLY = math.log(CLEAR_FACTOR)
# Another order of the same sums makes that much difference to an error.
_SAME_ERROR = 1.1
# JSON has no infinite numbers.
FARTHEST = 1e3
_WINNER = 0


def _is_clear(without: Score, _: Iterable[Score], objectives: Sequence[Objective]) -> bool:
    """Returns whether it is known if a change matters, by the score of the winner without it."""
    if abs(math.log(without.speedup.value)) > _CLEARLY:
        return True
    other_memory = without.leaner or without.larger
    if other_memory and abs(math.log(without.gains["peak_memory_mib"].value)) > _CLEARLY:
        return True
    speedup = factor_of(without.speedup)
    seems_needless = speedup.value <= 1 + SMALLEST_GAIN
    if without.rounds < _FEWEST_TO_DROP or not are_known(without, objectives):
        return False
    return seems_needless or is_gain(speedup)


@dataclass(frozen=True, kw_only=True)
class Contest:
    """What an ablation works on.

    Attributes:
        setting: What the study works on.
        measurer: Measures candidates.
        baseline: The default in the final comparison.
        winner: The winner of the final comparison.
        compared: What else was measured in its rounds.
        trials: The measured trials of the study.
        effects: Returns how much each value alone changes the objectives, by the model of the
            search; called where there are many changes.
        on_step: Called after each measurement.
        budget: How long the ablation may take.
    """

    setting: Setting
    measurer: Measurer
    baseline: Finalist
    winner: Finalist
    compared: Sequence[Finalist] = ()
    trials: Sequence[Trial]
    effects: Callable[[], Sequence[Effect]]
    on_step: OnStep
    budget: Budget = field(default_factory=Budget)

    @property
    def memory(self) -> Objective:
        """The memory that the study minimises: that of devices, or of the process."""
        kinds = ("peak_memory_mib", "peak_device_memory_mib")
        names = {objective.name for objective in self.setting.objectives}
        return OBJECTIVES[next((name for name in kinds if name in names), kinds[0])]

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """Speed and memory, by which every config is judged, and those of the study."""
        chosen = [o for o in self.setting.objectives if o.name in SPEEDS]
        judged = ((chosen or [OBJECTIVES["latency_ms"]])[0], self.memory)
        return tuple(dict.fromkeys((*judged, *self.setting.objectives)))

    def rounds(self, entrants: Mapping[int, Candidate], plan: Plan) -> Rounds:
        """Returns rounds of these candidates, by number."""
        return Rounds(
            {n: partial(self.measurer.measure, candidate) for n, candidate in entrants.items()},
            self.measurer.renew,
            self.setting.objectives,
            seed=self.setting.seed,
            on_step=self.on_step,
            plan=plan,
            budget=self.budget,
            fewest_runs=self.setting.limits.fewest_runs,
        )

    def has_worse_answers(self, score: Score) -> bool:
        """Returns whether the answers are clearly further off than the winner's.

        Those that are as right as the default's are not: nobody needs a change for rounding.
        """
        winner = self.winner
        same_error = _SAME_ERROR * max(winner.error, self.baseline.error)
        return (
            not self.setting.limits.admit_answers(score.error, score.drop)
            or score.error > same_error + EXACT_ERROR
            or (score.drop or 0.0) > (winner.drop or 0.0) + EXACT_ERROR
        )


def parts_of(contest: Contest) -> list[Part]:
    """Returns what each change of the winner does, put back alone; all of them count as kept.

    Changes that the space does not offer to put back are left out.

    Raises:
        CannotMeasureError: the winner fails.
    """
    space = contest.setting.space
    changes = [
        change
        for change in changes_of(contest.winner.trial.candidate, space)
        if all(is_free(name, space) for name in change.values)
    ]
    parts = []
    to_measure = []
    for change in changes:
        part = _known(contest, change)
        if part is None:
            to_measure.append(change)
        else:
            parts.append(part)
    if to_measure:
        few = _few(contest, to_measure)
        measured = _measured(contest, few)
        together = [change for change in to_measure if change not in few]
        if together:
            measured[-1:] = _taken_apart(contest, measured[-1], together)
        parts += measured
    return parts


def finite(interval: Interval) -> Interval:
    """Returns the interval with an end that JSON can hold."""
    return Interval(value=interval.value, low=interval.low, high=min(interval.high, FARTHEST))


def factor_of(gain: Interval) -> Interval:
    """Returns the factor of which `gain` is the inverse, with finite ends."""
    low = max(gain.low, 1 / FARTHEST)
    return Interval(value=1 / gain.value, low=1 / finite(gain).high, high=1 / low)


_ALONE = Plan(effort=ABLATION, fewest=2, enough=2, most=5, is_settled=_is_clear, spare=_SPARE)


def _known(contest: Contest, change: Change) -> Part | None:
    """Returns the part if the final comparison or the files tell what it does; None if not."""
    if change.without == BASELINE:
        return _as_whole(contest, change)
    winner = contest.winner
    canonical = contest.measurer.canonical
    field = [finalist.measurements for finalist in contest.compared]
    if canonical(change.without) == canonical(change.of):  # the same session on the same graph
        return _part(
            contest, change, score(winner.measurements, winner.measurements, field), winner
        )
    for finalist in contest.compared:
        if finalist.trial.candidate == change.without and finalist.measurements:
            without = score(finalist.measurements, winner.measurements, field)
            is_clear = _is_clear(without, (), contest.setting.objectives)
            if is_clear and without.rounds >= _FEWEST_TO_DROP:
                return _part(contest, change, without, winner)
    return None


def _as_whole(contest: Contest, change: Change) -> Part:
    """Returns the part that is all of the winner, by the numbers of the final comparison."""
    winner, baseline = contest.winner.values, contest.baseline.values
    better = [
        o.name
        for o in contest.objectives
        if (
            contest.winner.leaner
            if o.name == "peak_memory_mib"
            else o.is_better(winner[o.name], baseline[o.name])
        )
    ]
    return Part(
        changes=change.values,
        words=change.words,
        kept=True,
        matters_for=tuple(better),
        speedup=contest.winner.speedup,
        memory=factor_of(contest.winner.gains[contest.memory.name]),
        error=contest.baseline.error,
        failure="",
    )


def _taken_apart(contest: Contest, part: Part, changes: Sequence[Change]) -> list[Part]:
    """Returns the part that several changes are together, or the parts that they are apart.

    Where it matters, one of them does, or several. Each is put back alone if there is time for all;
    or else one half and the other, and these are taken apart in their turn.
    """
    if len(changes) == 1 or not part.matters_for:
        return [part]
    if _pays_for(contest, len(changes)):
        return _measured(contest, changes)
    halves = changes[: len(changes) // 2], changes[len(changes) // 2 :]
    if not _pays_for(contest, len(halves)):
        return [part]
    parts = _measured(contest, [_together(contest, half) for half in halves])
    return [
        smaller
        for own, half in zip(parts, halves, strict=True)
        for smaller in _taken_apart(contest, own, half)
    ]


def _pays_for(contest: Contest, count: int) -> bool:
    """Returns whether there is time to put so many changes back; in a short study there is."""
    measurements = _ALONE.enough * (1 + count) + _SPARE
    return contest.budget.is_short or contest.budget.pays_for() >= measurements


def _together(contest: Contest, changes: Sequence[Change]) -> Change:
    """Returns several changes as one."""
    names = [name for change in changes for name in change.values]
    candidate = contest.winner.trial.candidate
    return Change(candidate, put_back(candidate, names, contest.setting.space))


def _few(contest: Contest, changes: Sequence[Change]) -> list[Change]:
    """Returns the changes, the weakest of a long list in one."""
    # each round has the winner as well
    paid_for = (contest.budget.pays_for() - _SPARE) / _ALONE.enough - 1
    most = int(min(_MOST_ALONE, max(_FEWEST_ALONE, paid_for)))
    if len(changes) <= most:
        return list(changes)
    believed: dict[str, tuple[bool, float]] = {}
    for effect in contest.effects():
        # after few trials most are unknown, and large ones are likelier to be there than small ones
        shift = (effect.is_known, abs(math.log(effect.factor.value)))
        believed[effect.parameter] = max(shift, believed.get(effect.parameter, shift))

    def strength(change: Change) -> tuple[bool, tuple[bool, float]]:
        # what changes the model's file hardly ever does nothing, and session options often do
        in_file = any(name in GRAPH_PARAMETERS for name in change.values)
        return in_file, max(believed.get(name, (False, 0.0)) for name in change.values)

    ranked = sorted(changes, key=strength, reverse=True)
    strong, weak = ranked[: most - 1], ranked[most - 1 :]
    return [*strong, _together(contest, weak)]


def _measured(contest: Contest, changes: Sequence[Change]) -> list[Part]:
    """Returns the parts that the rounds without each of the changes show."""
    numbered = dict(enumerate(changes, _WINNER + 1))
    entrants = {_WINNER: contest.winner.trial.candidate}
    rounds = contest.rounds(entrants | {n: c.without for n, c in numbered.items()}, _ALONE)
    scores = rounds.play()
    return [
        _failing(change, rounds.failures[number])
        if number in rounds.failures
        else _part(contest, change, scores[number], scores[_WINNER])
        for number, change in numbered.items()
    ]


def _failing(change: Change, failure: Failure) -> Part:
    return Part(
        changes=change.values,
        words=change.words,
        kept=True,
        matters_for=(RUNNING,),
        speedup=None,
        memory=None,
        error=failure.error,
        failure=failure.message,
    )


def _part(contest: Contest, change: Change, without: Score, winner: Score) -> Part:
    """Returns the part by the score without the change, which is relative to the winner's."""
    speedup = factor_of(without.speedup)
    matters = []
    for objective in contest.objectives:
        if objective.name in SPEEDS:
            better = is_gain(speedup)
        else:
            better = without.is_surely_worse(objective, winner)
        if better:
            matters.append(objective.name)
    if contest.has_worse_answers(without):
        matters.append(ANSWERS)
    return Part(
        changes=change.values,
        words=change.words,
        kept=True,
        matters_for=tuple(matters),
        speedup=speedup,
        memory=finite(without.gains[contest.memory.name]),
        error=without.error,
        failure="",
    )
