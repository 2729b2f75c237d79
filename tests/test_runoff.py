"""The last round: what is measured again, what is claimed and what is emitted."""

import math
import random
from dataclasses import replace

import pytest
from fakes import REFERENCE_MS, FakeMeasurer, measurement, parameter, refusal, space

from autotune.deploy.config import Interval
from autotune.errors import CannotMeasureError
from autotune.measure.outcome import Effort, Failure, IsBeaten, Outcome, never_beaten
from autotune.measure.statistics import NO_SCATTER, Scatter
from autotune.results.budget import Budget
from autotune.results.choice import choose
from autotune.results.run_off import MOST_ROUNDS, Finalist, is_settled, run_off
from autotune.results.score import noise_floor, score
from autotune.search.finalists import MOST_FINALISTS, finalists
from autotune.search.objective import DEFAULT, find, values
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import BASELINE, Candidate

_NONE = Limits()
_BOTH = find(DEFAULT)
# knows none of the candidates here: what was measured of them is believed
_ELSEWHERE = space(parameter("nchwc", "on", "off"))


def _trial(number: int, latency_ms: float, memory_mib: float = 100.0, error: float = 0.0) -> Trial:
    candidate = Candidate.of({"intra_op_num_threads": number})
    return Trial(
        number=number, candidate=candidate, outcome=measurement(latency_ms, memory_mib, error)
    )


def _finalist(
    number: int,
    speedup: float,
    memory_mib: float = 100.0,
    *,
    reach: float = 0.005,
    error: float = 0.0,
) -> Finalist:
    interval = Interval(value=speedup, low=speedup - reach, high=speedup + reach)
    if number == 0:
        interval = Interval(value=1.0, low=1.0, high=1.0)
    trial = _trial(number, REFERENCE_MS / speedup, memory_mib, error)
    assert trial.measurement is not None
    own = values(trial.measurement)
    gains = dict.fromkeys(own, interval)
    leaner = 100.0 / memory_mib
    gains["peak_memory_mib"] = Interval(value=leaner, low=leaner, high=leaner)
    return Finalist(trial=trial, values=own, gains=gains, error=error, rounds=3)


_BASE = _finalist(0, 1.0)


def _chosen(
    *others: Finalist,
    base: Finalist = _BASE,
    limits: Limits = _NONE,
    prefer: str = "latency",
) -> int:
    return choose([base, *others], limits, _BOTH, prefer).trial.number


def test_the_fastest_beyond_noise_is_chosen() -> None:
    """Of two real gains the larger one is emitted."""
    assert _chosen(_finalist(1, 1.2), _finalist(2, 1.4)) == 2


@pytest.mark.parametrize(("speedup", "reach"), [(1.2, 0.3), (1.005, 0.001), (1.0, 0.0)])
def test_within_the_noise_the_default_stays(speedup: float, reach: float) -> None:
    """A gain that the interval or the smallest claim does not carry is none."""
    assert _chosen(_finalist(1, speedup, reach=reach)) == 0


def test_without_rivals_the_default_stays() -> None:
    """A run-off of the baseline alone emits the baseline."""
    assert _chosen() == 0


def test_less_memory_at_the_same_speed_wins() -> None:
    """A leaner configuration that is not slower is a gain, too."""
    assert _chosen(_finalist(1, 0.999, 60.0)) == 1
    assert _chosen(_finalist(1, 0.985, 60.0, reach=0.02)) == 1
    assert _chosen(_finalist(1, 0.97, 60.0)) == 0


@pytest.mark.parametrize("prefer", ["latency", "balanced"])
def test_less_memory_does_not_excuse_a_slow_down(prefer: str) -> None:
    """Unless memory is preferred, a slower configuration never wins by memory."""
    assert _chosen(_finalist(1, 0.8, 20.0), prefer=prefer) == 0


