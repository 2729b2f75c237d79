"""Who measures what: claims of drivers that share a study."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import made_results
import optuna
import pytest
from fakes import measurement, parameter, refusal, space
from sqlalchemy import text

from autotune.deploy.records import to_plain
from autotune.errors import StudyError
from autotune.measure.outcome import LEAST_MEMORY_MIB
from autotune.results.result import StudyResult
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import BASELINE, Candidate
from autotune.storage.clock import Clock
from autotune.storage.trials import Record, describe, read_trials, trial_in, worker_of
from autotune.study.shared_run_off import SharedRunOff

ARENA = Candidate.of({"arena": "off"})


pytestmark = pytest.mark.usefixtures("quiet")


def _two(study: optuna.Study) -> tuple[Record, Record]:
    return Record(study, "one", "a", shared=True), Record(study, "two", "b", shared=True)


def test_the_earlier_trial_keeps_its_candidate(study: optuna.Study) -> None:
    """Whoever claims first: the number decides."""
    one, two = _two(study)
    first, second = study.ask(), study.ask()
    claimed: list[bool] = []
    # the later trial waits: the earlier one has not said yet what it will measure
    waiting = threading.Thread(target=lambda: claimed.append(two.claim(second, ARENA, 10)))
    waiting.start()
    waiting.join(0.2)
    assert claimed == []
    assert one.claim(first, ARENA, 10)
    waiting.join(10)
    assert claimed == [False]


def test_a_worker_that_died_while_it_chose_is_not_waited_for(study: optuna.Study) -> None:
    """It was killed before the first heartbeat of its trial, so Optuna never gives the trial up."""
    now_s = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        assert now_s < 60, "the claim waits for ever"

    first, second = study.ask(), study.ask()
    clock = Clock(monotonic=lambda: now_s, sleep=sleep)
    assert Record(study, "two", "b", shared=True, clock=clock).claim(second, ARENA, 10)
    assert [frozen.state.name for frozen in study.trials] == ["FAIL", "RUNNING"]
    # it was only suspended: it hears that its trial is given up, which the search expects
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        first.set_user_attr("claim", {})


@pytest.mark.parametrize("aim", ["candidate", "run-off"])
def test_a_claim_has_a_heartbeat(tmp_path: Path, aim: str) -> None:
    """Its worker may die before Optuna's own: Optuna gives up what had one, and nothing else."""
    url = f"sqlite:///{tmp_path / 'study.db'}"
    storage = optuna.storages.RDBStorage(url, heartbeat_interval=1, grace_period=1)
    study = optuna.create_study(storage=storage)
    with pytest.warns(UserWarning, match="Heartbeat"):  # it begins with Study.optimize
        trial = study.ask()
    record = Record(study, "one", "a", shared=True)
    assert record.claim(trial, ARENA, 10) if aim == "candidate" else record.claim_run_off(trial)
    with storage.engine.begin() as connection:
        connection.execute(text("UPDATE trial_heartbeats SET heartbeat = '2001-01-01 00:00:00'"))
    optuna.storages.fail_stale_trials(study)
    assert [frozen.state.name for frozen in study.trials] == ["FAIL"]
    storage.engine.dispose()


def test_different_candidates_do_not_meet(study: optuna.Study) -> None:
    """Each measures its own, and sees what the other has claimed."""
    one, two = _two(study)
    first, second = study.ask(), study.ask()
    assert one.claim(first, ARENA, 10)
    assert two.claim(second, BASELINE, 10)
    one.refresh()
    two.refresh()
    assert one.claimed == frozenset({BASELINE})
    assert two.claimed == frozenset({ARENA})


def test_a_measured_candidate_is_not_claimed(study: optuna.Study) -> None:
    """Also if its trial was told between the look around and the claim."""
    one, two = _two(study)
    first = study.ask()
    assert one.claim(first, ARENA, 10)
    for key, value in describe(Trial(number=0, candidate=ARENA, outcome=measurement(1.0))).items():
        first.set_user_attr(key, value)
    study.tell(first, [1.0, 1.0])
    assert not two.claim(study.ask(), ARENA, 10)
    two.refresh()
    assert [trial.candidate for trial in two.trials] == [ARENA]
    assert two.claimed == frozenset()


