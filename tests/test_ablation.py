"""The smallest config that is as good: what is dropped, what stays, and which numbers are shown."""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from fakes import FakeMeasurer, measurement, parameter, refusal, setting, space

from autotune.deploy.config import Interval
from autotune.deploy.options import Value
from autotune.measure.outcome import (
    ABLATION,
    Effort,
    Failure,
    IsBeaten,
    Measurement,
    Outcome,
    never_beaten,
)
from autotune.results.ablation import ablate
from autotune.results.alone import Contest
from autotune.results.budget import Budget
from autotune.results.parts import ANSWERS, RUNNING, Ablation
from autotune.results.run_off import Finalist, run_off
from autotune.search.beliefs import Effect
from autotune.search.objective import DEFAULT, DEVICE_MEMORY, find
from autotune.search.trial import Trial
from autotune.space.candidate import BASELINE, Candidate
from autotune.space.space import Space

_SPACE = space(
    parameter("precision", "fp32", "int8_dynamic"),
    parameter("per_channel", False, True),
    parameter("storage", "inline", "external_data"),
    parameter("arena", "on", "off"),
    parameter("nchwc", "on", "off"),
    parameter("intra_op_num_threads", 0, 2),
    parameter("enable_mem_pattern", True, False),
    parameter("session.disable_prepacking", "0", "1"),
)
_INT8: dict[str, Value] = {"precision": "int8_dynamic", "storage": "external_data"}
_NEEDLESS: dict[str, Value] = {"intra_op_num_threads": 2, "enable_mem_pattern": False}


class Planted(FakeMeasurer):
    """A measurer of planted effects: factors on latency and memory, by parameter.

    Args:
        effects: By parameter, what latency and memory are multiplied by.
        errors: By parameter, what it adds to the error.
        noise: Relative deviation of a latency.
        luck: Relative deviation of a peak of memory.
    """

    def __init__(
        self,
        effects: Mapping[str, tuple[float, float]],
        errors: Mapping[str, float] | None = None,
        noise: float = 0.0,
        luck: float = 0.0,
    ) -> None:
        super().__init__(lambda _: (10.0, 100.0))
        self.effects = effects
        self._luck = luck
        self.errors = errors or {}
        self._noise = random.Random(7)
        self._deviation = noise

    def factors(self, candidate: Candidate) -> tuple[float, float]:
        """Returns the factors of a candidate without noise."""
        own = [self.effects.get(name, (1.0, 1.0)) for name in candidate.to_json()]
        return math.prod(latency for latency, _ in own), math.prod(memory for _, memory in own)

    def measure(
        self, candidate: Candidate, effort: Effort, is_beaten: IsBeaten = never_beaten
    ) -> Outcome:
        """Returns the planted numbers."""
        super().measure(candidate, effort, is_beaten)
        latency, memory = self.factors(candidate)
        noise = math.exp(self._noise.gauss(0, self._deviation))
        error = sum(self.errors.get(name, 0.0) for name in candidate.to_json())
        if self._luck:
            memory *= math.exp(self._noise.gauss(0, self._luck))
        return measurement(10 * latency * noise, 100 * memory, error)


def _ablated(
    measurer: FakeMeasurer,
    values: Mapping[str, Value],
    *,
    within: Space = _SPACE,
    trials: Sequence[Trial] = (),
    effects: Sequence[Effect] = (),
    **changes: Any,
) -> tuple[Finalist, Ablation]:
    """Returns what comes of the ablation of a winner with these values, as trial 7."""
    base = Trial(number=0, candidate=BASELINE, outcome=measurement(10.0))
    winner = Trial(number=7, candidate=Candidate.of(values), outcome=measurement(5.0))
    compared = run_off(
        measurer, base, [winner], find(DEFAULT), seed=1, on_step=lambda _done, _total: None
    )
    contest = Contest(
        setting=setting(within, **changes),
        measurer=measurer,
        baseline=compared[0],
        winner=compared[1],
        trials=[base, *trials, winner],
        effects=lambda: effects,
        on_step=lambda _done, _total: None,
    )
    return ablate(contest)


def _candidate(finalist: Finalist) -> dict[str, Value]:
    return finalist.trial.candidate.to_json()


_GAINS = {"precision": (0.6, 0.5), "storage": (1.0, 0.8)}


