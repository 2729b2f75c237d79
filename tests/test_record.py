"""A study that several workers share: who measures what, also where one of them dies."""

from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from fakes import (
    FakeMeasurer,
    build_search,
    measurement,
    parameter,
    space,
    thread_cost,
    thread_space,
)
from optuna.trial import TrialState
from sqlalchemy import text

from autotune.deploy.records import to_plain
from autotune.measure.outcome import Failure, Measurement, Outcome
from autotune.search.objective import DEFAULT, find
from autotune.search.optuna_trials import (
    attributes_of,
    enqueue,
    parameter_names,
    read_trials,
    suggest,
)
from autotune.search.record import Record, retry
from autotune.search.trial import Limits
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.parameters import PARAMETERS
from autotune.storage.database import Clock, Place, open_storage
from autotune.storage.final_comparison import SharedComparison
from autotune.study.progress import Progress

ARENA = Configuration.of({"arena": "off"})
_FAST = measurement(2.0, 50.0)
_SPACE = thread_space()
_NAMES = {name: name for name in PARAMETERS}

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[optuna.storages.BaseStorage]:
    with open_storage(Place.of(None, tmp_path)) as database:
        optuna.create_study(study_name="s", storage=database, directions=["minimize"] * 2)
        yield database


def _study(storage: optuna.storages.BaseStorage) -> optuna.Study:
    """Returns the study as another worker opens it."""
    return optuna.load_study(study_name="s", storage=storage)


def _begin(study: optuna.Study, configuration: Configuration) -> optuna.Trial:
    """Begins a trial, as another worker does."""
    enqueue(study, configuration, _SPACE, _NAMES)
    trial = study.ask()
    suggest(trial, _SPACE, _NAMES)
    return trial


def _end(study: optuna.Study, trial: optuna.Trial, outcome: Measurement = _FAST) -> None:
    for name, attribute in attributes_of(outcome).items():
        trial.set_user_attr(name, attribute)
    study.tell(trial, [outcome.latency_ms, outcome.peak_memory_mib])


def _record(study: optuna.Study) -> Record:
    record = Record(find(DEFAULT), Limits())
    record.read(study)
    return record


def test_what_others_measure_is_not_measured(storage: optuna.storages.BaseStorage) -> None:
    """The worker waits for their last trials, because they may be released yet."""
    study = _study(storage)
    other = _begin(study, ARENA)
    measurer = FakeMeasurer(thread_cost)

    def end_the_other(_: float) -> None:
        assert len(measurer.searched) == 5
        _end(_study(storage), other)

    search = build_search(measurer, study=study, worker="one", clock=Clock(sleep=end_the_other))
    search.run(6, None)
    assert ARENA not in measurer.searched
    assert len(search.trials) == 6
    assert search.record.measured[ARENA].outcome == _FAST


def test_a_configuration_that_another_worker_began_earlier_is_pruned(
    storage: optuna.storages.BaseStorage,
) -> None:
    study = _study(storage)
    enqueue(study, ARENA, _SPACE, _NAMES)
    enqueue(study, ARENA, _SPACE, _NAMES)
    first = study.ask()
    measurer = FakeMeasurer(thread_cost)
    clock = Clock(sleep=lambda _: None if first.number in ended else _finish())
    ended: set[int] = set()

    def _finish() -> None:
        ended.add(first.number)
        _end(_study(storage), first)

    build_search(measurer, study=study, worker="one", clock=clock).run(3, None)
    assert ARENA not in measurer.searched
    (pruned,) = [t for t in study.trials if t.number == 1]
    assert pruned.state == TrialState.PRUNED
    assert pruned.user_attrs["duplicate_of"] == {"arena": "off"}


def test_of_two_measurements_of_one_configuration_the_first_counts(
    storage: optuna.storages.BaseStorage,
) -> None:
    study = _study(storage)
    trials = [_begin(study, ARENA), _begin(study, ARENA)]
    _end(study, trials[0])
    _end(study, trials[1], measurement(3.0))
    record = _record(study)
    assert [trial.outcome for trial in record.trials] == [_FAST]