def test_what_came_from_a_spool_is_not_claimed(study: optuna.Study) -> None:
    """It was measured before, though its trial has a later number."""
    late = study.ask()
    entry = describe(Trial(number=3, candidate=ARENA, outcome=measurement(2.0, 50.0)))
    one, two = _two(study)
    one.insert(entry, space(parameter("arena", "on", "off")), Limits(), (2.0, 50.0))
    assert not two.claim(late, ARENA, 10)


def test_what_does_not_count_takes_neither_candidate_nor_budget(study: optuna.Study) -> None:
    """A trial that a looser limit lets measure again may be claimed again."""

    def counts(trial: Trial) -> bool:
        return trial.measurement is not None

    one = Record(study, "one", "a", shared=True, counts=counts)
    first = study.ask()
    assert one.claim(first, ARENA, 1)
    for key, value in describe(Trial(number=0, candidate=ARENA, outcome=refusal())).items():
        first.set_user_attr(key, value)
    study.tell(first, state=optuna.trial.TrialState.PRUNED)
    assert one.claim(study.ask(), ARENA, 1)


def test_the_budget_is_that_of_all(study: optuna.Study) -> None:
    """Claims of earlier trials count as much as what they have measured."""
    one, two = _two(study)
    first, second = study.ask(), study.ask()
    assert one.claim(first, BASELINE, 1)
    assert not two.claim(second, ARENA, 1)


def test_what_a_dead_driver_had_is_given_back(study: optuna.Study) -> None:
    """But what made three of them die is left alone."""
    one, two = _two(study)
    for deaths in range(1, 5):
        trial = study.ask()
        assert one.claim(trial, ARENA, 10)
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        two.refresh()
        assert two.given_back == ((ARENA,) if deaths < 3 else ())


def test_who_came_late_is_not_dead(study: optuna.Study) -> None:
    """A candidate that two drivers chose at once many times may still be given back."""
    one, two = _two(study)
    first = study.ask()
    assert one.claim(first, ARENA, 10)
    for _ in range(4):
        late = study.ask()
        assert not two.claim(late, ARENA, 10)
        study.tell(late, state=optuna.trial.TrialState.FAIL)
    study.tell(first, state=optuna.trial.TrialState.FAIL)
    two.refresh()
    assert two.given_back == (ARENA,)


def test_a_driver_gives_up_its_own_alone(study: optuna.Study) -> None:
    """After a restart; what others run goes on, and where nobody shares, all is its own."""
    one, two = _two(study)
    first, second = study.ask(), study.ask()
    assert one.claim(first, ARENA, 10)
    assert two.claim(second, BASELINE, 10)
    again = Record(study, "one", "a", shared=True)
    again.heal()
    states = [frozen.state.name for frozen in study.trials]
    assert states == ["FAIL", "RUNNING"]
    assert again.given_back == (ARENA,)
    Record(study).heal()
    assert [frozen.state.name for frozen in study.trials] == ["FAIL", "FAIL"]


def test_one_holds_the_run_off(study: optuna.Study) -> None:
    """Another may when it has died."""
    one, two = _two(study)
    first, second = study.ask(), study.ask()
    assert one.claim_run_off(first)
    assert not two.claim_run_off(second)
    study.tell(first, state=optuna.trial.TrialState.FAIL)
    study.tell(second, state=optuna.trial.TrialState.PRUNED)
    assert two.claim_run_off(study.ask())


def test_a_run_off_of_a_worker_that_was_taken_for_dead_counts(study: optuna.Study) -> None:
    """It was suspended meanwhile, and another worker ended its trial; a real fault is raised."""
    written = made_results.result()

    def suspended() -> StudyResult:
        (running,) = study.get_trials(states=(optuna.trial.TrialState.RUNNING,))
        study.tell(running.number, state=optuna.trial.TrialState.FAIL)
        return written

    def broken() -> StudyResult:
        raise ValueError("a bug")

    run_off = SharedRunOff(
        study=study,
        record=_two(study)[0],
        setting=Mock(folder=Path()),
        preparer=Mock(),
        measurer=Mock(),
        report=Mock(),
        clock=Clock(),
    )
    with pytest.raises(ValueError, match="a bug"):
        run_off.result(broken)
    assert run_off.result(suspended) is written