def test_what_has_no_effect_is_dropped() -> None:
    """Two planted parameters without effect are gone; what gains latency or memory stays."""
    smallest, ablation = _ablated(Planted(_GAINS), {**_INT8, **_NEEDLESS})
    assert _candidate(smallest) == _INT8
    assert {part.words for part in ablation.dropped} == {"2 threads", "no memory pattern"}
    assert all(not part.matters_for for part in ablation.dropped)
    matters = {part.words: part.matters_for for part in ablation.parts if part.kept}
    assert matters == {
        "int8 dynamic": ("latency_ms", "peak_memory_mib"),
        "external data": ("peak_memory_mib",),
    }


def test_memory_within_the_luck_of_the_heap_is_dropped() -> None:
    """A planted saving of 4 % goes where processes differ by 8 %, and one of a half stays."""
    gains = {"precision": (0.6, 1.0), "storage": (1.0, 0.5), "enable_mem_pattern": (1.0, 0.96)}
    winner = {**_INT8, "enable_mem_pattern": False}
    smallest, ablation = _ablated(Planted(gains, luck=0.08), winner)
    assert _candidate(smallest) == _INT8
    assert [part.words for part in ablation.dropped] == ["no memory pattern"]
    matters = {part.words: part.matters_for for part in ablation.parts if part.kept}
    assert matters == {"int8 dynamic": ("latency_ms",), "external data": ("peak_memory_mib",)}


def test_the_numbers_are_those_of_its_own_rounds() -> None:
    """The smallest config was measured beside the default and the winner, at least three times."""
    measurer = Planted(_GAINS)
    smallest, ablation = _ablated(measurer, {**_INT8, **_NEEDLESS})
    assert smallest.rounds >= 3
    assert measurer.raced.count(Candidate.of(_INT8)) == smallest.rounds
    assert smallest.speedup.value == pytest.approx(1 / 0.6)
    assert smallest.latency_ms == pytest.approx(6.0)
    assert smallest.peak_memory_mib == pytest.approx(40.0)
    assert smallest.trial.number == ablation.trial == 7
    assert ablation.winner == {**_INT8, **_NEEDLESS}


def test_a_config_that_was_a_trial_keeps_its_number() -> None:
    """Where the study measured the smallest config, the result names that trial."""
    earlier = Trial(number=3, candidate=Candidate.of(_INT8), outcome=measurement(6.0))
    smallest, ablation = _ablated(Planted(_GAINS), {**_INT8, **_NEEDLESS}, trials=[earlier])
    assert smallest.trial.number == ablation.trial == 3


@pytest.mark.parametrize("noise", [0.0, 0.004])
def test_the_steps_multiply_to_the_whole(noise: float) -> None:
    """From the default on, each step beside the one before; the intervals hold the whole."""
    gains = {**_GAINS, "nchwc": (0.9, 1.0), "arena": (1.0, 0.7), "intra_op_num_threads": (0.8, 1)}
    winner = {**_INT8, "nchwc": "off", "arena": "off", "intra_op_num_threads": 2}
    smallest, ablation = _ablated(Planted(gains, noise=noise), winner)
    assert _candidate(smallest) == winner
    assert 1 < len(ablation.steps) <= 3
    assert ablation.whole is not None
    for name in ("speedup", "memory"):
        factors = [getattr(step, name) for step in ablation.steps]
        whole = getattr(ablation.whole, name)
        product = math.prod(factor.value for factor in factors)
        reach = math.hypot(*(math.log(f.high / f.low) / 2 for f in [*factors, whole]))
        assert abs(math.log(product / whole.value)) <= reach + 1e-9
    changes = [name for step in ablation.steps for name in step.changes]
    assert sorted(changes) == sorted(winner)
    assert ablation.whole.speedup.value == pytest.approx(1 / (0.6 * 0.9 * 0.8), rel=0.02)


def test_the_strongest_step_comes_first() -> None:
    """What gains most is named first."""
    _, ablation = _ablated(Planted(_GAINS), {**_INT8, **_NEEDLESS})
    assert [step.words for step in ablation.steps] == ["int8 dynamic", "external data"]


class Redundant(Planted):
    """Either of two changes is enough for the gain."""

    def factors(self, candidate: Candidate) -> tuple[float, float]:
        """Returns half of the latency where one of them is there."""
        latency, memory = super().factors(candidate)
        return latency * (0.5 if {"arena", "nchwc"} & candidate.to_json().keys() else 1), memory


