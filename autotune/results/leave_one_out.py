"""Leave-one-out: what each change of the winner does, and the winner without those it can lose.

Each change is reverted alone and measured beside the winner. The changes without a clear effect may
matter together, so the winner without all of them is measured beside the winner and the default in
rounds of its own. It takes the winner's place only where these rounds prove that it is at most 1 %
slower (non-inferiority: the lower end of the interval counts), than the default as well if that was
proven of the winner, and show no other loss. Where the rounds do not suffice for that, the changes
stay.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from autotune.deploy.config import Interval, Numbers
from autotune.deploy.options import Value
from autotune.graph.parameters import GRAPH_PARAMETERS, OPTIONS, PRECISIONS
from autotune.measure.outcome import SIMPLIFICATION, Failure, Measurement, Measurer
from autotune.results.final_comparison import (
    ENOUGH_ROUNDS,
    Budget,
    Finalist,
    OnStep,
    Rounds,
    RoundsPlan,
    are_known,
)
from autotune.results.score import (
    MAY_LOSE,
    SMALLEST_GAIN,
    factor_of,
    finite,
    is_gain,
    is_larger,
    is_leaner,
    is_not_slower,
    is_surely_worse,
    on_scale,
)
from autotune.results.selection import select
from autotune.search.context import Context
from autotune.search.effects import Effect
from autotune.search.finalists import EXACT_ERROR
from autotune.search.objective import OBJECTIVES, SPEEDS, Objective
from autotune.search.trial import Trial
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.session import EXECUTION_PROVIDER, PROVIDER_OPTIONS
from autotune.space.space import Space

ANSWERS = "answers"
"""In :attr:`Part.matters_for`: without the change the answers are worse."""

RUNNING = "running"
"""In :attr:`Part.matters_for`: without the change the config fails."""

# Of a longer list, or of one that takes too long, the weakest changes by the model of the search
# are reverted together.
_MOST_ALONE = 6
_FEWEST_ALONE = 4
# A change that does so much in two rounds matters, whatever a third one says.
_CLEARLY = math.log(1.1)
# Another order of the same sums makes that much difference to an error.
_SAME_ERROR = 1.1
_WINNER, _DEFAULT, _REDUCED = 0, 1, 2
# The least number of measurements that show whether the winner can lose several changes.
_PROOF = ENOUGH_ROUNDS * len((_WINNER, _DEFAULT, _REDUCED))
# Two rounds of the winner and of what is reverted in a short time come before.
_LEAST = 2 * (1 + _FEWEST_ALONE) + _PROOF


@dataclass(frozen=True, kw_only=True)
class Part:
    """Changes of a config, and what they do.

    Attributes:
        changes: The parameters that were reverted, with the values that the config has.
        words: The same in words.
        kept: Whether the selected config has the changes.
        matters_for: What is worse without them by more than the noise: names of objectives,
            :data:`ANSWERS` or :data:`RUNNING`. Empty where nothing is.
        speedup: How many times faster the config is with them than without; None where it fails
            without them.
        memory: Peak memory with them over that without; None in the same way.
        error: Fidelity error without them; None in the same way.
        failure: Why the config fails without them; empty where it does not.
    """

    changes: Mapping[str, Value]
    words: str
    kept: bool = True
    matters_for: tuple[str, ...]
    speedup: Interval | None = None
    memory: Interval | None = None
    error: float | None
    failure: str = ""


@dataclass(frozen=True, kw_only=True)
class Simplification:
    """Which changes of the winner matter, and what all changes of the selected config bring.

    Attributes:
        winner: The winner of the final comparison, before changes were dropped.
        parts: Every change of the winner, reverted alone and measured beside it.
        whole: All changes of the selected config beside the default; None where nothing was
            measured.
        complete: False where the study was cut short before all changes were reverted and the
            config was judged.
    """

    trial: int
    winner: Mapping[str, Value]
    parts: tuple[Part, ...] = ()
    whole: Part | None = None
    complete: bool = True

    @property
    def dropped(self) -> tuple[Part, ...]:
        """The changes that the selected config does without."""
        return tuple(part for part in self.parts if not part.kept)

    @property
    def kept(self) -> tuple[Part, ...]:
        """The changes of the selected config that are no part of another one."""
        names = [part.changes.keys() for part in self.parts if part.kept]
        return tuple(
            part
            for part in self.parts
            if part.kept and not any(part.changes.keys() < others for others in names)
        )


@dataclass(frozen=True)
class Change:
    """Differences of a configuration from the default that are reverted together."""

    of: Configuration
    without: Configuration

    @cached_property
    def values(self) -> dict[str, Value]:
        """The parameters that are reverted, with their values in the configuration."""
        rest = self.without.to_json()
        return {name: value for name, value in self.of.values if name not in rest}

    @property
    def words(self) -> str:
        """The same in words."""
        return Configuration.of(self.values).in_words()


def changes_of(configuration: Configuration, space: Space) -> list[Change]:
    """Returns a change for each difference, with all that exists beside it alone.

    The options of a precision are changes of their own, and go with the precision as well.
    """
    return [
        Change(configuration, revert(configuration, (name,), space))
        for name in configuration.to_json()
    ]


def revert(configuration: Configuration, names: Iterable[str], space: Space) -> Configuration:
    """Returns the configuration with these parameters and what needs them reverted."""
    values = configuration.to_json()
    for name in names:
        values.pop(name, None)
    while orphans := [name for name in values if not _exists(name, values, space)]:
        for name in orphans:
            del values[name]
    return Configuration.of(values)


def is_free(name: str, space: Space) -> bool:
    """Returns whether the space lets a parameter keep its default; what it lacks is free as well.

    A parameter that the user fixed, or whose default the space leaves out, is not.
    """
    return all(
        parameter.default in parameter.values
        for parameter in space.parameters
        if parameter.name == name
    )


def _exists(name: str, values: Mapping[str, Value], space: Space) -> bool:
    """Returns whether a parameter means anything beside these values."""
    for parameter in space.parameters:
        if parameter.name == name:
            return parameter.is_active(values)
    # the configuration is the user's own, and the space does not have all of its parameters
    if name in PROVIDER_OPTIONS:
        return values.get(EXECUTION_PROVIDER) == PROVIDER_OPTIONS[name][0]
    return name not in OPTIONS or name in _options_of(str(values.get("precision", "")))


def _options_of(precision: str) -> Collection[str]:
    return PRECISIONS[precision].options if precision in PRECISIONS else ()


def unfinished(winner: Finalist) -> Simplification:
    """Returns the simplification of a winner that is written as it is: the study was cut short."""
    return Simplification(
        trial=winner.trial.number,
        winner=winner.trial.configuration.to_json(),
        complete=False,
    )


def _is_clear(number: int, scores: Mapping[int, Numbers], objectives: Sequence[Objective]) -> bool:
    """Returns whether it is known if a change matters, by the numbers of the winner without it."""
    without = scores[number]
    if abs(math.log(without.speedup.value)) > _CLEARLY:
        return True
    other_memory = is_leaner(without) or is_larger(without)
    if other_memory and abs(math.log(without.gains["peak_memory_mib"].value)) > _CLEARLY:
        return True
    if without.rounds < ENOUGH_ROUNDS or not are_known(without, objectives):
        return False
    speedup = factor_of(without.speedup)
    return speedup.value <= 1 + SMALLEST_GAIN or is_gain(speedup)


def _is_known(reduced: Sequence[Numbers]) -> bool:
    """Returns whether it is known if the reduced config is slower than another, by its numbers."""
    is_slower = any(score.speedup.high < 1 - MAY_LOSE for score in reduced)
    is_known = is_slower or all(is_not_slower(score.speedup) for score in reduced)
    return is_known and reduced[0].rounds >= ENOUGH_ROUNDS


_ALONE = RoundsPlan(
    effort=SIMPLIFICATION, fewest=2, enough=2, most=5, is_settled=_is_clear, spare=_PROOF
)
_TOGETHER = RoundsPlan(most=12, together=True)


@dataclass(frozen=True, kw_only=True)
class LeaveOneOut:
    """The search for the smallest config that is as good as the winner.

    Attributes:
        effects: Returns how much each value alone changes the objectives, by the model of the
            search; called where there are many changes.
    """

    setting: Context
    measurer: Measurer
    baseline: Finalist
    winner: Finalist
    trials: Sequence[Trial]
    effects: Callable[[], Sequence[Effect]]
    on_step: OnStep
    budget: Budget = field(default_factory=Budget)

    def smallest(self) -> tuple[Finalist, Simplification]:
        """Returns the smallest config that is as good as the winner, and what its changes do.

        The config has the number of its own trial where the study measured it, or else the
        winner's.

        Raises:
            CannotMeasureError: the default or the winner fails.
        """
        parts = self._parts()
        finalist = self._reduced(parts) or self.winner
        values = finalist.trial.configuration.to_json()
        return finalist, Simplification(
            trial=finalist.trial.number,
            winner=self._configuration.to_json(),
            parts=tuple(_as_in(values, part) for part in parts),
            whole=self._whole(finalist),
        )

    @property
    def has_time(self) -> bool:
        """Whether there is time to revert something and to show what the winner can lose."""
        return self.budget.pays_for() >= _LEAST

    @property
    def _configuration(self) -> Configuration:
        return self.winner.trial.configuration

    @property
    def _memory(self) -> Objective:
        """The memory that the study minimises: that of devices, or of the process."""
        kinds = ("peak_memory_mib", "peak_device_memory_mib", "held_memory_mib")
        names = {objective.name for objective in self.setting.objectives}
        return OBJECTIVES[next((name for name in kinds if name in names), kinds[0])]

    @property
    def _objectives(self) -> tuple[Objective, ...]:
        """Speed and memory, by which every config is judged, and those of the study."""
        chosen = [o for o in self.setting.objectives if o.name in SPEEDS]
        judged = ((chosen or [OBJECTIVES["latency_ms"]])[0], self._memory)
        return tuple(dict.fromkeys((*judged, *self.setting.objectives)))

    def _rounds(self, entrants: Mapping[int, Configuration], plan: RoundsPlan) -> Rounds:
        return Rounds(
            {
                n: partial(self.measurer.measure, configuration)
                for n, configuration in entrants.items()
            },
            self.measurer.renew,
            self.setting.objectives,
            seed=self.setting.seed,
            on_step=self.on_step,
            plan=plan,
            budget=self.budget,
            fewest_runs=self.setting.limits.fewest_runs,
        )

    def _parts(self) -> list[Part]:
        """Returns what each change does; all of them count as kept.

        Changes that the space does not offer to revert are left out.
        """
        space = self.setting.space
        changes = [
            change
            for change in changes_of(self._configuration, space)
            if all(is_free(name, space) for name in change.values)
        ]
        parts: list[Part] = []
        unknown: list[Change] = []
        for change in changes:
            if change.without == BASELINE:
                parts.append(self._whole(self.winner))
            elif self._is_same(change.without):
                parts.append(self._part(change, _same(self.winner.numbers), self.winner.numbers))
            else:
                unknown.append(change)
        if unknown:
            alone, together = self._groups(unknown)
            groups = [*alone, self._together(together)] if together else alone
            measured = self._measured(groups)
            if together:
                measured[-1:] = self._bisected(measured[-1], together)
            parts += measured
        return parts

    def _groups(self, changes: Sequence[Change]) -> tuple[list[Change], list[Change]]:
        """Returns the changes that are reverted alone, and the weakest, which are so together."""
        # each round has the winner as well
        paid_for = (self.budget.pays_for() - _PROOF) / _ALONE.enough - 1
        most = int(min(_MOST_ALONE, max(_FEWEST_ALONE, paid_for)))
        if len(changes) <= most:
            return list(changes), []
        strengths: dict[str, tuple[bool, float]] = {}
        for effect in self.effects():
            # after few trials most are unknown, and large ones are likelier than small ones
            shift = (effect.is_known, abs(math.log(effect.factor.value)))
            strengths[effect.parameter] = max(shift, strengths.get(effect.parameter, shift))

        def strength(change: Change) -> tuple[bool, tuple[bool, float]]:
            # what changes the model's file hardly ever does nothing, and session options often do
            in_file = any(name in GRAPH_PARAMETERS for name in change.values)
            return in_file, max(strengths.get(name, (False, 0.0)) for name in change.values)

        ranked = sorted(changes, key=strength, reverse=True)
        return ranked[: most - 1], ranked[most - 1 :]

    def _together(self, changes: Sequence[Change]) -> Change:
        names = [name for change in changes for name in change.values]
        return Change(self._configuration, revert(self._configuration, names, self.setting.space))

    def _bisected(self, part: Part, changes: Sequence[Change]) -> list[Part]:
        """Returns the part of several changes, or, where it matters and time allows, its halves."""
        halves = changes[: len(changes) // 2], changes[len(changes) // 2 :]
        cost = _ALONE.enough * len((self.winner, *halves)) + _PROOF
        if len(changes) == 1 or not part.matters_for or self.budget.pays_for() < cost:
            return [part]
        parts = self._measured([self._together(half) for half in halves])
        return [
            smaller
            for own, half in zip(parts, halves, strict=True)
            for smaller in self._bisected(own, half)
        ]

    def _measured(self, changes: Sequence[Change]) -> list[Part]:
        """Returns the parts that the rounds without each of the changes show."""
        numbered = dict(enumerate(changes, _WINNER + 1))
        rounds = self._rounds(
            {_WINNER: self._configuration} | {n: c.without for n, c in numbered.items()}, _ALONE
        )
        scores = rounds.play()
        return [
            _failing(change, rounds.failures[number])
            if number in rounds.failures
            else self._part(change, scores[number], scores[_WINNER])
            for number, change in numbered.items()
        ]

    def _part(self, change: Change, without: Numbers, winner: Numbers) -> Part:
        """Returns the part by the numbers without the change, relative to the winner's."""
        speedup = factor_of(without.speedup)
        matters = [
            objective.name
            for objective in self._objectives
            if (
                is_gain(speedup)
                if objective.name in SPEEDS
                else is_surely_worse(without, objective, winner)
            )
        ]
        if self._has_worse_answers(without):
            matters.append(ANSWERS)
        return Part(
            changes=change.values,
            words=change.words,
            matters_for=tuple(matters),
            speedup=speedup,
            memory=finite(without.gains[self._memory.name]),
            error=without.error,
        )

    def _whole(self, finalist: Finalist) -> Part:
        """Returns all changes of a finalist, by its numbers beside the default."""
        own, default = finalist.numbers, self.baseline.numbers
        better = [
            o.name
            for o in self._objectives
            if (
                is_leaner(own)
                if o.name == "peak_memory_mib"
                else o.is_better(own.values[o.name], default.values[o.name])
            )
        ]
        configuration = finalist.trial.configuration
        return Part(
            changes=configuration.to_json(),
            words=configuration.in_words(),
            matters_for=tuple(better),
            speedup=finite(own.speedup),
            memory=factor_of(own.gains[self._memory.name]),
            error=default.error,
        )

    def _reduced(self, parts: Sequence[Part]) -> Finalist | None:
        """Returns the winner without the changes that it can lose together; None if it can none.

        Where rounds do not show that it can lose all of them, half of them are tried, those that
        seem to help least, if there is time.
        """
        needless = sorted((part for part in parts if not part.matters_for), key=_benefit)
        changing_nothing = [part for part in needless if self._is_same(self._without([part]))]
        has_others = len(changing_nothing) < len(needless)
        is_first = True
        while needless and (is_first or self.budget.pays_for() >= _PROOF):
            reduced = self._without(needless)
            if reduced == BASELINE:  # the winner beat the default, so they matter together
                needless = needless[:-1]
                continue
            finalist = self._proven(reduced)
            if finalist is not None:
                return finalist
            is_first, needless = False, needless[: len(needless) // 2]
        return (
            self._proven(self._without(changing_nothing))
            if changing_nothing and has_others
            else None
        )

    def _without(self, parts: Sequence[Part]) -> Configuration:
        names = [name for part in parts for name in part.changes]
        return revert(self._configuration, names, self.setting.space)

    def _is_same(self, reduced: Configuration) -> bool:
        """Returns whether ONNX Runtime opens the same session without some changes."""
        canonical = self.measurer.canonical
        return canonical(reduced) == canonical(self._configuration)

    def _proven(self, reduced: Configuration) -> Finalist | None:
        """Returns the reduced config with its numbers; None where a loss is not ruled out."""
        if self._is_same(reduced):  # no rounds can show more than that it can be opened
            outcome = self.measurer.measure(reduced, SIMPLIFICATION)
            return None if isinstance(outcome, Failure) else self._finalist(reduced, outcome)
        entrants = {_WINNER: self._configuration, _DEFAULT: BASELINE, _REDUCED: reduced}
        # what the final comparison has proven of the winner is to hold for what takes its place
        is_proven = is_not_slower(self.winner.numbers.speedup)

        def beside(scores: Mapping[int, Numbers]) -> list[Numbers]:
            own = [scores[_REDUCED]]
            return [*own, rounds.beside(_REDUCED, _DEFAULT)] if is_proven else own

        def is_settled(_: int, scores: Mapping[int, Numbers], __: Sequence[Objective]) -> bool:
            return _REDUCED not in scores or _is_known(beside(scores))

        rounds = self._rounds(entrants, replace(_TOGETHER, is_settled=is_settled))
        scores = rounds.play()
        if not entrants.keys() <= scores.keys():
            return None
        own = on_scale(rounds.beside(_REDUCED, _DEFAULT), self.baseline.numbers)
        outcome = rounds.measurements(_REDUCED)[-1]
        finalist = replace(self._finalist(reduced, outcome), numbers=own)
        is_as_good = all(is_not_slower(score.speedup) for score in beside(scores)) and not any(
            is_surely_worse(scores[_REDUCED], objective, scores[_WINNER])
            for objective in self._objectives
            if objective.name not in SPEEDS
        )
        setting = self.setting
        field = [self.baseline, finalist]
        is_selected = select(field, setting.limits, setting.objectives, setting.prefer) is finalist
        return (
            finalist
            if is_as_good and is_selected and not self._has_worse_answers(finalist.numbers)
            else None
        )

    def _finalist(self, reduced: Configuration, outcome: Measurement) -> Finalist:
        """Returns the reduced config with the winner's numbers and the number of its own trial."""
        numbers = {trial.configuration: trial.number for trial in self.trials}
        number = numbers.get(reduced, self.winner.trial.number)
        trial = Trial(number=number, configuration=reduced, outcome=outcome)
        return Finalist(numbers=self.winner.numbers, trial=trial)

    def _has_worse_answers(self, own: Numbers) -> bool:
        """Returns whether the answers are clearly further off than the winner's.

        Those that are as right as the default's are not: nobody needs a change for rounding.
        """
        winner = self.winner.numbers
        same_error = _SAME_ERROR * max(winner.error, self.baseline.numbers.error)
        return (
            not self.setting.limits.admit_answers(own.error, own.drop)
            or own.error > same_error + EXACT_ERROR
            or (own.drop or 0.0) > (winner.drop or 0.0) + EXACT_ERROR
        )


def _same(winner: Numbers) -> Numbers:
    """Returns the winner's numbers beside itself: those of another name of its configuration."""
    one = Interval(value=1.0, low=1.0, high=1.0)
    return replace(winner, speedup=one, gains=dict.fromkeys(winner.gains, one))


def _failing(change: Change, failure: Failure) -> Part:
    return Part(
        changes=change.values,
        words=change.words,
        matters_for=(RUNNING,),
        error=failure.error,
        failure=failure.message,
    )


def _as_in(values: Mapping[str, Value], part: Part) -> Part:
    """Returns the part as the selected config with these values has it."""
    kept = {name: value for name, value in part.changes.items() if name in values}
    if not kept:
        return replace(part, kept=False)
    return replace(part, changes=kept, words=Configuration.of(kept).in_words())


def _benefit(part: Part) -> float:
    """Returns how much better latency and memory are with a part, as a logarithm."""
    if part.speedup is None or part.memory is None:
        return math.inf
    return math.log(part.speedup.value) - math.log(part.memory.value)