def test_a_gain_that_costs_more_elsewhere_is_weighed() -> None:
    """The default takes part where costs are balanced, and where another gain costs memory."""
    assert _chosen(_finalist(1, 1.03, 150.0), prefer="balanced") == 0
    assert _chosen(_finalist(1, 1.03, 150.0)) == 1
    three = find([*DEFAULT, "cpu_s"])
    thrifty = _finalist(1, 0.999, 150.0)
    halved = Interval(value=2.0, low=1.9, high=2.1)
    thrifty = replace(
        thrifty,
        gains={**thrifty.gains, "cpu_s": halved},
        values={**thrifty.values, "cpu_s": thrifty.values["cpu_s"] / 2},
    )
    assert choose([_BASE, thrifty], _NONE, three, "latency") is _BASE


def test_less_memory_within_the_luck_of_the_heap_is_no_gain() -> None:
    """13.3 instead of 14.1 MiB is nothing where equal processes differ by as much."""
    lucky = _finalist(1, 1.0, 94.0)
    assert lucky.leaner
    assert _chosen(lucky) == 1
    noisy = replace(lucky, memory_noise_floor=0.1)
    assert not noisy.leaner
    assert _chosen(noisy) == 0
    wide = Interval(value=1.06, low=0.95, high=1.2)
    assert _chosen(replace(lucky, gains={**lucky.gains, "peak_memory_mib": wide})) == 0


def test_less_memory_than_a_start_differs_by_is_no_gain() -> None:
    """A tenth of a tiny peak is less than what two starts of one program differ by."""
    tiny = _finalist(1, 1.0, 90.0)
    tiny = replace(tiny, values={**tiny.values, "peak_memory_mib": 2.0})
    assert not tiny.leaner


def test_more_memory_is_larger() -> None:
    """What needs a third more is larger, and what needs as much is neither."""
    assert _finalist(1, 1.0, 133.0).larger
    assert not _finalist(1, 1.0, 133.0).leaner
    assert not _finalist(1, 1.0, 100.0).larger
    assert not _finalist(1, 1.0, 100.0).leaner


def test_memory_preferred_accepts_a_slow_down() -> None:
    """Where memory is what counts the leanest is emitted, slower or not."""
    assert _chosen(_finalist(1, 0.8, 20.0), _finalist(2, 1.5, 90.0), prefer="memory") == 1


def test_memory_preferred_takes_speed_that_costs_nothing() -> None:
    """Where memory is what counts a faster one that needs as much is a gain all the same."""
    assert _chosen(_finalist(1, 1.5, 99.5), prefer="memory") == 1
    assert _chosen(_finalist(1, 1.5, 120.0), prefer="memory") == 0


def test_other_objectives_have_their_winners() -> None:
    """Less CPU time wins where it is an objective, and is nothing where it is none."""
    thrifty = _finalist(1, 1.0)
    gain = Interval(value=2.0, low=1.9, high=2.1)
    thrifty = replace(
        thrifty,
        values={**thrifty.values, "cpu_s": thrifty.values["cpu_s"] / 2},
        gains={**thrifty.gains, "cpu_s": gain},
    )
    three = find([*DEFAULT, "cpu_s"])
    assert choose([_BASE, thrifty], _NONE, three, "cpu") is thrifty
    assert choose([_BASE, thrifty], _NONE, three, "latency") is thrifty
    assert choose([_BASE, thrifty], _NONE, _BOTH, "latency") is _BASE
    doubtful = replace(
        thrifty, gains={**thrifty.gains, "cpu_s": Interval(value=2.0, low=0.9, high=4.0)}
    )
    assert choose([_BASE, doubtful], _NONE, three, "cpu") is _BASE


def test_no_gain_below_the_noise_floor() -> None:
    """A machine that tells the baseline from itself by 4 % shows no gain of 3 %."""
    assert _chosen(_finalist(1, 1.03)) == 1
    assert _chosen(replace(_finalist(1, 1.03), noise_floor=0.04)) == 0


