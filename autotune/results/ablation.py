"""The smallest config that is as good as the winner of the final comparison.

What matters neither for an objective nor for the answers is dropped. Changes that are needless
alone may matter together: the config without them is measured beside the winner and the default, in
rounds like those of the final comparison, and only the numbers of these rounds are reported.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.deploy.config import Interval
from autotune.deploy.options import Value
from autotune.results.alone import CLEAR_FACTOR, FARTHEST, Contest, factor_of, finite, parts_of
from autotune.results.changes import changes_of, outermost, put_back
from autotune.results.choice import choose
from autotune.results.parts import Ablation, Part, Step
from autotune.results.run_off import Finalist, Plan, Rounds
from autotune.results.score import Score, is_loss, on_scale
from autotune.search.objective import SPEEDS
from autotune.search.trial import Trial
from autotune.space.candidate import BASELINE, Candidate

_MOST_STEPS = 3
_TOGETHER = Plan(most=5)
_DEFAULT, _WINNER, _REDUCED, _FIRST_STEP = 0, 1, 2, 3
# The least number of measurements of an attempt to leave changes out.
_ATTEMPT = _TOGETHER.enough * len((_DEFAULT, _WINNER, _REDUCED))

Names = frozenset[str]
"""Parameters that are put back."""


@dataclass(frozen=True, kw_only=True)
class _Reduction:
    """A config that is as good as the winner, and what its changes bring, step by step."""

    finalist: Finalist
    steps: tuple[Step, ...]
    whole: Step


def ablate(contest: Contest) -> tuple[Finalist, Ablation]:
    """Returns the smallest config that is as good as the winner, and what its changes bring.

    The config has the number of its own trial where the study measured it, or else the winner's.

    Raises:
        CannotMeasureError: the default or the winner fails.
    """
    parts = parts_of(contest)
    reduction = _reduce(contest, parts)
    kept = reduction.finalist.trial.candidate.to_json()
    return reduction.finalist, Ablation(
        trial=reduction.finalist.trial.number,
        winner=contest.winner.trial.candidate.to_json(),
        parts=tuple(
            part if kept.keys() & part.changes.keys() else replace(part, kept=False, matters_for=())
            for part in parts
        ),
        steps=reduction.steps,
        whole=reduction.whole,
        complete=True,
    )


def unfinished(winner: Finalist) -> Ablation:
    """Returns the ablation of a winner that is emitted as it is, because the study was cut short.

    Args:
        winner: The winner of the final comparison.
    """
    return Ablation(
        trial=winner.trial.number,
        winner=winner.trial.candidate.to_json(),
        parts=(),
        steps=(),
        whole=None,
        complete=False,
    )


def _reduce(contest: Contest, parts: Sequence[Part]) -> _Reduction:
    """Returns the winner without as many of its needless changes as it can do without together.

    Those that seem to help least are left out first.
    """
    winner, space = contest.winner.trial.candidate, contest.setting.space
    needless = sorted(filter(_may_be_needless, parts), key=_benefit)
    while needless and put_back(winner, _names(needless), space) == BASELINE:
        needless = needless[:-1]  # the winner beat the default, so they matter together
    for count in _counts(contest, len(needless)):
        # without time for one more, the first attempt would often be the last
        spare = _ATTEMPT if count > 1 else 0
        reduction = _verified(contest, _names(needless[:count]), parts, spare)
        if reduction is not None:
            return reduction
    return _unreduced(contest, parts)


def _counts(contest: Contest, needless: int) -> Iterator[int]:
    """Yields how many of the changes that may be needless are left out, attempt by attempt.

    One of them is needed more often than half of them. A further attempt is made where there is
    time for it. A study that is too short even for the first one has two: all of them, and half of
    them.
    """
    if needless:
        yield needless
    has_time = contest.budget.pays_for() >= 2 * _ATTEMPT
    further = dict.fromkeys((needless - 1, needless // 2, 1) if has_time else (needless // 2,))
    for count in further:
        if 0 < count < needless and (
            contest.budget.is_short or contest.budget.pays_for() >= _ATTEMPT
        ):
            yield count


def _may_be_needless(part: Part) -> bool:
    """Returns whether nothing speaks for a change but a small gain in speed.

    All changes were measured beside the same few measurements of the winner: where those were
    lucky, every one of them seems to bring a few per cent. So the rounds without them decide.
    """
    brings_only_speed = set(part.matters_for) <= set(SPEEDS)
    return brings_only_speed and part.speedup is not None and part.speedup.value < CLEAR_FACTOR


def _pays_for_rounds(contest: Contest, entrants: int, spare: int = 0) -> bool:
    """Returns whether there is time for rounds of so many configs, and `spare` measurements."""
    return contest.budget.pays_for() - spare >= _TOGETHER.enough * entrants


def _verified(
    contest: Contest, names: Names, parts: Sequence[Part], spare: int = 0
) -> _Reduction | None:
    """Returns the winner without the parameters `names`; None if it is not as good in rounds.

    Without names it is the winner itself, by the numbers of the final comparison. The steps are
    measured as far as there is time for them.

    Args:
        contest: The contest.
        names: The parameters that are left out.
        parts: What each change of the winner does.
        spare: Measurements that are kept for another attempt.
    """
    winner, space = contest.winner.trial.candidate, contest.setting.space
    reduced = put_back(winner, names, space)
    groups = list(_groups(contest, reduced, parts))
    last = _WINNER if reduced == winner else _REDUCED
    later = [frozenset().union(*groups[i:]) for i in range(1, len(groups))]
    ladder = dict(enumerate((put_back(reduced, n, space) for n in later), _FIRST_STEP))
    entrants = {_DEFAULT: BASELINE, _WINNER: winner, last: reduced}
    if not _pays_for_rounds(contest, len(entrants) + len(ladder), spare):
        ladder = {}
    rounds = contest.rounds(entrants | ladder, replace(_TOGETHER, spare=spare))
    scores = rounds.play()
    if not {_WINNER, last} <= scores.keys():
        return None
    finalist = contest.winner
    if last == _REDUCED:
        finalist = _as_finalist(contest, reduced, scores[last], rounds)
        if not _is_as_good(contest, finalist, rounds):
            return None
    whole = _step(contest, reduced.to_json(), rounds.beside(last, _DEFAULT))
    if ladder:
        numbered = zip([*ladder, last], groups, strict=True)
        steps = tuple(_steps(contest, reduced, numbered, rounds, scores))
    else:
        steps = tuple(_calculated(whole, groups, parts))
    return _Reduction(finalist=finalist, steps=steps, whole=whole)


def _as_finalist(contest: Contest, reduced: Candidate, score: Score, rounds: Rounds) -> Finalist:
    """Returns the reduced config with its numbers, on the scale of the final comparison."""
    numbers = {trial.candidate: trial.number for trial in contest.trials}
    finalist = Finalist(
        **vars(score),
        trial=Trial(
            number=numbers.get(reduced, contest.winner.trial.number),
            candidate=reduced,
            outcome=rounds.measurements(_REDUCED)[-1],
        ),
    )
    return on_scale(finalist, contest.baseline)


def _is_as_good(contest: Contest, reduced: Finalist, rounds: Rounds) -> bool:
    """Returns whether the reduced config loses nothing, and would be emitted as well."""
    beside, winner = rounds.beside(_REDUCED, _WINNER), rounds.beside(_WINNER, _WINNER)
    for objective in contest.objectives:
        if objective.name in SPEEDS:
            loses = is_loss(beside.speedup)
        else:
            loses = beside.is_surely_worse(objective, winner)
        if loses:
            return False
    setting = contest.setting
    field = [contest.baseline, reduced]
    is_emitted = choose(field, setting.limits, setting.objectives, setting.prefer) is reduced
    return is_emitted and not contest.has_worse_answers(reduced)


def _unreduced(contest: Contest, parts: Sequence[Part]) -> _Reduction:
    """Returns the winner as it is, with the steps to it.

    Two steps are calculated from the final comparison and from the changes that were put back
    alone. Of three, those before the last are measured, if there is time for that.
    """
    candidate = contest.winner.trial.candidate
    groups = list(_groups(contest, candidate, parts))
    entrants = len((_DEFAULT, *groups))
    if len(groups) > 2 and _pays_for_rounds(contest, entrants):
        measured = _verified(contest, frozenset(), parts)
        if measured is not None:
            return measured
    whole = _step(contest, candidate.to_json(), contest.winner)
    steps = tuple(_calculated(whole, groups, parts))
    return _Reduction(finalist=contest.winner, steps=steps, whole=whole)


def _calculated(whole: Step, groups: Sequence[Names], parts: Sequence[Part]) -> Iterator[Step]:
    """Yields two steps that make the whole; the last is the weakest change that was put back alone.

    One step alone where no change was.
    """
    last = next(
        (
            part
            for names in reversed(groups)
            for part in parts
            if names == part.changes.keys() and len(groups) > 1
        ),
        None,
    )
    if last is None or last.speedup is None or last.memory is None:
        yield whole
        return
    first = {name: value for name, value in whole.changes.items() if name not in last.changes}
    yield Step(
        changes=first,
        words=Candidate.of(first).in_words(),
        speedup=_quotient(whole.speedup, last.speedup),
        memory=_quotient(whole.memory, last.memory),
    )
    yield Step(changes=last.changes, words=last.words, speedup=last.speedup, memory=last.memory)


def _quotient(whole: Interval, part: Interval) -> Interval:
    """Returns the factor that is left of the whole without the part.

    The ends are as far away, in logarithms, as those of two independent factors (root of the sum of
    squares).
    """
    value = whole.value / part.value
    up = math.hypot(math.log(whole.high / whole.value), _reach_down(part))
    down = math.hypot(_reach_down(whole), math.log(part.high / part.value))
    return Interval(value=value, low=value * math.exp(-down), high=value * math.exp(up))


def _reach_down(factor: Interval) -> float:
    return math.log(factor.value / max(factor.low, factor.value / FARTHEST))


def _groups(contest: Contest, candidate: Candidate, parts: Sequence[Part]) -> Iterator[Names]:
    """Yields the parameters of each step from the default to a candidate, the strongest first."""

    def strength(names: Names) -> float:
        # what the user fixed was not put back alone
        return max((_strength(p) for p in parts if names <= p.changes.keys()), default=math.inf)

    outer = outermost(changes_of(candidate, contest.setting.space))
    ranked = sorted((frozenset(change.values) for change in outer), key=strength, reverse=True)
    if len(ranked) <= _MOST_STEPS:
        yield from ranked
        return
    yield from ranked[: _MOST_STEPS - 1]
    yield frozenset().union(*ranked[_MOST_STEPS - 1 :])


def _steps(
    contest: Contest,
    candidate: Candidate,
    groups: Iterable[tuple[int, Names]],
    rounds: Rounds,
    scores: Collection[int],
) -> Iterator[Step]:
    """Yields the steps; a step that failed in the rounds is one with the next."""
    before, pending = _DEFAULT, set[str]()
    for number, names in groups:
        pending |= names
        if number in scores:
            values = {name: v for name, v in candidate.values if name in pending}
            yield _step(contest, values, rounds.beside(number, before))
            before, pending = number, set()


def _step(contest: Contest, values: Mapping[str, Value], score: Score) -> Step:
    """Returns the step that adds `values`, by the score beside the config before it."""
    return Step(
        changes=values,
        words=Candidate.of(values).in_words(),
        speedup=finite(score.speedup),
        memory=factor_of(score.gains[contest.memory.name]),
    )


def _benefit(part: Part) -> float:
    """Returns how much better latency and memory are with a part, as a logarithm."""
    if part.speedup is None or part.memory is None:
        return math.inf
    return math.log(part.speedup.value) - math.log(part.memory.value)


def _strength(part: Part) -> float:
    """Returns how much a part does to latency and memory together, as a logarithm."""
    if part.speedup is None or part.memory is None:
        return math.inf
    return abs(math.log(part.speedup.value)) + abs(math.log(part.memory.value))


def _names(parts: Sequence[Part]) -> Names:
    return frozenset(name for part in parts for name in part.changes)