def test_two_that_are_needless_alone_and_needed_together() -> None:
    """Without either of them nothing changes, without both the gain is gone: one stays."""
    winner = {"arena": "off", "nchwc": "off", **_NEEDLESS}
    smallest, ablation = _ablated(Redundant({}), winner)
    assert len(_candidate(smallest).keys() & {"arena", "nchwc"}) == 1
    assert not _candidate(smallest).keys() & _NEEDLESS.keys()
    assert smallest.speedup.value == pytest.approx(2.0)
    (kept,) = (part for part in ablation.parts if part.kept)
    assert kept.matters_for == ()


def test_many_small_losses_are_one_large_loss() -> None:
    """Each is within the noise alone; all together they are not, and the winner keeps enough."""
    names = ("arena", "nchwc", "enable_mem_pattern", "intra_op_num_threads")
    winner = {**_INT8, "arena": "off", "nchwc": "off", **_NEEDLESS}
    gains = {**_GAINS, **dict.fromkeys(names, (0.985, 1.0))}
    measurer = Planted(gains)
    smallest, _ = _ablated(measurer, winner)
    full, _ = measurer.factors(Candidate.of(winner))
    assert smallest.speedup.value >= 0.98 / full
    assert len(_candidate(smallest)) < len(winner)


def test_a_lucky_winner_gives_no_change_a_reason() -> None:
    """Where the winner's own measurements were lucky, each change seems to bring some per cent."""
    winner = {**_INT8, "nchwc": "off", **_NEEDLESS}

    class Lucky(Planted):
        """The winner is lucky while changes are put back alone."""

        def measure(
            self, candidate: Candidate, effort: Effort, is_beaten: IsBeaten = never_beaten
        ) -> Outcome:
            alone = effort.time_cap_s == ABLATION.time_cap_s
            self.effects = {**_GAINS, "nchwc": (0.94, 1.0)} if alone else _GAINS
            self.effects |= {"enable_mem_pattern": (0.94, 1.0)} if alone else {}
            return super().measure(candidate, effort, is_beaten)

    smallest, ablation = _ablated(Lucky({}, noise=0.002), winner)
    assert _candidate(smallest) == _INT8
    assert all(not part.matters_for for part in ablation.dropped)


def test_answers_matter() -> None:
    """A change that makes the answers better stays, though it gains neither time nor memory."""
    measurer = Planted(_GAINS, errors={"precision": 0.03, "per_channel": -0.02})
    smallest, ablation = _ablated(measurer, {**_INT8, "per_channel": True})
    assert _candidate(smallest)["per_channel"] is True
    assert [p.matters_for for p in ablation.parts if p.words == "per channel"] == [(ANSWERS,)]


def test_answers_as_right_as_those_of_the_default_are_right_enough() -> None:
    """A change that takes the rounding of the default away, and nothing else, is needless."""

    class Rounding(Planted):
        def measure(
            self, candidate: Candidate, effort: Effort, is_beaten: IsBeaten = never_beaten
        ) -> Outcome:
            outcome = super().measure(candidate, effort, is_beaten)
            assert isinstance(outcome, Measurement)
            error = 0.0 if "per_channel" in candidate.to_json() else 2e-5
            return replace(outcome, fidelity=replace(outcome.fidelity, error=error))

    smallest, _ = _ablated(Rounding(_GAINS), {**_INT8, "per_channel": True})
    assert _candidate(smallest) == _INT8


def test_worse_answers_for_nothing_are_dropped() -> None:
    """Without the change the answers are better, and nothing is lost."""
    measurer = Planted(_GAINS, errors={"per_channel": 0.01})
    smallest, _ = _ablated(measurer, {**_INT8, "per_channel": True})
    assert _candidate(smallest) == _INT8
    assert smallest.error == 0.0


def test_an_option_without_effect_leaves_its_precision() -> None:
    """The part that remains is the precision; its words have no option any more."""
    smallest, ablation = _ablated(Planted(_GAINS), {**_INT8, "per_channel": True})
    assert _candidate(smallest) == _INT8
    assert [step.words for step in ablation.steps] == ["int8 dynamic", "external data"]


def test_what_fails_without_a_change_needs_it() -> None:
    """The reason is kept."""

    class Failing(Planted):
        def measure(
            self, candidate: Candidate, effort: Effort, is_beaten: IsBeaten = never_beaten
        ) -> Outcome:
            values = candidate.to_json()
            if "precision" in values and "arena" not in values:
                return refusal("no memory left")
            return super().measure(candidate, effort, is_beaten)

    smallest, ablation = _ablated(Failing(_GAINS), {**_INT8, "arena": "off"})
    assert _candidate(smallest) == {**_INT8, "arena": "off"}
    (part,) = (part for part in ablation.parts if part.words == "no arena")
    assert (part.matters_for, part.failure, part.speedup) == ((RUNNING,), "no memory left", None)