def test_the_noise_floor_is_how_well_the_baseline_is_known() -> None:
    """Ratios of the baseline to itself that scatter raise the floor; it never falls below 2 %."""
    assert noise_floor([measurement(10.0)] * 3, NO_SCATTER) == pytest.approx(0.02)
    scattered = [measurement(ms) for ms in (9.5, 10.0, 10.5)]
    assert 0.05 < noise_floor(scattered, NO_SCATTER) < 0.2
    assert noise_floor(scattered[:1], NO_SCATTER) == 1.0
    calm = Scatter(deviation=0.001, freedom=6)
    assert noise_floor(scattered, calm) < noise_floor(scattered, NO_SCATTER)


def test_balanced_weighs_both() -> None:
    """The smallest product of latency and memory wins between two gains."""
    assert _chosen(_finalist(1, 1.5, 100.0), _finalist(2, 1.2, 50.0), prefer="balanced") == 2


def test_limits_exclude() -> None:
    """What breaks a limit is not emitted, however fast."""
    limits = Limits(max_memory_mib=150.0)
    assert _chosen(_finalist(1, 2.0, 200.0), _finalist(2, 1.2), limits=limits) == 2
    wrong = _finalist(1, 2.0, error=0.2)
    assert _chosen(wrong, limits=Limits(max_error=0.1)) == 0


def test_a_default_that_breaks_the_limits_yields() -> None:
    """Where the baseline breaks a limit, even a slower one that keeps it is emitted."""
    limits = Limits(max_memory_mib=50.0)
    assert _chosen(_finalist(1, 0.5, 40.0), _finalist(2, 3.0, 90.0), limits=limits) == 1


def test_where_nothing_keeps_the_limits_the_default_stays() -> None:
    """Limits that nobody keeps leave the baseline."""
    assert _chosen(_finalist(1, 2.0), limits=Limits(max_latency_ms=0.1)) == 0


def test_finalists_are_the_front_and_the_fastest() -> None:
    """Failures, the baseline and what breaks limits stay out; the fastest two are in."""
    base = Trial(number=0, candidate=BASELINE, outcome=measurement(10.0))
    failed = Trial(number=90, candidate=Candidate.of({"arena": "off"}), outcome=refusal())
    trials = [
        base,
        failed,
        _trial(1, 5.0, 100.0),
        _trial(2, 5.1, 100.0),
        _trial(3, 6.0, 50.0),
        _trial(4, 7.0, 60.0),
        _trial(5, 1.0, 10.0, error=0.5),
    ]
    assert {t.number for t in finalists(trials, Limits(), _BOTH, _ELSEWHERE)} == {1, 2, 3}


def test_a_percentile_that_is_not_known_keeps_no_trial_out() -> None:
    """The trials of a study without that limit had too few runs; the run-off has enough."""
    trials = [Trial(number=0, candidate=BASELINE, outcome=measurement(10.0)), _trial(1, 5.0)]
    chosen = finalists(trials, Limits(max_p99_ms=20.0), _BOTH, _ELSEWHERE)
    assert [trial.number for trial in chosen] == [1]
    assert finalists(trials, Limits(max_p99_ms=4.0), _BOTH, _ELSEWHERE) == []


def test_finalists_are_few() -> None:
    """A long front is thinned out, its ends kept."""
    trials = [_trial(i, float(i), 1000.0 - 20 * i) for i in range(1, 40)]
    numbers = [t.number for t in finalists(trials, Limits(), _BOTH, _ELSEWHERE)]
    assert len(numbers) == len(set(numbers)) == MOST_FINALISTS
    assert {1, 2, 39} <= set(numbers)


