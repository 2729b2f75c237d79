"""The end of a study with a measurer that computes: what is compared, and what explains it."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import fakes
import made_results
from fakes import FakeMeasurer, measurement, parameter, setting, space

from autotune.deploy.options import Value
from autotune.errors import CannotMeasureError
from autotune.measure.judging import Judgement
from autotune.report.remarks import judgement_remarks
from autotune.results.final_comparison import Finalist
from autotune.results.summary import Conclusion
from autotune.search.finalists import beyond_limit, finalists, leanest_exact
from autotune.search.objective import DEFAULT, find
from autotune.search.trial import Limits, Trial
from autotune.space.configuration import BASELINE, Configuration
from autotune.study.ending import EndOfStudy

_SPACE = space(
    parameter("precision", "fp32", "int8_dynamic", "int8_static"),
    parameter("weight_storage", "inline", "external_data"),
    parameter("arena", "on", "off"),
    parameter("optimizer.NchwcTransformer", "on", "off"),
    parameter("intra_op_num_threads", 0, 1, 2, 3, 4, 5, 6, 7, 8),
)
_BASE = Trial(number=0, configuration=BASELINE, outcome=measurement(10.0))
_INT8 = {"precision": "int8_static"}
_SLOW_EXTERNAL = {"weight_storage": "external_data"}


def _trial(
    number: int, values: Mapping[str, Value], latency_ms: float, memory: float, error: float = 0.0
) -> Trial:
    outcome = measurement(latency_ms, memory, error)
    return Trial(number=number, configuration=Configuration.of(values), outcome=outcome)


class Recorded(FakeMeasurer):
    """A measurer that repeats the outcomes of trials; all others are as the default."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        outcomes = {trial.configuration: trial.outcome for trial in trials}
        super().__init__(lambda configuration: outcomes.get(configuration, _BASE.outcome))


def _comparison(trials: Sequence[Trial], measurer: FakeMeasurer) -> EndOfStudy:
    search: Any = SimpleNamespace(
        measurer=measurer, trials=trials, baseline=_BASE, report=lambda _: None
    )
    return EndOfStudy(
        ctx=setting(_SPACE, limits=Limits(max_error=0.05)),
        search=search,
    )


def _numbers(compared: Sequence[Finalist]) -> list[int]:
    return [finalist.trial.number for finalist in compared]


def test_a_looser_limit_has_a_number_of_the_final_comparison() -> None:
    """What only its answers exclude is measured in rounds as well, and never selected."""
    fast = {"precision": "int8_dynamic"}
    trials = [_BASE, _trial(1, _INT8, 8.0, 80.0, 0.01), _trial(2, fast, 4.0, 60.0, 0.1)]
    conclusion = _comparison(trials, Recorded(trials)).compare()
    assert _numbers(conclusion.members) == [0, 1]
    assert conclusion.picked.trial.number == 1
    (beyond,) = conclusion.others
    assert (beyond.trial.number, beyond.numbers.rounds >= 3) == (2, True)
    # the search measured it twice as fast as it is; the final comparison has the last word
    measurer = Recorded([*trials[:2], _trial(2, fast, 9.0, 60.0, 0.1)])
    (beyond,) = _comparison(trials, measurer).compare().others
    assert beyond.numbers.speedup.value < 1.2


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
    near = _trial(8, {"optimizer.NchwcTransformer": "off"}, 10.8, 99.0)
    return [_BASE, *inexact, near, _trial(9, _SLOW_EXTERNAL, 12.5, 80.0)]


def test_a_default_that_stays_is_compared_with_what_saves_memory() -> None:
    """The leanest with the same answers is measured, though it has no place among the finalists."""
    trials = _front_of_slow_trials()
    assert 9 not in [t.number for t in finalists(trials, Limits(), find(DEFAULT), _SPACE)]
    assert leanest_exact(trials, Limits()) is trials[9]
    conclusion = _comparison(trials, Recorded(trials)).compare()
    assert conclusion.picked is conclusion.members[0]
    (leaner,) = (f for f in [*conclusion.members, *conclusion.others] if f.trial.number == 9)
    assert leaner.numbers.rounds >= 3
    assert leaner.numbers.speedup.value == 10 / 12.5


def test_less_memory_by_luck_is_not_on_the_front() -> None:
    """Processes of the default differ by a fifth, and what seems a tenth leaner is not a member."""
    leaner = _trial(1, {"arena": "off"}, 10.0, 90.0)
    sure = _trial(2, {"weight_storage": "external_data"}, 10.0, 40.0)
    peaks = iter([100.0, 80.0, 120.0, 90.0, 110.0, 100.0, 100.0])

    outcomes = {trial.configuration: trial.outcome for trial in (leaner, sure)}
    measurer = FakeMeasurer(lambda c: outcomes.get(c) or measurement(10.0, next(peaks)))
    conclusion = _comparison([_BASE, leaner, sure], measurer).compare()
    assert _numbers(conclusion.members) == [0, 2]
    assert _numbers(conclusion.others) == [1]
    default = conclusion.members[0].numbers.peak_memory_interval_mib
    assert default is not None
    assert default.low < 80.0 < 120.0 < default.high
    assert conclusion.members[1].numbers.memory_noise_floor > 0.1


