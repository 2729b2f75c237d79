"""A study that many drivers share, on a real PostgreSQL."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import postgresql
import pytest
import sqlalchemy
from fakes import FakeWorld, thread_cost

from autotune.facts import sample_models
from autotune.search.optuna_trials import read_trials
from autotune.storage.database import Place, open_storage, quiet_optuna

_WORKER = Path(__file__).parent / "shared_worker.py"
_TRIALS = 30

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module")
def server() -> Iterator[postgresql.Server]:
    pytest.importorskip("psycopg", reason="the driver for PostgreSQL is not installed")
    with postgresql.server() as started:
        yield started


@pytest.fixture
def model(tmp_path: Path) -> Path:
    sample_models.write("lstm", tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def _driver(model: Path, name: str, url: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(_WORKER), str(model), name, str(_TRIALS), "0.1"]
    return subprocess.Popen(
        command,
        cwd=model.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            "SHARED_STORAGE": url,
            "PATH": "",
            "PYTHONPATH": ":".join(sys.path),
            "TMPDIR": tempfile.gettempdir(),
        },
    )


def _measured(model: Path, name: str) -> list[str]:
    path = model.parent / name / "measured"
    return path.read_text().split() if path.exists() else []


def _wait_for(count: int, model: Path, name: str) -> None:
    deadline = time.monotonic() + 60
    while len(_measured(model, name)) < count and time.monotonic() < deadline:
        time.sleep(0.05)


class Wire:
    """A way to the server that can be cut: a proxy on a port of its own."""

    def __init__(self, to: int) -> None:
        self.cut_connections = self.refused = self.restored = 0
        self._to = to
        self._cut = threading.Event()
        self._open: list[tuple[socket.socket, socket.socket]] = []
        self._forgotten: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            if self._cut.is_set():
                self.refused += 1
                here.close()
                continue
            self.restored += self.cut_connections > 0
            there = socket.create_connection(("127.0.0.1", self._to))
            self._open.append((here, there))
            for one, other in ((here, there), (there, here)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
            if not self._cut.is_set():
                other.shutdown(socket.SHUT_RDWR)

    def cut(self, seconds: float) -> None:
        """Cuts all connections, and lets none through for so long.

        As with a cable that is pulled out, the server is not told: its side stays open.
        """
        self._cut.set()
        self.cut_connections += len(self._open)
        for here, _ in self._open:
            with contextlib.suppress(OSError):
                here.shutdown(socket.SHUT_RDWR)
        self._forgotten += self._open
        self._open.clear()
        time.sleep(seconds)
        self._cut.clear()

    def close(self) -> None:
        self._listener.close()
        for pair in (*self._open, *self._forgotten):
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


@pytest.mark.stress
def test_four_drivers_measure_every_configuration_once(
    server: postgresql.Server, model: Path
) -> None:
    url = server.url("four")
    wire = Wire(server.port)
    cut_off = url.replace(f":{server.port}/", f":{wire.port}/")
    drivers = {}
    try:
        # on a busy machine the others might have measured everything before these two begin
        for name in ("cut", "killed"):
            drivers[name] = _driver(model, name, cut_off if name == "cut" else url)
        for name in ("cut", "killed"):
            _wait_for(1, model, name)
        for name in ("one", "two"):
            drivers[name] = _driver(model, name, url)
        _wait_for(4, model, "killed")
        drivers["killed"].kill()
        _wait_for(4, model, "cut")
        wire.cut(3)
        deadline = time.monotonic() + 150
        for driver in drivers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for driver in drivers.values():
            driver.kill()
        outputs = {name: driver.communicate() for name, driver in drivers.items()}
        wire.close()
    for name in ("one", "two", "cut"):
        assert drivers[name].returncode == 0, f"{outputs}\n{server.log()}"
    # it lost its connections, looked for the storage in vain, and found it again
    assert wire.cut_connections > 0
    assert wire.refused > 0
    assert wire.restored > 0
    assert all(postgresql.PASSWORD not in text for texts in outputs.values() for text in texts)

    with quiet_optuna(), open_storage(Place.of(url, model.parent)) as database:
        (only,) = database.get_all_studies()
        study = optuna.load_study(study_name=only.study_name, storage=database)
        trials = read_trials(study)
        states = Counter(frozen.state.name for frozen in study.get_trials(deepcopy=False))
    stored = Counter(trial.configuration.key for trial in trials)
    assert len(trials) == len(stored) == _TRIALS
    assert states["RUNNING"] == states["WAITING"] == 0
    everywhere = Counter(key for name in drivers for key in _measured(model, name))
    # who is killed may have measured one that nobody was told of
    assert set(stored) <= set(everywhere)
    assert sum(count - 1 for count in everywhere.values()) <= 1
    assert set(everywhere) == set(stored)
    # one held the final comparison, and all wrote down the same
    assert len({outputs[name][0].split()[-1] for name in ("one", "two", "cut")}) == 1
    assert only.user_attrs["result"]["trials"] == _TRIALS


def _engine(database: optuna.storages.BaseStorage) -> sqlalchemy.Engine:
    assert isinstance(database, optuna.storages.RDBStorage)
    return database.engine


def test_a_server_that_is_gone_without_a_word_is_noticed(server: postgresql.Server) -> None:
    """The system of the worker asks for signs of life; by itself it would do so after two hours."""
    place = Place.of(server.url("gone"), Path())
    with (
        quiet_optuna(),
        open_storage(place) as database,
        _engine(database).connect() as connection,
        socket.socket(fileno=os.dup(connection.connection.cursor().connection.fileno())) as wire,
    ):
        assert wire.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        silent_s = wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        silent_s += 3 * wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL)
        assert silent_s <= 30
        assert wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 30_000


def test_a_transaction_of_a_worker_that_is_gone_is_ended(
    server: postgresql.Server, tmp_path: Path
) -> None:
    url = server.url("forgotten")
    wire = Wire(server.port)
    place = Place.of(url, tmp_path)
    place_cut_off = Place.of(url.replace(f":{server.port}/", f":{wire.port}/"), tmp_path)
    with (
        quiet_optuna(),
        open_storage(place, grace_s=1) as database,
        open_storage(place_cut_off, grace_s=1) as database_cut_off,
    ):
        optuna.create_study(study_name="s", storage=database)
        connection = _engine(database_cut_off).connect()
        connection.execute(sqlalchemy.text("SELECT * FROM studies FOR UPDATE"))
        wire.cut(0)
        statement = sqlalchemy.text("UPDATE studies SET study_name = 'other'")

        def change() -> None:
            with _engine(database).begin() as other:
                other.execute(statement)

        with ThreadPoolExecutor(1) as thread, contextlib.closing(wire):
            thread.submit(change).result(timeout=60)
        connection.invalidate()


def test_a_study_on_a_server_goes_on(server: postgresql.Server, model: Path) -> None:
    """The same command again finds everything measured, from another folder as well."""
    url = server.url("again")
    for trials, measured in ((5, 5), (8, 3)):
        world = FakeWorld(thread_cost, on_disk=True)
        result = world.tune(
            model, storage=url, trials=trials, space="session", out=model.parent / str(trials)
        )
        assert result.trials == trials
        assert len(world.searched) == measured
