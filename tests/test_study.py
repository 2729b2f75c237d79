"""The search and the whole job, with a measurer that computes."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from fakes import (
    Cost,
    FakeMeasurer,
    FakeWorld,
    build_search,
    measurement,
    parameter,
    refusal,
    space,
    thread_cost,
)
from optuna.trial import TrialState

import autotune
from autotune.deploy.config import Interval
from autotune.errors import CannotMeasureError, RequestError, StorageError, StudyError
from autotune.measure.outcome import (
    LEAST_MEMORY_MIB,
    Failure,
    Fidelity,
    Measurement,
    Outcome,
)
from autotune.report.page.state import read_state
from autotune.results.result import StudyResult
from autotune.search.optuna_trials import read_trials
from autotune.search.trial import Limits
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.space import Space
from autotune.storage.database import Clock
from autotune.study import measuring
from autotune.study.finish import Interrupted
from autotune.study.loop import Search
from autotune.study.progress import Progress

pytestmark = pytest.mark.usefixtures("quiet")


def _search(
    study: optuna.Study, cost: Cost = thread_cost, within: Space | None = None, **options: Any
) -> tuple[Search, FakeMeasurer]:
    measurer = FakeMeasurer(cost)
    return build_search(measurer, within, study=study, **options), measurer


def test_duplicates_are_measured_once_and_remembered(study: optuna.Study) -> None:

    class Duplicates(FakeMeasurer):
        def canonical(self, configuration: Configuration) -> Configuration:
            values = configuration.to_json()
            values.pop("arena", None)
            return Configuration.of(values)

    measurer = Duplicates(thread_cost)
    search = build_search(measurer, study=study)
    search.run(30, None)
    assert len(search.trials) == len(set(measurer.searched)) == 10
    again = Duplicates(thread_cost)
    resumed = build_search(again, study=study)
    resumed.run(30, None)
    assert resumed.record.equal == search.record.equal != {}
    assert again.searched == []


def test_the_baseline_is_trial_0_outside_the_space(study: optuna.Study) -> None:
    fixed = space(
        parameter("intra_op_num_threads", 2), parameter("arena", "on", "off", "same_as_requested")
    )
    search, measurer = _search(study, within=fixed)
    search.run(10, None)
    assert measurer.searched[0] == BASELINE
    assert search.trials[0].number == 0
    others = measurer.searched[1:]
    assert len(others) == 3
    assert all(c.to_json()["intra_op_num_threads"] == 2 for c in others)
    assert read_trials(study) == search.trials


def test_failures_are_pruned_with_constraints(study: optuna.Study) -> None:

    def cost(configuration: Configuration) -> tuple[float, float] | Failure:
        fails = configuration.to_json().get("arena") == "off"
        return refusal("no arena") if fails else thread_cost(configuration)

    search, measurer = _search(study, cost)
    search.run(30, None)
    assert len(set(measurer.searched)) == len(measurer.searched) == 30
    failed = [f for f in study.trials if "failure" in f.user_attrs]
    assert len(failed) == 10
    for frozen in failed:
        assert frozen.state == TrialState.PRUNED
        assert frozen.constraints["valid"] > 0
        assert frozen.user_attrs["failure"]["message"] == "no arena"
    assert all(f.state in (TrialState.COMPLETE, TrialState.PRUNED) for f in study.trials)


def test_every_trial_has_all_constraints(study: optuna.Study) -> None:
    outcomes: list[tuple[float, float] | Failure] = [
        (10.0, 100.0),
        refusal(),
        Failure(kind="wrong_answers", phase="answers", message="NaN", error=float("inf")),
    ]
    calls = iter(range(1000))
    search, _ = _search(study, lambda _: outcomes[next(calls) % 3])
    search.run(30, None)
    for frozen in study.trials:
        assert list(frozen.constraints) == ["valid", "error", "memory", "latency"]
        assert np.isfinite(list(frozen.constraints.values())).all()


def test_the_best_keeps_the_limits(study: optuna.Study) -> None:
    search, _ = _search(study, limits=Limits(max_memory_mib=70.0))
    search.run(30, None)
    assert search.record.best is not None
    assert search.record.best.configuration == Configuration.of(
        {"intra_op_num_threads": 4, "arena": "same_as_requested"}
    )


def test_time_ends_the_search_after_the_baseline(study: optuna.Study) -> None:
    reports: list[Progress] = []
    search, measurer = _search(study, report=reports.append)
    search.run(30, 1e-9)
    assert measurer.searched == [BASELINE]
    assert reports[-1].done == 1


def test_progress_is_told(study: optuna.Study) -> None:
    reports: list[Progress] = []
    search, _ = _search(study, report=reports.append)
    search.run(6, None)
    assert [p.done for p in reports if p.trials][:5] == [1, 2, 3, 4, 5]
    assert {p.stage for p in reports} == {"search"}
    assert all(p.total == 6 for p in reports)
    assert reports[-1].best is not None


@pytest.mark.parametrize(("noisy", "notes"), [(5, 1), (4, 0)])
def test_a_noisy_machine_is_mentioned(study: optuna.Study, noisy: int, notes: int) -> None:
    calls, messages = iter(range(8)), list[Progress]()

    def cost(_: Configuration) -> Outcome:
        return replace(measurement(10.0), undisturbed_turns=0 if next(calls) < noisy else 20)

    build_search(FakeMeasurer(cost), study=study, report=messages.append).run(8, None)
    texts = [progress.note for progress in messages if progress.note]
    assert len(texts) == notes
    assert all("5 trials in a row" in text for text in texts)


def _any_cost(configuration: Configuration) -> tuple[float, float]:
    """Returns a cost for whatever the default space offers, the default a mediocre one."""
    luck = 0.5 if configuration == BASELINE else int(configuration.key[:4], 16) / 0xFFFF
    thrift = 0.5 if configuration == BASELINE else int(configuration.key[4:8], 16) / 0xFFFF
    return 5.0 + 10 * luck, 20.0 + 100 * thrift


@pytest.fixture
def world() -> FakeWorld:
    """The world of the studies, whose measurers compute."""
    return FakeWorld(_any_cost)


Tune = Callable[..., StudyResult]


@pytest.fixture
def tune(world: FakeWorld, tiny_model: Path, tmp_path: Path) -> Tune:
    """Does a study of session options in this world; it writes to the test's own folder."""
    return partial(world.tune, tiny_model, space="session", out=tmp_path)