def test_luck_keeps_nobody_out_of_the_run_off() -> None:
    """One number that was too good is no front by itself: those that are surely good take part."""
    within = space(
        parameter("precision", "fp32", "int8_static"),
        parameter("arena", "on", "off"),
        parameter("nchwc", "on", "off"),
        parameter("enable_mem_pattern", True, False),
    )
    lucky = Candidate.of({"nchwc": "off"})
    trials = []
    for number, candidate in enumerate(within.candidates or ()):
        values = candidate.to_json()
        latency = 5.0 if values.get("precision") == "int8_static" else 10.0
        memory = 80.0 if values.get("arena") == "off" else 100.0
        outcome = measurement(3.0, 60.0) if candidate == lucky else measurement(latency, memory)
        trials.append(Trial(number=number, candidate=candidate, outcome=outcome))
    chosen = [trial.candidate for trial in finalists(trials, Limits(), _BOTH, within)]
    assert lucky in chosen
    assert Candidate.of({"precision": "int8_static", "arena": "off"}) in chosen


def _by_threads(candidate: Candidate) -> tuple[float, float]:
    return 10.0 / (1 + int(candidate.to_json().get("intra_op_num_threads", 0))), 100.0


def _run_off(measurer: FakeMeasurer, *others: Trial) -> list[Finalist]:
    base = Trial(number=0, candidate=BASELINE, outcome=measurement(10.0))
    return run_off(measurer, base, others, _BOTH, seed=3, on_step=lambda _done, _total: None)


def test_the_run_off_reports_its_own_numbers() -> None:
    """What the search believed does not count; each round has a fresh reference."""
    measurer = FakeMeasurer(_by_threads)
    base, first = _run_off(measurer, _trial(1, 0.001))
    assert base.speedup == Interval(value=1.0, low=1.0, high=1.0)
    assert base.latency_ms == pytest.approx(10.0)
    assert not base.significant
    assert first.speedup.value == pytest.approx(2.0)
    assert first.latency_ms == pytest.approx(5.0)
    assert first.significant
    assert measurer.renewals == first.rounds == 3
    assert len(measurer.raced) == 6


def test_noise_takes_more_rounds() -> None:
    """Rounds go on to the most where they do not agree."""
    calls = iter(range(1000))
    measurer = FakeMeasurer(lambda _: (10.0 + 5 * (next(calls) % 3), 100.0))
    compared = _run_off(measurer, _trial(1, 1.0))
    assert [item.rounds for item in compared] == [MOST_ROUNDS] * 2


def test_the_worst_round_counts_for_memory() -> None:
    """Memory is the largest peak of all rounds."""
    calls = iter(range(1000))
    peaks: dict[Candidate, list[float]] = {}

    def cost(candidate: Candidate) -> tuple[float, float]:
        peaks.setdefault(candidate, []).append(100.0 + next(calls))
        return 10.0, peaks[candidate][-1]

    compared = _run_off(FakeMeasurer(cost), _trial(1, 1.0))
    assert [len(own) for own in peaks.values()] == [3, 3]
    assert [item.peak_memory_mib for item in compared] == [
        max(peaks[item.trial.candidate]) for item in compared
    ]


def test_the_default_alone_is_measured_once() -> None:
    """One round is enough where nothing is left that it could be compared with."""
    measurer = FakeMeasurer(_by_threads)
    (alone,) = _run_off(measurer)
    assert measurer.renewals == len(measurer.raced) == alone.rounds == 1
    assert not alone.significant


def test_rounds_end_where_all_others_failed() -> None:
    """A default that has no rivals left is not measured again."""
    measurer = FakeMeasurer(lambda c: (10.0, 100.0) if c == BASELINE else refusal())
    (alone,) = _run_off(measurer, _trial(1, 1.0), _trial(2, 1.0))
    assert alone.rounds == 1


