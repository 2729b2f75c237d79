"""The record of a study: what it keeps, and who measures what where several workers share it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pytest
from fakes import (
    FakeMeasurer,
    build_search,
    measurement,
    parameter,
    refusal,
    space,
    thread_cost,
    thread_space,
)
from optuna.trial import TrialState
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from autotune.deploy.records import to_plain
from autotune.search.objective import DEFAULT, find
from autotune.search.trial import Limits, Trial
from autotune.space.configuration import BASELINE, Configuration
from autotune.storage.claims import Claims
from autotune.storage.database import Place, open_storage, quiet_optuna
from autotune.storage.retry import Clock
from autotune.storage.spool import Spool
from autotune.storage.store import Store
from autotune.storage.trials import describe, parameters_of, read_trials
from autotune.study.progress import Progress

ARENA = Configuration.of({"arena": "off"})
_FAST = measurement(2.0, 50.0)

pytestmark = pytest.mark.usefixtures("quiet")


@dataclass(frozen=True)
class Shared:
    """A database that several workers of one study share."""

    database: optuna.storages.RDBStorage

    def study(self) -> optuna.Study:
        return optuna.load_study(study_name="shared", storage=self.database)

    def store(self, worker: str, **options: Any) -> Store:
        study = self.study()
        number = self.database.get_study_id_from_name("shared")
        given: dict[str, Any] = {"clock": Clock(sleep=lambda _: None), "worker": worker}
        given["claims"] = Claims(self.database.engine, number)
        return Store(study, thread_space(), find(DEFAULT), Limits(), **{**given, **options})

    def states(self) -> list[str]:
        return [frozen.state.name for frozen in self.study().trials]

    def fail(self, number: int) -> None:
        """Ends a trial, as Optuna does where its worker has died."""
        self.study().tell(number, state=TrialState.FAIL)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    """A study in a database that workers share."""
    with quiet_optuna(), open_storage(Place.of(None, tmp_path)) as database:
        optuna.create_study(
            study_name="shared", storage=database, directions=["minimize", "minimize"]
        )
        yield Shared(database)


def test_one_worker_has_a_configuration(shared: Shared) -> None:
    one, two = shared.store("one"), shared.store("two")
    assert one.begin(ARENA, 10)
    assert not two.begin(ARENA, 10)
    assert two.begin(BASELINE, 10)
    one.refresh()
    two.refresh()
    assert one.claimed == frozenset({BASELINE})
    assert two.claimed == frozenset({ARENA})
    assert shared.states() == ["RUNNING", "FAIL", "RUNNING"]


def test_a_measured_configuration_is_not_taken(shared: Shared) -> None:
    one, two = shared.store("one"), shared.store("two")
    assert one.begin(ARENA, 10)
    one.append(ARENA, _FAST)
    assert not two.begin(ARENA, 10)
    two.refresh()
    assert [trial.configuration for trial in two.trials] == [ARENA]
    assert two.trials[0].outcome == _FAST


def test_what_was_spooled_is_not_measured_again(shared: Shared, tmp_path: Path) -> None:
    """A worker was killed before it told the storage; the next one of its folder does."""
    spool = Spool(tmp_path, "shared")
    spool.keep(describe(Trial(number=7, configuration=ARENA, outcome=_FAST)))
    shared.store("one", spool=spool).recover()
    assert not shared.store("two").begin(ARENA, 10)
    frozen = shared.study().trials[0]
    assert frozen.values == [2.0, 50.0]
    assert set(frozen.constraints) == {"valid", "error", "memory", "latency"}


def test_the_budget_is_that_of_all_workers(shared: Shared) -> None:
    """Trials that run count as much as those that are measured."""
    assert shared.store("one").begin(BASELINE, 1)
    assert not shared.store("two").begin(ARENA, 1)


def test_what_does_not_count_is_measured_again(shared: Shared) -> None:
    """The default failed, which may have passed: it takes neither budget nor configuration."""
    one = shared.store("one")
    assert one.begin(BASELINE, 1)
    one.append(BASELINE, refusal())
    assert one.baseline is not None
    again = shared.store("one")
    again.recover()
    assert again.trials == []
    assert again.begin(BASELINE, 1)


def test_the_trial_of_a_dead_worker_is_released(shared: Shared) -> None:
    """Three times: a configuration that three workers died of is not measured again."""
    for death in range(1, 5):
        worker = shared.store(f"worker {death}")
        worker.refresh()
        assert worker.released == ((ARENA,) if 1 < death < 4 else ())
        assert worker.begin(ARENA, 10) == (death < 4)
        if death < 4:
            shared.fail(shared.states().index("RUNNING"))
    last = shared.store("last")
    measurer = FakeMeasurer(thread_cost)
    search = build_search(measurer, study=last.study, store=last)
    search.run(100, None)
    assert len(search.trials) == 29
    assert ARENA not in last.measured


def test_a_trial_is_abandoned_once_the_database_is_back(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection was lost while a trial was given up; the next attempt ends the same trial."""
    worker = shared.store("one")
    assert worker.begin(ARENA, 10)
    tell = worker.study.tell

    def lose_connection(*_: object, **__: object) -> None:
        raise OperationalError("", {}, Exception("connection lost"))

    monkeypatch.setattr(worker.study, "tell", lose_connection)
    with pytest.raises(OperationalError):
        worker.abandon()
    monkeypatch.setattr(worker.study, "tell", tell)
    worker.abandon()
    assert shared.states() == ["FAIL"]