def test_tune_writes_what_load_opens(world: FakeWorld, tune: Tune, tmp_path: Path) -> None:
    result = tune(trials=20)
    assert result.complete
    assert result.trials == len(set(world.searched)) == 20
    assert StudyResult.read(tmp_path) == result
    assert result.baseline.configuration == {}
    assert result.best.evidence.speedup.low > 1
    latencies = [member.evidence.latency_ms for member in result.members[1:]]
    assert latencies == sorted(latencies)
    assert all((tmp_path / name).is_file() for name in result.files)
    session = autotune.load(tmp_path / "best.json")
    (logits,) = session.run(None, {"image": np.zeros((1, 3, 16, 16), np.float32)})
    assert logits.shape == (1, 10)
    assert all(measurer.closed for measurer in world.measurers)


_DAMAGES: tuple[tuple[tuple[Any, ...], Any, str], ...] = (
    (("members", 0, "evidence", "latency_ms"), "fast", "latency_ms must be a number"),
    (("members", 0, "configuration"), {"library": "/tmp/x.so"}, "no parameter 'library'"),
    (("members",), [], "the default at least"),
    (("effects",), 3, "effects must be a list"),
    (("objectives",), None, "objectives must be a list"),
    (("objectives",), ["latency_ms", "speed"], "'speed' is none of"),
    (("objectives",), ["latency_ms", "p99_ms"], "trial 0 has no p99_ms"),
    (("prefer",), "speed", "must be one of latency, memory"),
    (("picked",), 77, "trial 77 is not on the front"),
    (("limits",), {}, "'limits.max_drop' is missing"),
    (("effects", 0, "objective"), "speed", "effects lack"),
    (("format",), "autotune-front/0", "another version"),
    (("more",), 1, "unknown key 'more'"),
)