def test_a_default_that_stays_has_no_simplification() -> None:
    trials = _front_of_slow_trials()
    comparison = _comparison(trials, Recorded(trials))
    conclusion = comparison.compare()
    assert comparison.simplify(conclusion) is conclusion
    assert comparison.unfinished(conclusion) is conclusion


def _needless() -> list[Trial]:
    """Returns a default, a winner with a change that does nothing, and the winner without it."""
    return [
        _BASE,
        _trial(1, {**_INT8, "arena": "off"}, 5.0, 60.0, 0.01),
        _trial(2, {"optimizer.NchwcTransformer": "off"}, 9.0, 50.0),
    ]


def test_the_smallest_config_takes_the_place_of_the_winner() -> None:
    """The front has it once, with the number of the winner and numbers of rounds."""
    trials = _needless()
    smaller = _trial(7, _INT8, 5.0, 60.0, 0.01)
    comparison = _comparison(trials, Recorded([*trials, smaller]))
    conclusion = comparison.simplify(comparison.compare())
    assert sorted(_numbers(conclusion.members)) == [0, 1, 2]
    assert conclusion.picked.trial.configuration == Configuration.of(_INT8)
    assert conclusion.picked.trial.number == 1
    assert conclusion.picked.numbers.rounds >= 3
    assert conclusion.simplification is not None
    assert [part.words for part in conclusion.simplification.dropped] == ["no arena"]


def test_a_fault_after_the_final_comparison_leaves_the_winner() -> None:
    trials = _needless()

    class Failing(Recorded):
        done = False

        def renew(self) -> None:
            super().renew()
            if self.done:
                raise CannotMeasureError("no more processes")

    measurer = Failing(trials)
    comparison = _comparison(trials, measurer)
    conclusion = comparison.compare()
    measurer.done = True
    after: Conclusion = comparison.simplify(conclusion)
    assert after.picked is conclusion.picked
    assert after.simplification is not None
    assert not after.simplification.complete


def _settled(
    values: Mapping[str, Value], smaller: Mapping[str, Value]
) -> tuple[list[Configuration], Conclusion]:
    """Returns what is judged, and the end, where no smallest form of a winner holds."""
    winner, judged = _trial(1, values, 5.0, 60.0, 0.01), list[Configuration]()
    next_best = _trial(2, {"optimizer.NchwcTransformer": "off"}, 8.0, 90.0)
    trials = [_BASE, winner, next_best]
    comparison = _comparison(trials, Recorded([*trials, _trial(7, smaller, 5.0, 60.0, 0.01)]))

    def judge(finalist: Finalist) -> Judgement:
        judged.append(finalist.trial.configuration)
        return fakes.judged(finalist.trial.number, admitted=judged[-1] != Configuration.of(smaller))

    *_, last = comparison.settled(comparison.compare(), judge)
    return judged, last


def test_a_winner_whose_smallest_form_does_not_hold_is_judged_with_all_of_its_changes() -> None:
    """A storage form that costs nothing may matter for the answers to other samples."""
    whole = {**_INT8, **_SLOW_EXTERNAL}
    judged, last = _settled(whole, _INT8)
    assert judged == [Configuration.of(_INT8), Configuration.of(whole)]
    assert last.picked.trial.configuration == Configuration.of(whole)
    assert (last.picked.trial.number, 1 in _numbers(last.members)) == (1, True)
    assert [judgement.admitted for judgement in last.judgements] == [False, True]
    assert last.simplification is not None
    assert not last.simplification.dropped
    member = made_results.member(1, whole, 2.0)
    result = made_results.result(member, picked=1, judgements=last.judgements)
    first, second = (line.text for line in judgement_remarks(result))
    assert first.startswith("Trial 1 in its smallest form on 120 of 120 samples: error 0.5")
    assert second.startswith("Trial 1 on 120 of 120 samples: error 0")


def test_a_winner_that_answers_as_its_smallest_form_gives_way_to_the_next() -> None:
    """An arena changes no answer, so the winner with it need not be judged."""
    judged, last = _settled({**_INT8, "arena": "off"}, _INT8)
    assert judged == [Configuration.of(_INT8), last.picked.trial.configuration]
    assert last.picked.trial.number == 2
