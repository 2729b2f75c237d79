"""The end of a study with a measurer that computes: what is compared, and what explains it."""

from collections.abc import Mapping, Sequence

from fakes import FakeMeasurer, measurement, parameter, setting, space

from autotune.deploy.options import Value
from autotune.errors import CannotMeasureError
from autotune.measure.outcome import Effort, IsBeaten, Outcome, never_beaten
from autotune.results.choice import Verdict
from autotune.results.run_off import Finalist
from autotune.search.finalists import beyond_limit, finalists, leanest_exact
from autotune.search.objective import DEFAULT, find
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import BASELINE, Candidate
from autotune.study.final_comparison import FinalComparison

_SPACE = space(
    parameter("precision", "fp32", "int8_dynamic", "int8_static"),
    parameter("storage", "inline", "external_data"),
    parameter("arena", "on", "off"),
    parameter("nchwc", "on", "off"),
    parameter("intra_op_num_threads", 0, 1, 2, 3, 4, 5, 6, 7, 8),
)
_BASE = Trial(number=0, candidate=BASELINE, outcome=measurement(10.0))
_INT8 = {"precision": "int8_static"}
_SLOW_EXTERNAL = {"storage": "external_data"}


def _trial(
    number: int, values: Mapping[str, Value], latency_ms: float, memory: float, error: float = 0.0
) -> Trial:
    outcome = measurement(latency_ms, memory, error)
    return Trial(number=number, candidate=Candidate.of(values), outcome=outcome)