@pytest.mark.parametrize(
    "values", ["text", ["arena"], {"arena": "sideways"}, {"library": "/tmp/x.so"}, {"arena": {}}]
)
def test_a_strangers_candidate_is_not_believed(study: optuna.Study, values: object) -> None:
    """What is no value of a parameter is no candidate."""
    trial = study.ask()
    trial.set_user_attr("candidate", values)
    trial.set_user_attr("measurement", to_plain(measurement(1.0)))
    study.tell(trial, [1.0, 1.0])
    assert read_trials(study) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("latency_ms", "fast"), ("latency_ms", -1.0), ("memory", None), ("cpu_s", float("nan"))],
)
def test_a_strangers_numbers_are_not_believed(study: optuna.Study, key: str, value: object) -> None:
    """What no measurement gives is none: the candidate is measured again."""
    trial = study.ask()
    trial.set_user_attr("candidate", {"arena": "off"})
    trial.set_user_attr("measurement", {**to_plain(measurement(1.0)), key: value})
    study.tell(trial, [1.0, 1.0])
    assert read_trials(study) == []


def test_a_peak_below_its_base_is_the_least() -> None:
    """A stranger's memory may be any numbers; the objective is never negative, and no zero."""
    memory = replace(measurement(1.0).memory, base_mib=1e6)
    assert memory.peak_mib == LEAST_MEMORY_MIB


def test_what_was_never_told_is_inserted(study: optuna.Study) -> None:
    """With its constraints and values, as if it had been told in time."""
    within = space(parameter("arena", "on", "off"))
    entry = describe(Trial(number=3, candidate=ARENA, outcome=measurement(2.0, 50.0)))
    Record(study).insert(entry, within, Limits(), (2.0, 50.0))
    (frozen,) = study.trials
    assert frozen.values == [2.0, 50.0]
    assert frozen.params == {"arena": "off"}
    assert set(frozen.constraints) == {"valid", "error", "memory", "latency"}
    assert [trial.candidate for trial in read_trials(study)] == [ARENA]


@pytest.mark.parametrize("claim", [{"driver": ["one"]}, {"driver": {}}, ["one"], 3, None])
def test_a_strangers_claim_is_not_ours(study: optuna.Study, claim: object) -> None:
    """Attributes of wrong types are those of another worker."""
    trial = study.ask()
    trial.set_user_attr("claim", claim)
    trial.set_user_attr("run_off", [claim])
    one, _ = _two(study)
    one.heal()
    assert [frozen.state.name for frozen in study.trials] == ["RUNNING"]


def test_a_worker_keeps_its_name(tmp_path: Path) -> None:
    """Also after an earlier one was killed before it wrote."""
    name = worker_of(tmp_path)
    assert worker_of(tmp_path) == name
    (tmp_path / ".driver").write_text("")
    again = worker_of(tmp_path)
    assert worker_of(tmp_path) == again != name


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b"\xff" * 16),
        lambda path: path.write_text("me"),
        lambda path: path.write_text("0" * 17),
        lambda path: path.write_text("\u0660" * 16, encoding="utf-8"),
        lambda path: path.write_bytes(bytes(1 << 20)),
        lambda path: path.mkdir(),
        lambda path: path.symlink_to(path.parent / "elsewhere"),
    ],
    ids=["bytes", "short", "long", "script", "large", "folder", "link"],
)
def test_a_wrong_name_of_a_worker_is_refused(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    """With what it must hold or be, and what to do."""
    make(tmp_path / ".driver")
    with pytest.raises(StudyError, match=r"\.driver is damaged: .*remove it and type"):
        worker_of(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"candidate": 3},
        {"candidate": {"arena": []}},
        {"candidate": None},
        {"measurement": []},
        {"measurement": {"latency_ms": 1}},
    ],
)
def test_a_wrong_line_of_the_spool_is_no_trial(change: dict[str, object]) -> None:
    """And the other attributes of a line are not taken over."""
    entry = describe(Trial(number=3, candidate=ARENA, outcome=measurement(2.0)))
    sound = trial_in({**entry, "claim": {"driver": "me"}, "late": True})
    assert sound is not None
    assert describe(sound) == entry
    assert trial_in({**entry, **change}) is None
    missing = {key: value for key, value in entry.items() if key not in change}
    assert trial_in(missing) is None