def test_what_breaks_a_limit_settles_no_other() -> None:
    """It is measured beside the others, which go on as if it were not there."""
    calls = iter(range(1000))
    fast = Candidate.of({"intra_op_num_threads": 4})

    def cost(candidate: Candidate) -> tuple[float, float]:
        shaky = 10.0 + 0.4 * (next(calls) % 3)
        return (1.0 if candidate == fast else shaky), 50.0

    base = Trial(number=0, candidate=BASELINE, outcome=measurement(10.0))
    compared = run_off(
        FakeMeasurer(cost),
        base,
        [_trial(1, 9.0)],
        _BOTH,
        seed=3,
        on_step=lambda _done, _total: None,
        beyond_limits=[_trial(4, 1.0, error=0.1)],
    )
    assert [item.trial.number for item in compared] == [0, 1, 4]
    assert compared[1].rounds == MOST_ROUNDS


def test_a_finalist_that_fails_is_left_out() -> None:
    """One failure in any round disqualifies; the others go on."""
    failing = Candidate.of({"intra_op_num_threads": 2})
    seen: list[Candidate] = []

    def cost(candidate: Candidate) -> tuple[float, float] | Failure:
        seen.append(candidate)
        return refusal() if candidate == failing and seen.count(failing) == 2 else (10.0, 100.0)

    compared = _run_off(FakeMeasurer(cost), _trial(1, 1.0), _trial(2, 1.0))
    assert [item.trial.number for item in compared] == [0, 1]
    assert seen.count(failing) == 2


def test_a_default_that_fails_cannot_be_beaten() -> None:
    """Without the baseline there is nothing to compare with."""
    measurer = FakeMeasurer(lambda c: refusal("gone") if c == BASELINE else (1.0, 1.0))
    with pytest.raises(CannotMeasureError, match="gone"):
        _run_off(measurer, _trial(1, 1.0))


def test_what_is_settled_rests() -> None:
    """A finalist that is surely beaten takes no part in the further rounds of the others."""
    calls = iter(range(1000))
    beaten, near = Candidate.of({"intra_op_num_threads": 1}), Candidate.of({"arena": "off"})

    def cost(candidate: Candidate) -> tuple[float, float]:
        shaky = 10.0 + 0.4 * (next(calls) % 3)
        return {beaten: 30.0 + shaky, near: shaky}.get(candidate, 10.0), 100.0

    trial = Trial(number=2, candidate=near, outcome=measurement(10.0))
    base, first, second = _run_off(FakeMeasurer(cost), _trial(1, 1.0), trial)
    assert first.rounds == 2 < second.rounds == base.rounds


def test_what_may_be_better_in_another_objective_stays() -> None:
    """A slower one that needs less CPU time is not beaten where that is an objective."""
    wide = Interval(value=1.3, low=1.0, high=1.6)
    fast, slow = _finalist(1, 1.5), replace(_finalist(2, 1.2), rounds=2)
    thrifty = replace(slow, gains={**slow.gains, "cpu_s": wide})
    assert is_settled(slow, [fast], _BOTH)
    assert not is_settled(thrifty, [fast], find([*DEFAULT, "cpu_s"]))
    leaner = replace(slow, values={**slow.values, "peak_memory_mib": 50.0})
    assert not is_settled(leaner, [fast], _BOTH)


def test_what_scatters_in_its_own_objective_goes_on() -> None:
    """A speed-up that is known is not enough where the study minimises the time of loading."""
    three = find([*DEFAULT, "load_ms"])
    known, wide = Interval(value=1.3, low=1.2, high=1.4), Interval(value=1.1, low=0.9, high=1.3)
    first = _finalist(1, 1.5)
    assert is_settled(replace(first, gains={**first.gains, "load_ms": known}), [], three)
    assert not is_settled(replace(first, gains={**first.gains, "load_ms": wide}), [], three)


def test_answers_are_compared_in_the_first_round() -> None:
    """A session gives the same answers again; comparing large ones takes seconds."""
    compared: list[tuple[Candidate, bool]] = []

    class Noting(FakeMeasurer):
        def measure(
            self, candidate: Candidate, effort: Effort, is_beaten: IsBeaten = never_beaten
        ) -> Outcome:
            compared.append((candidate, effort.compares_answers))
            return super().measure(candidate, effort, is_beaten)

    _run_off(Noting(_by_threads), _trial(1, 1.0))
    assert [again for _, again in compared] == [True, True, False, False, False, False]
    assert len({candidate for candidate, _ in compared[:2]}) == 2