def test_a_step_that_fails_is_one_with_the_next() -> None:
    """Where the strongest change runs beside another one alone, both are one step."""

    class Failing(Redundant):
        def measure(
            self, candidate: Candidate, effort: Effort, is_beaten: IsBeaten = never_beaten
        ) -> Outcome:
            names = candidate.to_json().keys()
            if "precision" in names and not {"arena", "nchwc"} & names:
                return refusal()
            return super().measure(candidate, effort, is_beaten)

    winner = {"precision": "int8_dynamic", "arena": "off", "nchwc": "off"}
    smallest, ablation = _ablated(Failing({"precision": (0.2, 0.2)}), winner)
    assert len(_candidate(smallest)) == 2
    (step,) = ablation.steps
    assert step.changes == _candidate(smallest)
    assert step.speedup.value == pytest.approx(10.0)


def test_a_single_change_needs_no_measurement() -> None:
    """All of it is known from the final comparison."""
    measurer = Planted(_GAINS)
    smallest, ablation = _ablated(measurer, {"precision": "int8_dynamic"})
    assert len(measurer.raced) == 2 * smallest.rounds
    assert [step.speedup for step in ablation.steps] == [smallest.speedup]
    assert ablation.complete


def test_not_everything_is_dropped() -> None:
    """The winner beat the default: where each change seems needless, the strongest stays."""
    smallest, _ = _ablated(Planted({"arena": (0.99, 1.0)}), {"arena": "off", "nchwc": "off"})
    assert smallest.trial.candidate != BASELINE


def test_fixed_parameters_stay() -> None:
    """What the user fixed is in the emitted config, with effect or without."""
    fixed = space(parameter("intra_op_num_threads", 2), *_SPACE.parameters[:3])
    smallest, ablation = _ablated(
        Planted(_GAINS), {**_INT8, "intra_op_num_threads": 2}, within=fixed
    )
    assert _candidate(smallest)["intra_op_num_threads"] == 2
    assert not ablation.dropped


def test_a_long_list_is_put_back_in_few_parts() -> None:
    """The weakest changes are put back together, so the cost has a limit."""
    winner = {
        **_INT8,
        **_NEEDLESS,
        "per_channel": True,
        "arena": "off",
        "nchwc": "off",
        "session.disable_prepacking": "1",
    }
    effects = [
        Effect(
            parameter=name,
            value=value,
            objective="latency_ms",
            factor=Interval(value=0.7, low=0.6, high=0.8),
            trials=9,
        )
        for name, value in _INT8.items()
    ]
    measurer = Planted(_GAINS)
    smallest, ablation = _ablated(measurer, winner, effects=effects)
    assert _candidate(smallest) == _INT8
    assert len(ablation.parts) <= 6
    assert len(set(measurer.raced)) <= 6 + 5


def test_a_change_of_another_objective_stays() -> None:
    """Where the CPU time is an objective, what saves it matters."""

    class Thrifty(Planted):
        def measure(
            self, candidate: Candidate, effort: Effort, is_beaten: IsBeaten = never_beaten
        ) -> Outcome:
            outcome = super().measure(candidate, effort, is_beaten)
            assert not isinstance(outcome, Failure)
            saves = "nchwc" in candidate.to_json()
            return replace(outcome, cpu_s=0.01 if saves else 0.02)

    winner = {**_INT8, "nchwc": "off"}
    assert "nchwc" not in _candidate(_ablated(Thrifty(_GAINS), winner)[0])
    three = find([*DEFAULT, "cpu_s"])
    assert "nchwc" in _candidate(_ablated(Thrifty(_GAINS), winner, objectives=three)[0])


def test_an_attempt_that_failed_is_not_repeated() -> None:
    """What was refused once is part of no later attempt."""
    measurer = Redundant({"precision": (0.2, 0.2)})
    winner = {"precision": "int8_dynamic", "arena": "off", "nchwc": "off"}
    smallest, _ = _ablated(measurer, winner)
    assert len(_candidate(smallest)) == 2
    # three rounds each: the final comparison, each change alone, without both, without one
    assert measurer.renewals == 12


