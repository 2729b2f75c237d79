"""Fixtures that tests of several modules share."""

import json
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import fakes
import onnx
import optuna
import pytest
import sqlalchemy
from children_inside import children_inside
from export_cases import copy_config
from hypothesis import settings

from autotune.facts import sample_models
from autotune.storage.database import quiet_optuna
from autotune.storage.locks import LOCKS_VARIABLE

_MAY_START_PROCESSES = {"process", "slow", "stress", "environment", "gpu"}
"""The markers of tests that may start processes. Tests without one are fast, and start none."""
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
"""The audit events of Python's ways to start a process."""
_ASKED_BY_LIBRARIES = {"lscpu", "ldconfig"}
"""Programs that NumPy and threadpoolctl start in some versions, to learn about the machine."""


class _Guard:
    """Lets a test fail that starts a process without a marker that says so.

    An audit hook sees every way of starting one. It cannot be removed, so it is installed once and
    looks at the test that runs.
    """

    def __init__(self) -> None:
        self.test: str | None = None  # the unmarked test that runs
        self.message = ""  # what it did wrong
        sys.addaudithook(self._look)

    def _look(self, event: str, arguments: tuple[object, ...]) -> None:
        program = Path(str(arguments[0])).name if arguments else ""
        if event in _STARTS and program not in _ASKED_BY_LIBRARIES and self.test is not None:
            self.message = (
                f"{self.test} has no marker and started a process ({event} {arguments[:2]}): "
                "use a fake, or mark the test with @pytest.mark.process"
            )
            pytest.fail(self.message)


_guard = _Guard()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Lets no unmarked test start a process, nor a fixture that it is the first to use.

    The children that parse models answer inside an unmarked test.
    """
    if _MAY_START_PROCESSES & {marker.name for marker in item.iter_markers()}:
        return (yield)
    with pytest.MonkeyPatch.context() as patched:
        children_inside(patched.setattr)
        _guard.test, _guard.message = item.nodeid, ""
        try:
            return (yield)
        finally:
            _guard.test = None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Fails an unmarked test also where the code under test hides that it failed."""
    if _guard.test and _guard.message:
        pytest.fail(_guard.message)


# a busy machine makes no test fail
settings.register_profile("tests", deadline=None, max_examples=50)
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
        patched.setenv(LOCKS_VARIABLE, str(Path(folder) / "autotune-cores"))
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


@pytest.fixture(autouse=True)
def no_earlier_studies(request: pytest.FixtureRequest) -> None:
    """Forgets studies in memory of this test's folder: an earlier test may have had its name."""
    if "tmp_path" in request.fixturenames:
        folder = str(request.getfixturevalue("tmp_path"))
        for place in [place for place in fakes.STORAGES if folder in place]:
            del fakes.STORAGES[place]


@pytest.fixture
def quiet() -> Iterator[None]:
    """Keeps Optuna's notes on what is experimental out of the tests."""
    with quiet_optuna():
        yield


@pytest.fixture
def study() -> optuna.Study:
    return optuna.create_study(directions=["minimize", "minimize"])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small network beside which a test may write a config."""
    path = tmp_path / "best.onnx"
    onnx.save(sample_models.separable_cnn(), path)
    return path


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small classifier of images, which tests do not change."""
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    onnx.save(sample_models.cnn(channels=4, size=16, blocks=1), path)
    return path


@pytest.fixture
def frozen_config(tmp_path: Path) -> Path:
    """A config in the folder of a study, as if this machine had tuned it."""
    return copy_config(tmp_path)


@pytest.fixture
def frozen_study(tmp_path: Path) -> Path:
    """A copy of a study that an earlier version wrote, with its model beside it."""
    folder = Path(shutil.copytree(Path(__file__).parent / "data" / "study", tmp_path / "study"))
    model = shutil.copy(folder / "best.onnx", tmp_path / "lstm.onnx")
    front = json.loads((folder / "front.json").read_text(encoding="utf-8"))
    front["model"] = str(model)
    (folder / "front.json").write_text(json.dumps(front), encoding="utf-8")
    return folder