def test_a_damaged_result_is_refused(tune: Tune, tmp_path: Path) -> None:
    """A folder may come from a stranger: the key is named, and nothing falls over later."""
    tune(trials=2)
    sound = (tmp_path / "front.json").read_text()
    for path, value, message in _DAMAGES:
        data = json.loads(sound)
        place = data
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        (tmp_path / "front.json").write_text(json.dumps(data))
        with pytest.raises(StudyError, match=message):
            StudyResult.read(tmp_path)


def test_a_complete_study_is_not_repeated(world: FakeWorld, tune: Tune, tmp_path: Path) -> None:
    first = tune(trials=8)
    reports: list[Progress] = []
    assert tune(trials=8, on_progress=reports.append) == first
    assert len(world.measurers) == 1
    assert reports[-1].stage == "done"
    # a file that is gone is written again, without a new trial
    (tmp_path / "best.json").unlink()
    tune(trials=8)
    assert (tmp_path / "best.json").is_file()
    assert len(world.searched) == 8


def test_another_preference_needs_no_new_trials(world: FakeWorld, tune: Tune) -> None:
    tune(trials=8)
    result = tune(trials=8, prefer="memory")
    assert result.prefer == "memory"
    assert world.measurers[1].searched == []
    assert world.measurers[1].compared
    assert world.reference_ms == [None, world.measurers[0].reference_ms]


def test_other_objectives_are_another_study(world: FakeWorld, tune: Tune) -> None:
    first = tune(trials=8)
    assert first.prefer == "latency"
    second = tune(trials=8, objectives=["cpu_s", "load_ms"])
    assert second.study != first.study
    assert second.objectives == ("cpu_s", "load_ms")
    assert second.prefer == "cpu"
    assert len(world.searched) == 16
    again = tune(trials=8, objectives=["cpu_s", "load_ms"])
    assert again == second


def test_a_percentile_of_a_slow_model_is_refused(
    world: FakeWorld, tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "_LONGEST_TRIAL_S", 1.0)
    place = tmp_path / "new"
    with pytest.raises(RequestError, match="p99_ms needs 662 runs; at 10 ms each"):
        tune(trials=8, objectives=["p99_ms"], out=place)
    assert world.measurers[0].closed
    assert list(place.iterdir()) == []  # the lock, which is a fake here, removes the folder


def test_the_dominated_are_stopped_early(study: optuna.Study) -> None:
    search, _ = _search(study)
    search.run(20, None)
    stopped_early = [t for t in search.trials if t.measurement and t.measurement.stopped_early]
    assert stopped_early
    assert search.baseline is not None
    assert search.baseline not in stopped_early


@pytest.mark.parametrize(("low", "stopped"), [(0.9, False), (1.1, True)])
def test_a_limit_of_latency_ends_what_surely_breaks_it(
    study: optuna.Study, low: float, stopped: bool
) -> None:
    """At 12 ms, a limit of 10.5 ms may be kept where the interval begins at 9 ms, not at 11."""
    wide = replace(measurement(12.0, 90.0), ratio=Interval(value=1.2, low=low, high=1.5))
    measurer = FakeMeasurer(lambda c: measurement(10.0) if c == BASELINE else wide)
    limits = Limits(max_latency_ms=10.5)
    search = build_search(measurer, study=study, limits=limits)
    search.run(4, None)
    others = [t.measurement for t in search.trials if t.configuration != BASELINE]
    assert [m.stopped_early for m in others if m] == [stopped] * 3