class _Timed(FakeMeasurer):
    """A measurer whose measurements take two seconds, on a clock of its own."""

    now_s = 0.0

    def measure(
        self, candidate: Candidate, effort: Effort, is_beaten: IsBeaten = never_beaten
    ) -> Outcome:
        """Returns what the cost function says, later."""
        self.now_s += 2.0
        return super().measure(candidate, effort, is_beaten)


def _shaky(candidate: Candidate, _round: dict[Candidate, int]) -> tuple[float, float]:
    """Returns a latency that differs from round to round, and memory that makes a front."""
    count = _round[candidate] = _round.get(candidate, 0) + 1
    threads = int(candidate.to_json().get("intra_op_num_threads", 0))
    luck = 0.1 * (count % 3) if threads else 0.0
    return (10.0 + threads) * (1 + luck), 100.0 - 4 * threads


def _within(limit_s: float, count: int = 6) -> tuple[list[Finalist], _Timed]:
    """Returns a run-off of a default and so many others that no round settles."""
    seen: dict[Candidate, int] = {}
    measurer = _Timed(lambda candidate: _shaky(candidate, seen))
    compared = run_off(
        measurer,
        Trial(number=0, candidate=BASELINE, outcome=measurement(10.0)),
        [_trial(i, 10.0 + i) for i in range(1, count + 1)],
        _BOTH,
        seed=3,
        on_step=lambda _done, _total: None,
        budget=Budget(limit_s, lambda: measurer.now_s),
    )
    return compared, measurer


def test_the_rounds_keep_their_part_of_the_budget() -> None:
    """Of 200 s one half is theirs; what follows has the rest."""
    compared, measurer = _within(200.0, count=12)
    assert measurer.now_s <= 0.5 * 200.0
    assert len(compared) > 3
    assert 3 <= max(item.rounds for item in compared) < MOST_ROUNDS


def test_enough_time_is_no_limit() -> None:
    """Every finalist has all rounds where the study was long."""
    compared, measurer = _within(1e4)
    assert [item.rounds for item in compared] == [MOST_ROUNDS] * 7
    assert len(measurer.raced) == 7 * MOST_ROUNDS


def test_the_fewest_rounds_are_played_whatever_the_time() -> None:
    """One round of all, then two of the default and the ends of the front: no interval of one."""
    compared, measurer = _within(1.0)
    assert [(item.trial.number, item.rounds) for item in compared] == [(0, 3), (1, 3), (6, 3)]
    assert len(measurer.raced) == 7 + 2 * 3


@pytest.mark.parametrize("limit_s", [1.0, 120.0, 1e9])
def test_intervals_hold_the_truth_however_short_the_time(limit_s: float) -> None:
    """Nine in ten of the 95 % intervals do, with 2 % of noise and one round in twenty 10 % off.

    They are not all of 95 %: rounds end where they happen to agree.
    """
    speedups = (1.5, 1.48, 1.4, 1.2, 1.0, 0.9)
    held = []
    for seed in range(60):
        luck = random.Random(seed)
        truth = {Candidate.of({"intra_op_num_threads": i + 1}): s for i, s in enumerate(speedups)}

        def cost(
            candidate: Candidate,
            luck: random.Random = luck,
            truth: dict[Candidate, float] = truth,
        ) -> tuple[float, float]:
            odd = 1.1 if luck.random() < 0.05 else 1.0
            return 10.0 / truth.get(candidate, 1.0) * math.exp(luck.gauss(0, 0.02)) * odd, 100.0

        measurer = _Timed(cost)
        compared = run_off(
            measurer,
            Trial(number=0, candidate=BASELINE, outcome=measurement(10.0)),
            [_trial(i + 1, 10.0) for i in range(len(speedups))],
            _BOTH,
            seed=seed,
            on_step=lambda _done, _total: None,
            budget=Budget(limit_s, lambda own=measurer: own.now_s),  # type: ignore[misc]
        )
        held += [
            item.speedup.low <= truth[item.trial.candidate] <= item.speedup.high
            for item in compared[1:]
        ]
    assert sum(held) / len(held) >= 0.9