class Recorded(FakeMeasurer):
    """A measurer that repeats the outcomes of trials; all other candidates are as the default."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        super().__init__(lambda _: (10.0, 100.0))
        self.outcomes = {trial.candidate: trial.outcome for trial in trials}

    def measure(
        self, candidate: Candidate, effort: Effort, is_beaten: IsBeaten = never_beaten
    ) -> Outcome:
        """Returns the recorded outcome."""
        outcome = super().measure(candidate, effort, is_beaten)
        return self.outcomes.get(candidate, outcome)


def _comparison(trials: Sequence[Trial], measurer: FakeMeasurer) -> FinalComparison:
    return FinalComparison(
        setting=setting(_SPACE, limits=Limits(max_error=0.05)),
        measurer=measurer,
        trials=trials,
        baseline=_BASE,
        report=lambda _: None,
    )


def _numbers(compared: Sequence[Finalist]) -> list[int]:
    return [finalist.trial.number for finalist in compared]


def test_a_looser_limit_has_a_number_of_the_run_off() -> None:
    """What only its answers exclude is measured in rounds as well, and never emitted."""
    fast = {"precision": "int8_dynamic"}
    trials = [_BASE, _trial(1, _INT8, 8.0, 80.0, 0.01), _trial(2, fast, 4.0, 60.0, 0.1)]
    verdict = _comparison(trials, Recorded(trials)).run_off()
    assert _numbers(verdict.members) == [0, 1]
    assert verdict.picked.trial.number == 1
    (beyond,) = verdict.others
    assert (beyond.trial.number, beyond.rounds >= 3) == (2, True)


def test_luck_beyond_the_limit_is_seen_through() -> None:
    """The search measured it twice as fast as it is; the run-off has the last word."""
    fast = {"precision": "int8_dynamic"}
    trials = [_BASE, _trial(1, _INT8, 8.0, 80.0, 0.01), _trial(2, fast, 4.0, 60.0, 0.1)]
    measurer = Recorded([*trials[:2], _trial(2, fast, 9.0, 60.0, 0.1)])
    (beyond,) = _comparison(trials, measurer).run_off().others
    assert beyond.speedup.value < 1.2


def test_only_a_clear_gain_beyond_the_limit_is_measured() -> None:
    """What is no faster than what keeps the limit would tell nobody anything."""
    near = _trial(2, {"precision": "int8_dynamic"}, 7.9, 60.0, 0.1)
    trials = [_BASE, _trial(1, _INT8, 8.0, 80.0, 0.01), near]
    arguments = (Limits(max_error=0.05), find(DEFAULT), _SPACE)
    assert beyond_limit(trials, *arguments) is None
    assert beyond_limit([*trials[:2], _trial(3, _SLOW_EXTERNAL, 6.0, 60.0, 0.1)], *arguments)


def _front_of_slow_trials() -> list[Trial]:
    """Returns a default that nothing beats, six trials on its front, and one that saves memory."""
    inexact = [
        _trial(i, {"intra_op_num_threads": i, **_INT8}, 11 + i / 2, 79.0 - 5 * i, 0.01)
        for i in range(1, 8)
    ]
    near = _trial(8, {"nchwc": "off"}, 10.8, 99.0)
    return [_BASE, *inexact, near, _trial(9, _SLOW_EXTERNAL, 12.5, 80.0)]


def test_a_default_that_stays_is_compared_with_what_saves_memory() -> None:
    """The leanest with the same answers is measured, though it has no place among the finalists."""
    trials = _front_of_slow_trials()
    assert 9 not in [t.number for t in finalists(trials, Limits(), find(DEFAULT), _SPACE)]
    assert leanest_exact(trials, Limits()) is trials[9]
    verdict = _comparison(trials, Recorded(trials)).run_off()
    assert verdict.picked is verdict.members[0]
    (leaner,) = (f for f in [*verdict.members, *verdict.others] if f.trial.number == 9)
    assert leaner.rounds >= 3
    assert leaner.speedup.value == 10 / 12.5


def test_less_memory_by_luck_is_not_on_the_front() -> None:
    """Processes of the default differ by a fifth, and what seems a tenth leaner is not a member."""
    leaner = _trial(1, {"arena": "off"}, 10.0, 90.0)
    sure = _trial(2, {"storage": "external_data"}, 10.0, 40.0)
    peaks = iter([100.0, 80.0, 120.0, 90.0, 110.0, 100.0, 100.0])

    class Lucky(Recorded):
        def measure(
            self, candidate: Candidate, effort: Effort, is_beaten: IsBeaten = never_beaten
        ) -> Outcome:
            outcome = super().measure(candidate, effort, is_beaten)
            return measurement(10.0, next(peaks)) if candidate == BASELINE else outcome

    verdict = _comparison([_BASE, leaner, sure], Lucky([leaner, sure])).run_off()
    assert _numbers(verdict.members) == [0, 2]
    assert _numbers(verdict.others) == [1]
    default = verdict.members[0].peak_memory_interval
    assert default is not None
    assert default.low < 80.0 < 120.0 < default.high
    assert verdict.members[1].memory_noise_floor > 0.1


def test_a_default_that_stays_has_no_ablation() -> None:
    """There is nothing to put back."""
    trials = _front_of_slow_trials()
    comparison = _comparison(trials, Recorded(trials))
    verdict = comparison.run_off()
    assert comparison.ablate(verdict) is verdict
    assert comparison.unfinished(verdict) is verdict


def _needless() -> list[Trial]:
    """Returns a default, a winner with a change that does nothing, and the winner without it."""
    return [
        _BASE,
        _trial(1, {**_INT8, "arena": "off"}, 5.0, 60.0, 0.01),
        _trial(2, {"nchwc": "off"}, 9.0, 50.0),
    ]


def test_the_smallest_config_takes_the_place_of_the_winner() -> None:
    """The front has it once, with the number of the winner and numbers of rounds."""
    trials = _needless()
    smaller = _trial(7, _INT8, 5.0, 60.0, 0.01)
    comparison = _comparison(trials, Recorded([*trials, smaller]))
    verdict = comparison.ablate(comparison.run_off())
    assert sorted(_numbers(verdict.members)) == [0, 1, 2]
    assert verdict.picked.trial.candidate == Candidate.of(_INT8)
    assert verdict.picked.trial.number == 1
    assert verdict.picked.rounds >= 3
    assert verdict.ablation is not None
    assert [part.words for part in verdict.ablation.dropped] == ["no arena"]


def test_a_fault_after_the_run_off_leaves_the_winner() -> None:
    """The default fails while changes are put back: the numbers of the run-off stand."""
    trials = _needless()

    class Failing(Recorded):
        done = False

        def renew(self) -> None:
            super().renew()
            if self.done:
                raise CannotMeasureError("no more processes")

    measurer = Failing(trials)
    comparison = _comparison(trials, measurer)
    verdict = comparison.run_off()
    measurer.done = True
    after: Verdict = comparison.ablate(verdict)
    assert after.picked is verdict.picked
    assert after.ablation is not None
    assert not after.ablation.complete
