"""Fixtures that tests of several modules share."""

import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
import sqlalchemy
from hypothesis import settings

from autotune.storage import core_locks
from autotune.storage.database import quiet_optuna

# a busy machine makes no test fail
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")


@pytest.fixture(scope="session", autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gives the tests, and the processes that they start, a temporary folder of their own.

    Locks of cores, scratch folders and caches of other studies on the machine do not lie there.
    """
    # pytest's own folders stay where pytest puts them: it keeps those of the last runs
    tmp_path_factory.getbasetemp()
    with (
        tempfile.TemporaryDirectory(prefix="autotune-tests-") as folder,
        pytest.MonkeyPatch.context() as patched,
    ):
        Path(folder).chmod(0o755)  # PostgreSQL's server runs as a user of its own
        patched.setenv("TMPDIR", folder)
        patched.setattr(tempfile, "tempdir", folder)
        patched.setenv(core_locks.VARIABLE, str(Path(folder) / "autotune-cores"))
        yield


@pytest.fixture(scope="session", autouse=True)
def unsynchronised_databases() -> Iterator[None]:
    """SQLite does not wait for the disk in the process of the tests; no test cuts its power."""

    def relax(connection: object, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA synchronous = OFF")

    sqlalchemy.event.listen(sqlalchemy.Engine, "connect", relax)
    yield
    sqlalchemy.event.remove(sqlalchemy.Engine, "connect", relax)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Keeps Optuna's notes on what is experimental out of the tests."""
    with quiet_optuna():
        yield


@pytest.fixture
def study() -> optuna.Study:
    """A new study in memory."""
    return optuna.create_study(directions=["minimize", "minimize"])