def test_the_trial_of_a_dead_worker_is_measured_by_another(tmp_path: Path) -> None:
    """Three times: a configuration that three workers died of is not measured again."""
    url = f"sqlite:///{tmp_path / 'study.db'}"
    storage = optuna.storages.RDBStorage(
        url, heartbeat_interval=60, grace_period=120, heartbeat_stale_trial_callback=retry()
    )
    optuna.create_study(study_name="s", storage=storage, directions=["minimize"] * 2)
    within = space(parameter("arena", "on", "off"), parameter("enable_mem_pattern", True, False))
    dying = _study(storage)
    enqueue(dying, ARENA, within, _NAMES)
    for death in range(1, 4):
        trial = dying.ask()
        suggest(trial, within, _NAMES)
        # what the thread of a living worker writes
        (running,) = dying.get_trials(states=(TrialState.RUNNING,))
        storage.record_heartbeat(running._trial_id)
        with storage.engine.begin() as connection:
            connection.execute(
                text("UPDATE trial_heartbeats SET heartbeat = '2001-01-01 00:00:00'")
            )
        optuna.storages.fail_stale_trials(_study(storage))
        record = _record(_study(storage))
        assert (ARENA in record.waiting) == (death < 3)
        assert (ARENA in record.exhausted) == (death == 3)
    measurer = FakeMeasurer(thread_cost)
    build_search(measurer, within, study=_study(storage), worker="last").run(100, None)
    assert len(measurer.searched) == 3
    assert ARENA not in measurer.searched
    storage.engine.dispose()


def test_a_worker_that_seemed_dead_keeps_its_measurement(
    storage: optuna.storages.BaseStorage,
) -> None:
    """Its machine was suspended; another worker ended its trial, and then it goes on."""
    study = _study(storage)

    def cost(configuration: Configuration) -> Outcome:
        if configuration == ARENA:
            (running,) = _study(storage).get_trials(states=(TrialState.RUNNING,))
            _study(storage).tell(running.number, state=TrialState.FAIL)
        return measurement(*thread_cost(configuration))  # type: ignore[misc]

    measurer = FakeMeasurer(cost)
    search = build_search(measurer, study=study, first=[ARENA], worker="one")
    search.run(5, None)
    assert measurer.searched.count(ARENA) == 1
    assert ARENA in search.record.measured
    assert len(search.trials) == len(measurer.searched) == 5


@pytest.mark.parametrize("is_measured", [True, False])
def test_a_trial_that_was_cut_off_goes_on(
    storage: optuna.storages.BaseStorage, is_measured: bool
) -> None:
    """What was measured before a kill is kept, though its trial did not end."""
    study = _study(storage)
    trial = _begin(study, ARENA)
    if is_measured:
        trial.set_user_attr("measurement", to_plain(_FAST))
    measurer = FakeMeasurer(thread_cost)
    search = build_search(measurer, study=_study(storage))
    search.run(5, None)
    assert measurer.searched.count(ARENA) == (0 if is_measured else 1)
    assert (search.record.measured[ARENA].outcome == _FAST) == is_measured
    states = {frozen.state for frozen in study.trials}
    assert states == {TrialState.COMPLETE, TrialState.FAIL}


def test_a_trial_without_a_sign_of_life_is_released(storage: optuna.storages.BaseStorage) -> None:
    """A worker may die before its first heartbeat, or behind a proxy that passes none on."""
    study = _study(storage)
    enqueue(study, ARENA, _SPACE, _NAMES)
    study.ask()
    _begin(study, BASELINE)
    seconds = sorted([0.0, 50.0, 70.0, 4000.0] * 2)  # each reading looks at two trials
    record = Record(find(DEFAULT), Limits(), clock_s=lambda: seconds.pop(0))
    lost = []
    for _ in range(4):
        record.read(study)
        lost.append([frozen.number for frozen in record.lost])
    assert lost == [[], [], [0], [0, 1]]


def test_a_search_whose_time_is_up_waits_for_the_trials_of_others(
    storage: optuna.storages.BaseStorage,
) -> None:
    """Otherwise each worker would compare finalists of its own."""
    study = _study(storage)
    others: list[optuna.Trial] = []

    def begin_other(progress: Progress) -> None:
        if progress.done == 1 and not others:
            others.append(_begin(_study(storage), ARENA))

    measurer = FakeMeasurer(thread_cost)
    search = build_search(
        measurer,
        study=study,
        worker="one",
        clock=Clock(sleep=lambda _: _end(_study(storage), others[0])),
        report=begin_other,
    )
    search.run(10, 1e-9)
    assert measurer.searched == [BASELINE]
    assert len(search.trials) == 2


def test_the_time_of_a_search_is_that_of_its_busiest_worker(
    storage: optuna.storages.BaseStorage,
) -> None:
    """Workers measure at the same time: who joins late does not add their times up."""
    study = _study(storage)
    for worker, configuration in (("one", BASELINE), ("two", ARENA)):
        trial = _begin(study, configuration)
        trial.set_user_attr("worker", worker)
        _end(study, trial)
    assert _record(study).spent_s == sum(_FAST.spent_s.values())