def test_nothing_is_stopped_early_where_a_percentile_is_minimised(study: optuna.Study) -> None:
    """Wrong answers are timed to the end: a percentile of too few runs would count as a failure."""

    class Tail(FakeMeasurer):
        def measure(self, configuration: Configuration, *rest: Any, **named: Any) -> Outcome:
            outcome = super().measure(configuration, *rest, **named)
            assert isinstance(outcome, Measurement)
            error = 0.0 if configuration == BASELINE else 0.1
            fidelity = replace(outcome.fidelity, error=error)
            p99_ms = None if outcome.stopped_early else 2 * outcome.latency_ms
            wrong = rest[1](replace(outcome, fidelity=fidelity))
            return replace(outcome, fidelity=fidelity, p99_ms=p99_ms, stopped_early=wrong)

    search = build_search(Tail(thread_cost), study=study, objectives=["p99_ms", "peak_memory_mib"])
    search.run(5, None)
    assert all(trial.measurement and not trial.measurement.stopped_early for trial in search.trials)


def test_a_config_is_where_a_study_may_start(world: FakeWorld, tune: Tune, tmp_path: Path) -> None:
    first = tune(trials=8, out=tmp_path / "first")
    (tmp_path / "more.json").write_text('{"intra_op_num_threads": 1, "arena": "off"}')
    tried = [tmp_path / "first" / "best.json", tmp_path / "more.json"]
    tune(trials=3, first=tried, out=tmp_path / "second")
    assert world.measurers[1].searched == [
        BASELINE,
        Configuration.of(first.best.configuration),
        Configuration.of({"intra_op_num_threads": 1, "arena": "off"}),
    ]


class _TimedWorld(FakeWorld):
    """A world in which every measurement takes three seconds, on a clock of its own."""

    now_s = 0.0

    def later(self, configuration: Configuration) -> tuple[float, float] | Failure:
        """Returns a cost that differs from process to process, later."""
        self.now_s += 3.0
        latency, memory = thread_cost(configuration)  # type: ignore[misc]  # none of it fails
        return latency * (1 + 0.03 * math.sin(self.now_s)), memory


def test_the_final_comparison_takes_a_third_of_a_study(tiny_model: Path, tmp_path: Path) -> None:
    timed = _TimedWorld(_any_cost)
    timed.cost = timed.later
    clock = Clock(monotonic=lambda: timed.now_s, sleep=lambda _: None)
    seams = {"clock": clock}
    result = timed.tune(tiny_model, space="session", trials=80, out=tmp_path, seams=seams)
    (measurer,) = timed.measurers
    assert len(measurer.searched) == result.trials
    assert 3.0 * len(measurer.compared) <= 0.5 * 3.0 * len(measurer.searched)
    assert result.best.evidence.rounds >= 3


@pytest.mark.parametrize(("limit_s", "is_confirmed"), [(20.0, False), (90.0, True)])
def test_a_time_is_that_of_the_whole_study(
    tiny_model: Path, tmp_path: Path, limit_s: float, is_confirmed: bool
) -> None:
    """Trials, final comparison and leave-one-out together; too little of it confirms nothing."""
    timed = _TimedWorld(_any_cost)
    timed.cost = timed.later
    clock = Clock(monotonic=lambda: timed.now_s, sleep=lambda _: None)
    reports: list[Progress] = []
    result = timed.tune(
        tiny_model,
        space="session",
        trials=80,
        timeout_s=limit_s,
        out=tmp_path,
        on_progress=reports.append,
        seams={"clock": clock},
    )
    assert timed.now_s <= limit_s
    assert result.complete is is_confirmed
    assert is_confirmed == any(each.stage == "final comparison" for each in reports)
    assert is_confirmed != any("too little time" in (each.note or "") for each in reports)