def test_what_breaks_a_limit_leaves_first_where_time_is_short() -> None:
    """It is there for a sentence alone."""
    seen: dict[Candidate, int] = {}
    measurer = _Timed(lambda candidate: _shaky(candidate, seen))
    compared = run_off(
        measurer,
        Trial(number=0, candidate=BASELINE, outcome=measurement(10.0)),
        [_trial(1, 11.0), _trial(2, 12.0)],
        _BOTH,
        seed=3,
        on_step=lambda _done, _total: None,
        beyond_limits=[_trial(7, 1.0, error=0.1)],
        budget=Budget(1.0, lambda: measurer.now_s),
    )
    assert [item.trial.number for item in compared] == [0, 1, 2]


def test_a_measurement_of_a_loud_machine_is_taken_again() -> None:
    """Where the machine was never quiet the measurement is repeated, once."""

    class Loud(FakeMeasurer):
        def measure(
            self, candidate: Candidate, effort: Effort, is_beaten: IsBeaten = never_beaten
        ) -> Outcome:
            super().measure(candidate, effort, is_beaten)
            outcome = measurement(10.0)
            return replace(outcome, quiet_turns=0) if len(self.raced) == 1 else outcome

    measurer = Loud(_by_threads)
    base = Trial(number=0, candidate=BASELINE, outcome=measurement(10.0))
    (default,) = run_off(measurer, base, (), _BOTH, seed=0, on_step=lambda _done, _total: None)
    assert default.rounds == 1
    assert len(measurer.raced) == 2


def test_a_busy_machine_is_not_asked_again_and_again() -> None:
    """Where trying again helped at no time of three, the rest is measured once."""
    loud = replace(measurement(10.0), quiet_turns=0)

    class Loud(FakeMeasurer):
        def measure(
            self, candidate: Candidate, effort: Effort, is_beaten: IsBeaten = never_beaten
        ) -> Outcome:
            super().measure(candidate, effort, is_beaten)
            return loud

    measurer = Loud(_by_threads)
    compared = _run_off(measurer, _trial(1, 1.0), _trial(2, 1.0))
    assert len(measurer.raced) == sum(item.rounds for item in compared) + 3


def test_a_percentile_that_is_not_known_disqualifies() -> None:
    """Where p99 is an objective, too few quiet runs for it are a failure."""
    measurer = FakeMeasurer(_by_threads)
    base = Trial(number=0, candidate=BASELINE, outcome=measurement(10.0))
    with pytest.raises(CannotMeasureError, match="p99_ms needs 662"):
        run_off(measurer, base, (), find(["p99_ms"]), seed=0, on_step=lambda _done, _total: None)


def test_speedups_pair_rounds() -> None:
    """A slow round slows both sides and cancels."""
    own = [measurement(5.0), measurement(50.0), measurement(8.0)]
    base = [measurement(10.0), measurement(100.0), measurement(16.0)]
    speedup = score(own, base, [own, base]).speedup
    assert (speedup.low, speedup.value, speedup.high) == pytest.approx((2.0, 2.0, 2.0))


def test_two_rounds_are_believed_as_far_as_others_repeat() -> None:
    """Where other configurations repeat well, two rounds tell a gain; alone they tell none."""
    base = [measurement(10.0), measurement(10.0)]
    own = [measurement(9.0), measurement(9.2)]
    others = [[measurement(ms), measurement(ms * 1.01)] for ms in (8.0, 11.0, 12.0)]
    assert score(own, base, [base, own]).speedup.low < 1
    assert score(own, base, [base, own, *others]).speedup.low > 1.03