def test_one_worker_makes_the_final_comparison(storage: optuna.storages.BaseStorage) -> None:
    """Another one makes it where that one has died."""
    now_s = [0.0]
    clock = Clock(monotonic=lambda: now_s[0], sleep=lambda _: None)
    one, two = (SharedComparison(_study(storage), name, clock) for name in ("one", "two"))
    assert one.begin()
    beat = one.beating(lambda _: None)
    for now_s[0] in (0.0, 100.0, 200.0, 300.0):
        beat(None)
        assert not two.begin()
    now_s[0] = 500.0
    assert two.begin()
    two.end({"trials": 3})
    assert one.result == {"trials": 3}


def test_a_configuration_is_the_parameters_of_its_trial(study: optuna.Study) -> None:
    within = space(parameter("arena", "on", "off"), parameter("intra_op_num_threads", 0, 1))
    outside = Configuration.of({"intra_op_num_threads": 3, "precision": "int8_static"})
    measurer = FakeMeasurer(thread_cost)
    build_search(measurer, within, study=study, first=[ARENA, outside]).run(3, None)
    assert [t.configuration for t in read_trials(study)] == [BASELINE, ARENA, outside]
    assert study.trials[0].params == {"arena": "on", "intra_op_num_threads": 0}
    # values that the space does not offer are in the attribute alone
    assert study.trials[2].params == {"arena": "on"}
    assert study.trials[2].user_attrs["configuration"] == outside.to_json()


def test_other_choices_have_another_name(study: optuna.Study) -> None:
    """Optuna allows one set of choices for a parameter; a runtime that was added brings more."""
    within = space(parameter("arena", "on", "off"))
    wider = space(parameter("arena", "on", "off", "same_as_requested"))
    assert parameter_names(study, within) == {"arena": "arena"}
    named = {"arena": "arena: on, off, same_as_requested"}
    assert parameter_names(study, wider) == named
    assert parameter_names(study, within) == {"arena": "arena"}
    build_search(FakeMeasurer(thread_cost), within, study=study).run(2, None)
    search = build_search(FakeMeasurer(thread_cost), wider, study=study)
    search.run(3, None)
    assert len(search.trials) == 3


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ({"arena": 3.5}, to_plain(_FAST)),
        ({"library": 1.0}, to_plain(_FAST)),
        (None, to_plain(_FAST)),
        ({}, "fast"),
        ({}, {**to_plain(_FAST), "latency_ms": -1.0}),
        ({}, {**to_plain(_FAST), "memory": None}),
        ({}, {**to_plain(_FAST), "cpu_s": float("nan")}),
    ],
)
def test_what_a_stranger_stored_is_not_believed(
    study: optuna.Study, values: dict[str, float] | None, outcome: object
) -> None:
    """What no parameter takes, and what no measurement gives, is measured again."""
    attributes = {"measurement": outcome, "configuration": values}
    study.add_trial(optuna.trial.create_trial(values=[1.0, 1.0], user_attrs=attributes))
    assert read_trials(study) == []


def _after_refusal(study: optuna.Study, failure: Failure) -> Record:
    """Returns what a study holds after one more trial that was refused."""
    trial = _begin(study, ARENA)
    for name, attribute in attributes_of(failure).items():
        trial.set_user_attr(name, attribute)
    study.tell(trial, state=TrialState.PRUNED)
    return _record(study)


def test_values_that_no_file_can_be_made_with_are_not_tried_again(
    storage: optuna.storages.BaseStorage,
) -> None:
    """Where a refusal is a property of the model, it holds beside all other values too."""
    study = _study(storage)
    failure = Failure(
        kind="refused", phase="prepare", message="no pattern", unfit={"arena": ("off",)}
    )
    record = _after_refusal(study, failure)
    beside = Configuration.of({"arena": "off", "intra_op_num_threads": 1})
    assert beside in record
    assert record.refusal(beside) == failure
    assert Configuration.of({"intra_op_num_threads": 1}) not in record
    search = build_search(FakeMeasurer(thread_cost), study=study)
    enqueue(study, beside, _SPACE, _NAMES)
    with pytest.raises(optuna.TrialPruned, match="no pattern"):
        search.objective(study.ask())


def test_what_is_refused_twice_in_the_same_words_is_refused_after_other_passes_too(
    storage: optuna.storages.BaseStorage,
) -> None:
    """One refusal holds after the same earlier steps alone; a second one says that all do."""
    study = _study(storage)
    for threads, is_known in ((1, False), (2, True)):
        failure = Failure(
            kind="refused",
            phase="prepare",
            message="no weight is large enough",
            unfit={"arena": ("off",), "intra_op_num_threads": (threads,)},
        )
        record = _after_refusal(study, failure)
        after_another = Configuration.of({"arena": "off", "intra_op_num_threads": 4})
        assert (after_another in record) is is_known
        assert Configuration.of({"intra_op_num_threads": threads}) not in record