def _contest(
    measurer: FakeMeasurer, compared: Sequence[Finalist], within: Space = _SPACE, **changes: Any
) -> Contest:
    """Returns the contest whose winner is the second of a run-off."""
    return Contest(
        setting=setting(within),
        measurer=measurer,
        baseline=compared[0],
        winner=compared[1],
        compared=compared,
        trials=[finalist.trial for finalist in compared],
        effects=lambda: (),
        on_step=lambda _done, _total: None,
        **changes,
    )


def _compared(measurer: FakeMeasurer, *values: Mapping[str, Value]) -> list[Finalist]:
    """Returns the run-off of the default and candidates with these values."""
    base, *others = (
        Trial(number=i, candidate=Candidate.of(own), outcome=measurement(10.0))
        for i, own in enumerate(({}, *values))
    )
    return run_off(
        measurer, base, others, find(DEFAULT), seed=1, on_step=lambda _done, _total: None
    )


def test_what_the_run_off_measured_is_not_measured_again() -> None:
    """The winner without a change took part in the same rounds: they say what it does."""
    measurer = Planted({**_GAINS, "arena": (1.0, 0.7)})
    winner = {**_INT8, "arena": "off"}
    leaner = {"precision": "int8_dynamic", "arena": "off"}
    compared = _compared(measurer, winner, leaner)
    before = len(measurer.raced)
    _, ablation = ablate(_contest(measurer, compared))
    again = measurer.raced[before:]
    (part,) = (part for part in ablation.parts if part.words == "external data")
    assert part.matters_for == ("peak_memory_mib",)
    assert part.memory is not None
    assert part.memory.value == pytest.approx(0.8)
    alone = [c for c in set(again) if len(c.values) == 2 and c != Candidate.of(leaner)]
    assert len(alone) == 2
    # what remains is the step before the last one, if it is the same config
    assert again.count(Candidate.of(leaner)) in (0, 3)


def test_a_change_that_opens_the_same_session_needs_no_measurement() -> None:
    """The files without it come to the same graph, so it is needless."""

    class Twins(Planted):
        def canonical(self, candidate: Candidate) -> Candidate:
            values = candidate.to_json()
            values.pop("per_channel", None)
            return Candidate.of(values)

    measurer = Twins(_GAINS)
    smallest, ablation = ablate(
        _contest(measurer, _compared(measurer, {**_INT8, "per_channel": True}))
    )
    assert _candidate(smallest) == _INT8
    (part,) = ablation.dropped
    assert (part.words, part.matters_for) == ("per channel", ())
    assert part.speedup == Interval(value=1.0, low=1.0, high=1.0)


def test_two_needed_changes_are_two_steps_without_more_rounds() -> None:
    """The last step was measured alone; the first one is what is left of the whole."""
    measurer = Planted(_GAINS, noise=0.004)
    compared = _compared(measurer, _INT8)
    before = len(measurer.raced)
    _, ablation = ablate(_contest(measurer, compared))
    assert {c for c in measurer.raced[before:] if c == BASELINE} == set()
    first, last = ablation.steps
    assert (first.words, last.words) == ("int8 dynamic", "external data")
    assert ablation.whole is not None
    for name, truth in (("speedup", 1 / 0.6), ("memory", 0.5)):
        step = getattr(first, name)
        assert step.low <= truth <= step.high
        product = step.value * getattr(last, name).value
        assert product == pytest.approx(getattr(ablation.whole, name).value)


class _Timed(Planted):
    """Planted effects, measured in two seconds each on a clock of its own."""

    now_s = 0.0

    def measure(
        self, candidate: Candidate, effort: Effort, is_beaten: IsBeaten = never_beaten
    ) -> Outcome:
        """Returns the planted numbers, later."""
        self.now_s += 2.0
        return super().measure(candidate, effort, is_beaten)


class _TimedRedundant(_Timed, Redundant):
    """The same, where one of two changes is needed and either of them is enough."""


_LONG: dict[str, Value] = {
    **_INT8,
    **_NEEDLESS,
    "arena": "off",
    "nchwc": "off",
    "session.disable_prepacking": "1",
}


