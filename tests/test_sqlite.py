"""Storages of strangers: refused before their schema can do anything, and stopped where it does."""

import os
import signal
import sqlite3
from pathlib import Path

import optuna
import pytest

from autotune.errors import StudyError
from autotune.storage import sqlite
from autotune.storage.database import Place, open_storage, quiet_optuna, storage_faults
from autotune.storage.locks import DATABASE
from autotune.storage.sqlite import Watch

# Selecting from it never ends.
_ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    with quiet_optuna(), open_storage(Place.of(None, tmp_path)) as database:
        study = optuna.create_study(storage=database, study_name="s")
        study.set_user_attr("note", "sound")
        study.optimize(lambda trial: float(trial.suggest_categorical("x", [1, 2])), n_trials=1)
    return tmp_path / DATABASE


def _run(storage: Path, statements: str) -> None:
    connection = sqlite3.connect(storage)
    connection.executescript(statements)
    connection.commit()
    connection.close()


def _open(storage: Path) -> int:
    """Opens the storage and returns how many trials it has."""
    with quiet_optuna(), open_storage(Place.of(None, storage.parent)) as database:
        return sum(len(database.get_all_trials(s._study_id)) for s in database.get_all_studies())


def test_a_sound_storage_is_opened(storage: Path) -> None:
    assert _open(storage) == 1
    storage.unlink()
    assert _open(storage) == 0


@pytest.mark.parametrize(
    ("statements", "kind"),
    [
        (f"DROP TABLE trial_values; CREATE VIEW trial_values AS {_ENDLESS}", "view"),
        ("CREATE TRIGGER more AFTER INSERT ON trials BEGIN DELETE FROM trials; END", "trigger"),
        ("CREATE VIRTUAL TABLE more USING fts5(x)", "table"),
    ],
    ids=["view", "trigger", "virtual table"],
)
def test_a_schema_with_more_than_tables_is_refused(
    storage: Path, statements: str, kind: str
) -> None:
    _run(storage, statements)
    with pytest.raises(StudyError, match=rf"holds the {kind} .*plain tables alone; move it away"):
        _open(storage)


def test_a_statement_without_end_is_stopped(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_STEPS", 1000)
    monkeypatch.setattr(sqlite, "_MOST_CALLS", 100)
    watch = Watch()
    connection = watch.connect(storage)
    with (
        pytest.raises(StudyError, match="does not come to an end"),
        storage_faults(Place.of(None, storage.parent), watch),
    ):
        connection.execute(_ENDLESS)
    watch.begin()
    assert connection.execute("SELECT count(*) FROM trials").fetchone() == (1,)
    connection.close()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="signals are POSIX")
def test_an_interrupt_ends_a_statement(storage: Path) -> None:
    """SQLite drops the exception of the signal's handler; it is raised again."""
    watch = Watch()
    connection = watch.connect(storage)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    earlier = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with (
            pytest.raises(KeyboardInterrupt),
            storage_faults(Place.of(None, storage.parent), watch),
        ):
            connection.execute(_ENDLESS)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
        connection.close()


def test_a_link_to_another_database_is_refused(storage: Path, tmp_path: Path) -> None:
    """A folder of a stranger must not lead to a database of the user's."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / DATABASE).symlink_to(storage)
    with pytest.raises(StudyError, match=r"is a link.*--storage"):
        _open(folder / DATABASE)


@pytest.mark.skipif(os.name != "posix", reason="pipes are POSIX")
def test_what_is_no_file_is_no_storage(tmp_path: Path) -> None:
    """A pipe would wait for ever."""
    os.mkfifo(tmp_path / DATABASE)
    with pytest.raises(StudyError, match="is no file"):
        _open(tmp_path / DATABASE)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE study_user_attributes SET value_json = '{'",
        "UPDATE study_user_attributes SET value_json = NULL",
        "UPDATE trial_params SET distribution_json = '[]'",
        "UPDATE trial_params SET param_value = 7",
        "UPDATE trial_values SET value = 'fast'",
        "DELETE FROM trial_values",
        "UPDATE trials SET number = -1",
        "UPDATE trials SET state = 'DONE'",
        "UPDATE trials SET datetime_start = 'soon'",
        "UPDATE studies SET study_name = '../s'",
        "UPDATE study_directions SET direction = 'UP'",
    ],
)
def test_contents_that_optuna_cannot_work_with_are_refused(storage: Path, statement: str) -> None:
    _run(storage, statement)
    with pytest.raises(StudyError, match=r"is damaged: .*move it away"):
        _open(storage)