def test_what_a_worker_had_no_time_to_confirm_is_no_result_of_others(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Another worker of the study with more time makes the final comparison itself."""
    timed = _TimedWorld(_any_cost)
    timed.cost = timed.later
    seams = {"clock": Clock(monotonic=lambda: timed.now_s, sleep=lambda _: None)}
    shared: dict[str, Any] = {"space": "session", "storage": "grpc://localhost:1", "seams": seams}
    hurried = timed.tune(tiny_model, **shared, trials=80, timeout_s=20.0, out=tmp_path / "one")
    patient = timed.tune(tiny_model, **shared, trials=hurried.trials, out=tmp_path / "two")
    assert (hurried.study, hurried.trials) == (patient.study, patient.trials)
    assert [hurried.complete, patient.complete] == [False, True]


def _interrupted_after(count: int, cost: Cost) -> Cost:
    """Returns a cost function that Ctrl-C ends after so many calls."""
    calls = iter(range(1000))

    def interrupted(configuration: Configuration) -> tuple[float, float] | Failure:
        if next(calls) == count:
            raise KeyboardInterrupt
        return cost(configuration)

    return interrupted


def test_an_interrupt_keeps_the_best(world: FakeWorld, tune: Tune, tmp_path: Path) -> None:
    world.on_disk = True
    world.cost = _interrupted_after(5, _any_cost)
    with pytest.raises(Interrupted) as caught:
        tune(trials=20)
    assert not caught.value.result.complete
    assert caught.value.result.trials == 5
    assert StudyResult.read(tmp_path) == caught.value.result
    # somebody plans a trial in the study's storage
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    planned = optuna.load_study(study_name=caught.value.result.study, storage=storage)
    planned.enqueue_trial({"arena": "off"})
    assert autotune.load(tmp_path / "best.json") is not None
    assert world.measurers[0].closed
    measured = world.measurers[0].searched[:5]

    world.cost = _any_cost
    result = tune(trials=20)
    assert result.complete
    assert result.trials == 20
    again = world.measurers[1].searched
    assert len(again) == len(set(again)) == 15
    assert not set(measured) & set(again)


def test_an_interrupt_of_a_longer_study_keeps_what_was_confirmed(
    world: FakeWorld, tune: Tune, tmp_path: Path
) -> None:
    """The config of the final comparison stays, and no number of the search takes its place."""
    world.on_disk = True
    first = tune(trials=8)
    assert first.best is not first.baseline
    written = [(tmp_path / name).read_bytes() for name in ("best.json", "front.json")]
    world.cost = _interrupted_after(5, _any_cost)
    with pytest.raises(Interrupted) as caught:
        tune(trials=20)
    assert caught.value.result == first
    assert [(tmp_path / name).read_bytes() for name in ("best.json", "front.json")] == written
    assert len(read_state(tmp_path).trials) == 8 + 5


def test_an_interrupt_of_a_longer_study_finds_more_than_the_default(
    world: FakeWorld, tune: Tune, tmp_path: Path
) -> None:
    """Where the default had been selected, there is no config that the search could spoil."""
    world.cost = lambda _: (10.0, 100.0)
    first = tune(trials=8)
    assert first.best is first.baseline
    world.cost = _interrupted_after(5, lambda _: (5.0, 100.0))
    with pytest.raises(Interrupted) as caught:
        tune(trials=20)
    result = caught.value.result
    assert (result.complete, result.trials) == (False, 8 + 5)
    assert result.best.evidence.speedup.value == pytest.approx(2.0)
    assert StudyResult.read(tmp_path) == result


_TWO_PARAMETERS = """
description = "patterns and threads"

[parameters.enable_mem_pattern]
values = [true, false]
default = true

[parameters.intra_op_num_threads]
values = [0, 1]
default = 0
"""


def test_what_a_user_tries_is_measured_after_a_search_that_had_ended(
    world: FakeWorld, tune: Tune, tmp_path: Path
) -> None:
    """Once: after that the same command returns at once, as it does without it."""
    small, tried = tmp_path / "space.toml", tmp_path / "tried.json"
    small.write_text(_TWO_PARAMETERS, encoding="utf-8")
    tried.write_text('{"intra_op_num_threads": 3}', encoding="utf-8")
    assert tune(trials=20, space=small).ended
    assert len(world.searched) == 4
    tune(trials=20, space=small)
    assert len(world.measurers) == 1
    more = tune(trials=20, space=small, first=[tried])
    assert world.searched[4:] == [Configuration.of({"intra_op_num_threads": 3})]
    assert more.trials == 5
    assert tune(trials=20, space=small, first=[tried]) == more
    assert len(world.measurers) == 2


def test_an_interrupt_after_the_final_comparison_keeps_the_winner(
    world: FakeWorld, tune: Tune, tmp_path: Path
) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.stage == "simplification":
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        tune(trials=20, on_progress=interrupt)
    cut_short = caught.value.result
    assert cut_short.complete
    assert cut_short.best.evidence.rounds >= 3
    assert cut_short.simplification is not None
    assert not cut_short.simplification.complete
    assert StudyResult.read(tmp_path) == cut_short
    assert autotune.load(tmp_path / "best.json") is not None

    result = tune(trials=20)
    assert result.trials == len(world.searched) == 20
    assert result.simplification is not None
    assert result.simplification.complete


def test_an_interrupt_while_the_result_is_written_keeps_it(
    tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = iter([True, False])
    answers_of = FakeMeasurer.answers_of

    def interrupt_once(self: FakeMeasurer, config: Path) -> Fidelity | Failure:
        if next(written):
            raise KeyboardInterrupt
        return answers_of(self, config)

    monkeypatch.setattr(FakeMeasurer, "answers_of", interrupt_once)
    with pytest.raises(Interrupted) as caught:
        tune(trials=6)
    assert caught.value.result.complete
    assert StudyResult.read(tmp_path) == caught.value.result


def test_a_full_disk_in_the_last_check_leaves_no_config(
    world: FakeWorld, tune: Tune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> Fidelity:
        raise StorageError("a disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(FakeMeasurer, "answers_of", no_room)
        with pytest.raises(StorageError):
            tune(trials=4)
    assert not (tmp_path / "best.json").exists()
    assert tune(trials=4).complete
    assert len(world.searched) == 4


def test_an_interrupt_before_the_baseline_writes_nothing(
    world: FakeWorld, tune: Tune, tmp_path: Path
) -> None:
    world.cost = _interrupted_after(0, _any_cost)
    with pytest.raises(KeyboardInterrupt) as caught:
        tune(trials=5)
    assert not isinstance(caught.value, Interrupted)
    assert not (tmp_path / "best.json").exists()
    assert world.measurers[0].closed


def test_a_default_that_fails_cannot_be_tuned(world: FakeWorld, tune: Tune, tmp_path: Path) -> None:
    world.on_disk = True
    world.cost = lambda c: refusal("broken") if c == BASELINE else (1.0, 1.0)
    with pytest.raises(CannotMeasureError, match="broken"):
        tune(trials=3)
    assert not (tmp_path / "best.json").exists()
    assert world.measurers[0].closed
    with pytest.raises(CannotMeasureError, match="broken"):
        tune(trials=3)
    # the fault may have passed
    world.cost = _any_cost
    assert tune(trials=3).trials == 3
    state = read_state(tmp_path)
    assert [trial.configuration for trial in state.trials].count(BASELINE) == 3
    assert state.baseline is not None


def test_failures_are_counted_by_kind(world: FakeWorld, tune: Tune) -> None:
    calls = iter(range(1000))

    def cost(configuration: Configuration) -> tuple[float, float] | Failure:
        return refusal() if next(calls) in (2, 3) else _any_cost(configuration)

    world.cost = cost
    assert tune(trials=8).failed == {"refused": 2}


def test_a_session_without_memory_of_its_own_is_written(tiny_model: Path, tmp_path: Path) -> None:
    """A tiny model may add no memory that can be seen: ratios exist all the same."""

    def cost(configuration: Configuration) -> tuple[float, float]:
        return (5.0 if configuration.to_json().get("intra_op_num_threads") else 10.0), 0.0

    result = FakeWorld(cost).tune(tiny_model, space="session", trials=12, out=tmp_path)
    assert result.best.evidence.speedup.value == pytest.approx(2.0)
    assert result.best.evidence.peak_memory_mib == LEAST_MEMORY_MIB
    assert StudyResult.read(tmp_path) == result
