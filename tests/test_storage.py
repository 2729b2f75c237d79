"""The record of a study on the disk, and what becomes of it when that gives out."""

import contextlib
import functools
import shutil
import socket
import sqlite3
import threading
from pathlib import Path

import optuna
import pytest
from fakes import FakeMeasurer, build_search, thread_cost
from sqlalchemy.exc import OperationalError

from autotune.errors import StorageError
from autotune.storage.database import (
    Place,
    open_storage,
    quick_commits,
    quiet_optuna,
    storage_faults,
)
from autotune.storage.locks import DATABASE


@pytest.mark.parametrize(
    "fault",
    [
        OperationalError("INSERT", {}, Exception("database or disk is full")),
        optuna.exceptions.StorageInternalError("gone"),
    ],
)
def test_storage_faults_keep_what_was_measured(tmp_path: Path, fault: Exception) -> None:
    with (
        pytest.raises(StorageError, match="What was measured is kept") as caught,
        storage_faults(Place.of(None, tmp_path)),
    ):
        raise fault
    assert caught.value.exit_code == 75


def test_a_corrupt_database_is_told(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_bytes(b"this is no database " * 500)
    place = Place.of(None, tmp_path)
    with pytest.raises(StorageError, match=r"study\.db"), open_storage(place):
        pass


def test_quiet_optuna_is_quiet_for_a_while() -> None:
    before = optuna.logging.get_verbosity()
    inside = 0

    def fail() -> None:
        nonlocal inside
        inside = optuna.logging.get_verbosity()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), quiet_optuna():
        fail()
    assert inside == optuna.logging.CRITICAL
    assert optuna.logging.get_verbosity() == before


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_study_behind_optunas_proxy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = functools.partial(
        optuna.storages.run_grpc_proxy_server,
        optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'study.db'}"),
        host="127.0.0.1",
        port=port,
    )
    threading.Thread(target=server, daemon=True).start()
    measurer = FakeMeasurer(thread_cost)
    with quiet_optuna(), open_storage(Place.of(f"grpc://127.0.0.1:{port}", tmp_path)) as proxy:
        study = optuna.create_study(storage=proxy, directions=["minimize"] * 2)
        build_search(measurer, study=study, worker="one").run(8, None)
        assert len(study.best_trials) > 0
    assert len(set(measurer.searched)) == len(measurer.searched) == 8


def test_a_study_writes_to_a_log_and_leaves_one_file(tmp_path: Path) -> None:
    """A killed study keeps what it told; one that ends leaves nothing beside its database."""
    folder, killed = tmp_path / "study", tmp_path / "killed"
    folder.mkdir()
    with quiet_optuna(), open_storage(Place.of(None, folder)) as storage:
        study = optuna.create_study(storage=storage, study_name="s")
        with quick_commits(storage, Place.of(None, folder)):
            study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
            shutil.copytree(folder, killed)
    assert (killed / f"{DATABASE}-wal").stat().st_size
    with quiet_optuna(), open_storage(Place.of(None, killed)) as storage:
        assert len(optuna.load_study(study_name="s", storage=storage).trials) == 1
    assert [file.name for file in folder.iterdir()] == [DATABASE]
    with contextlib.closing(sqlite3.connect(folder / DATABASE)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