def test_a_trial_ends_though_the_connection_is_lost_right_after(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcome is stored and the others' trials cannot be read: the next attempt ends it all."""
    worker = shared.store("one")
    assert worker.begin(ARENA, 10)
    read_trials = worker.study.get_trials
    lost = iter([False, True])

    def read_or_lose(**options: Any) -> list[optuna.trial.FrozenTrial]:
        if next(lost, False):
            raise OperationalError("", {}, Exception("connection lost"))
        return read_trials(**options)

    monkeypatch.setattr(worker.study, "get_trials", read_or_lose)
    worker.append(ARENA, _FAST)
    assert shared.states() == ["COMPLETE"]
    assert [trial.configuration for trial in worker.trials] == [ARENA]
    assert worker.begin(BASELINE, 10)


@pytest.mark.parametrize("aim", ["configuration", "final comparison"])
def test_a_claim_has_a_heartbeat(tmp_path: Path, aim: str) -> None:
    """A worker may die right after it; Optuna gives up the trials that had a heartbeat alone."""
    url = f"sqlite:///{tmp_path / 'study.db'}"
    storage = optuna.storages.RDBStorage(url, heartbeat_interval=60, grace_period=120)
    optuna.create_study(study_name="shared", storage=storage, directions=["minimize", "minimize"])
    workers = Shared(storage)
    one, two = workers.store("one"), workers.store("two")
    assert one.begin(ARENA, 10) if aim == "configuration" else one.begin_final_comparison()
    assert one._heartbeat is not None
    one._heartbeat.join()  # a dead worker's thread writes no further one
    with storage.engine.begin() as connection:
        connection.execute(text("UPDATE trial_heartbeats SET heartbeat = '2001-01-01 00:00:00'"))
    two.refresh()
    assert workers.states() == ["FAIL"]
    assert two.begin(ARENA, 10) if aim == "configuration" else two.begin_final_comparison()
    one.abandon()
    two.abandon()
    storage.engine.dispose()


def test_a_configuration_that_two_workers_measured_has_one_place(shared: Shared) -> None:
    """One was suspended and seemed dead, another took its configuration over; both end."""
    suspended, other = shared.store("one"), shared.store("two")
    assert suspended.begin(ARENA, 10)
    shared.fail(0)
    other.refresh()
    assert other.released == (ARENA,)
    assert other.begin(ARENA, 10)
    suspended.append(ARENA, measurement(3.0))
    other.append(ARENA, _FAST)
    for worker in (suspended, other, shared.store("three")):
        worker.refresh()
        assert [trial.configuration for trial in worker.trials] == [ARENA]


def test_a_worker_that_seemed_dead_keeps_its_measurement(shared: Shared) -> None:
    """Its machine was suspended, and nobody measured the configuration meanwhile."""
    suspended = shared.store("one")
    assert suspended.begin(ARENA, 10)
    shared.fail(0)
    suspended.append(ARENA, _FAST)
    assert [trial.outcome for trial in suspended.trials] == [_FAST]
    assert not shared.store("two").begin(ARENA, 10)


def test_trials_that_were_left_open_are_ended(shared: Shared, study: optuna.Study) -> None:
    """After a kill, where no other worker takes part; else the missing heartbeat ends them."""
    assert shared.store("one").begin(ARENA, 10)
    shared.store("two").recover()
    assert shared.states() == ["RUNNING"]
    study.ask()
    Store(study, thread_space(), find(DEFAULT), Limits()).recover()
    assert [frozen.state.name for frozen in study.trials] == ["FAIL"]


def test_one_worker_makes_the_final_comparison(shared: Shared) -> None:
    one, two = shared.store("one"), shared.store("two")
    assert one.begin_final_comparison()
    assert not two.begin_final_comparison()
    one.abandon()
    assert two.begin_final_comparison()
    assert one.begin(ARENA, 1)


def test_a_search_whose_time_is_up_waits_for_the_trials_of_others(shared: Shared) -> None:
    """Otherwise each worker would compare finalists of its own."""
    other = shared.store("other")

    def end_the_others(_: float) -> None:
        other.append(ARENA, _FAST)

    own = shared.store("own", clock=Clock(sleep=end_the_others))

    def begin_other(progress: Progress) -> None:
        if progress.done == 1 and not other.trials and not own.claimed:
            assert other.begin(ARENA, 10)

    search = build_search(
        FakeMeasurer(thread_cost),
        study=own.study,
        store=own,
        clock=Clock(sleep=end_the_others),
        report=begin_other,
    )
    search.run(10, 1e-9)
    assert [trial.configuration for trial in search.trials] == [BASELINE, ARENA]


def test_the_time_of_a_search_is_that_of_its_busiest_worker(shared: Shared) -> None:
    """Workers measure at the same time: who joins late does not add their times up."""
    one, two = shared.store("one"), shared.store("two")
    for worker, configuration in ((one, BASELINE), (two, ARENA)):
        assert worker.begin(configuration, 10)
        worker.append(configuration, _FAST)
    late = shared.store("three")
    late.refresh()
    assert late.spent_s == sum(_FAST.spent_s.values())


def test_a_configuration_is_the_parameters_of_its_trial(study: optuna.Study) -> None:
    within = space(parameter("arena", "on", "off"), parameter("intra_op_num_threads", 0, 1))
    outside = Configuration.of(
        {"intra_op_num_threads": 3, "session.dynamic_block_base": "4", "precision": "int8_static"}
    )
    store = Store(study, within, find(DEFAULT), Limits())
    for configuration in (BASELINE, ARENA, outside):
        assert store.begin(configuration, 10)
        store.append(configuration, _FAST)
    assert [trial.configuration for trial in read_trials(study)] == [BASELINE, ARENA, outside]
    assert study.trials[0].params == {"arena": "on", "intra_op_num_threads": 0}
    assert study.trials[2].params == parameters_of(outside, within)
    assert study.trials[2].params["session.dynamic_block_base"] == 4


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ({"arena": 3.5}, to_plain(_FAST)),
        ({"library": 1.0}, to_plain(_FAST)),
        ({}, "fast"),
        ({}, {**to_plain(_FAST), "latency_ms": -1.0}),
        ({}, {**to_plain(_FAST), "memory": None}),
        ({}, {**to_plain(_FAST), "cpu_s": float("nan")}),
    ],
)
def test_what_a_stranger_stored_is_not_believed(
    study: optuna.Study, values: dict[str, float], outcome: object
) -> None:
    """What no parameter takes, and what no measurement gives, is measured again."""
    study.add_trial(
        optuna.trial.create_trial(
            params=values,
            distributions={n: optuna.distributions.FloatDistribution(0, 9) for n in values},
            values=[1.0, 1.0],
            user_attrs={"measurement": outcome},
        )
    )
    assert read_trials(study) == []
