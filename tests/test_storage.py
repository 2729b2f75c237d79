"""The record of a study on the disk, and what becomes of it when that gives out."""

import functools
import socket
import threading
from pathlib import Path

import optuna
import pytest
from fakes import FakeMeasurer, build_search, thread_cost
from sqlalchemy.exc import OperationalError

from autotune.errors import StorageError
from autotune.storage.database import Place, open_storage, quiet_optuna, storage_faults
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