def _ablated_within(
    limit_s: float,
    measurer: _Timed | None = None,
    values: Mapping[str, Value] = _LONG,
    spent_s: float = 0.0,
) -> tuple[Finalist, Ablation, list[Candidate]]:
    """Returns the ablation of a long list within a time, some of it spent, and what it measured."""
    measurer = measurer or _Timed(_GAINS, noise=0.01)
    compared = _compared(measurer, values)
    before = len(measurer.raced)
    budget = Budget(limit_s, lambda: measurer.now_s)
    budget.book(before, 2.0 * before)
    measurer.now_s += spent_s
    smallest, ablation = ablate(_contest(measurer, compared, budget=budget))
    return smallest, ablation, measurer.raced[before:]


def test_a_short_ablation_puts_changes_back_together() -> None:
    """Four parts in two rounds, and the config without what is needless in three."""
    smallest, ablation, measured = _ablated_within(1.0)
    assert len(ablation.parts) == 4
    assert smallest.rounds >= 3
    # two rounds of the winner and four parts, three of the default, the winner and the smallest
    assert len(measured) <= 2 * 5 + 3 * 3
    assert ablation.whole is not None


def test_an_ablation_keeps_to_its_time() -> None:
    """With 100 s for measurements of 2 s it takes no more than that."""
    _, ablation, measured = _ablated_within(100.0)
    assert len(ablation.parts) > 4
    assert 2.0 * len(measured) <= 100.0
    assert len(_ablated_within(1e4)[2]) >= len(measured)


_TOGETHER_NEEDED: dict[str, Value] = {**_INT8, "arena": "off", "nchwc": "off"}


def _needed_together() -> _Timed:
    """The effects of two changes of which either is enough, and of two that are needed anyway."""
    return _TimedRedundant({"precision": (0.5, 0.5), "storage": (1.0, 0.8)}, noise=0.01)


@pytest.mark.parametrize("limit_s", [1, 50, *range(64, 140, 6)])
def test_an_attempt_leaves_time_for_another_one(limit_s: int) -> None:
    """The first one leaves out two changes that are needed together, the second one of them.

    A study that is too short even for the first one has both.
    """
    smallest, _, measured = _ablated_within(limit_s, _needed_together(), _TOGETHER_NEEDED)
    assert len(_candidate(smallest)) == 3
    # a short study has at most: five alone, thrice but where it is clear, and two attempts
    assert 2.0 * len(measured) <= max(limit_s, 2.0 * (5 * 3 + 2 * 9))


def test_a_long_study_whose_time_is_spent_has_one_attempt() -> None:
    """The final comparison took longer than it should, as on a machine that is loud."""
    smallest, _, measured = _ablated_within(
        100.0, _needed_together(), _TOGETHER_NEEDED, spent_s=80.0
    )
    assert len(_candidate(smallest)) == 4
    # five alone, twice, and an attempt
    assert len(measured) == 5 * 2 + 9


@pytest.mark.parametrize(
    ("spent_s", "beside_it", "most"), [(0.0, 0, 100.0), (50.0, 1, 100.0), (80.0, 3, 118.0)]
)
def test_changes_that_matter_together_are_taken_apart_as_far_as_there_is_time(
    spent_s: float, beside_it: int, most: float
) -> None:
    """One by one, half by half, or not at all; what does not matter by itself is dropped."""
    name = "session.disable_prepacking"
    measurer = _Timed({**_GAINS, name: (0.8, 1.0)}, noise=0.01)
    _, ablation, measured = _ablated_within(100.0, measurer, spent_s=spent_s)
    (part,) = (part for part in ablation.parts if name in part.changes)
    assert part.kept
    assert len(part.changes) == 1 + beside_it
    assert spent_s + 2.0 * len(measured) <= most


def test_where_devices_count_their_memory_is_shown() -> None:
    """A study that minimises the memory of devices is told of that, and not of the process's."""

    class OnDevice(Planted):
        def measure(
            self, candidate: Candidate, effort: Effort, is_beaten: IsBeaten = never_beaten
        ) -> Outcome:
            outcome = super().measure(candidate, effort, is_beaten)
            assert not isinstance(outcome, Failure)
            device_mib = 30.0 if "arena" in candidate.to_json() else 60.0
            return replace(outcome, memory=replace(outcome.memory, device_mib=device_mib))

    winner = {"precision": "int8_dynamic", "arena": "off"}
    smallest, ablation = _ablated(
        OnDevice(_GAINS), winner, objectives=find(["latency_ms", DEVICE_MEMORY])
    )
    assert _candidate(smallest) == winner
    assert ablation.whole is not None
    assert ablation.whole.memory.value == pytest.approx(0.5)
