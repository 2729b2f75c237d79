"""Studies that survive: kills at any moment, a full disk, a folder that cannot be written to."""

import functools
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import command_line
import optuna
import psutil
import pytest
from brief_studies import Program, workers_of
from fakes import FakeMeasurer, build_search, thread_cost
from optuna.trial import TrialState
from sqlalchemy.exc import OperationalError

from autotune.errors import StorageError
from autotune.facts import sample_models
from autotune.search.optuna_trials import read_trials
from autotune.space.configuration import Configuration
from autotune.storage import database
from autotune.storage.database import Clock, Place, open_storage, quiet_optuna

# with that limit nothing is kept: the final comparison is the default's alone, and short
_LATENCY = ("--objective", "latency_ms", "--max-latency", "1us")
_SIGNALS = {
    "Ctrl-C": signal.SIGINT,
    "SIGTERM": signal.SIGTERM,
    "driver": signal.SIGKILL,
    "both": signal.SIGKILL,
}
"""What the driver gets; another strike kills a measuring process alone."""
_LOST = ("does not run with default options (killed)", "end abruptly (killed")
"""How a study ends by itself whose child was killed while the default started, or the model was
read."""


def _strike(study: Program, kind: str, temporary: Path) -> None:
    """Kills a measuring process, the driver or both, or sends the driver a signal."""
    process = study.process
    if process.poll() is not None:
        assert any(lost in study.words() for lost in _LOST)
        return
    if kind in ("worker", "both"):
        for worker in psutil.Process(process.pid).children(recursive=True)[-1:]:
            with suppress(psutil.NoSuchProcess):  # one may end between the two calls
                worker.kill()
    if kind not in _SIGNALS:
        return
    number = _SIGNALS[kind]
    process.send_signal(number)
    # until the program listens, a signal ends it at once, and there is nothing to keep
    code = process.wait(timeout=60)
    is_lost = any(lost in study.words() for lost in _LOST)
    assert code in (128 + number, -number) or is_lost, study.words()
    is_killed = number == signal.SIGKILL
    deadline = time.monotonic() + 60 * is_killed  # its orphans notice that they are alone
    while workers_of(temporary):
        assert time.monotonic() < deadline, study.words()
        time.sleep(0.1)
    assert is_killed or _left(temporary) == []


def _left(temporary: Path) -> list[Path]:
    """Returns what the program left in the folder for temporary files.

    But for the locks of the cores: whoever removed one would let two others hold it at once; and
    but for the user's own folder, if it is empty.
    """
    own = temporary / f"autotune-{os.getuid()}"
    inside = own.iterdir() if own.exists() else ()
    outside = (path for path in temporary.iterdir() if path != own)
    return [path for path in (*outside, *inside) if path.name != "autotune-cores"]


@pytest.mark.stress
@pytest.mark.skipif(sys.platform != "linux", reason="orphans end by themselves on Linux")
def test_a_study_is_struck_again_and_again(tmp_path: Path) -> None:
    """No measurement that was reported is lost, none is made twice, and nothing stays behind."""
    sample_models.write("lstm", tmp_path / "model.onnx")
    moments = random.Random(5)
    folder, temporary = tmp_path / "model.autotune", tmp_path / "tmp"
    before: set[str] = set()
    kills = ["worker"] * 10 + ["driver"] * 5 + ["both"] * 5
    # what a killed driver leaves stays until the next one sweeps, so signals come first
    kinds = [*["Ctrl-C"] * 2, *["SIGTERM"] * 2, *moments.sample(kills, len(kills)), "driver"]
    study = Program(tmp_path, "--trials", "400", *_LATENCY)
    for number, kind in enumerate(kinds):
        if study.process.poll() is not None:
            study = Program(tmp_path, "--trials", "400", *_LATENCY)
        # every other time when trials are measured, else also while it starts
        if number % 2 == 0:
            study.wait_for_trials()
        time.sleep(moments.uniform(0.0, 0.6))
        _strike(study, kind, temporary)
        reported, now = study.reported(), _kept(folder)
        assert before <= now
        assert len(now) >= reported
        before = now
    assert before
    trials = len(before) + 2
    study = Program(tmp_path, "--trials", str(trials), *_LATENCY)
    assert study.process.wait(timeout=120) == 0, study.words()
    assert _left(temporary) == []
    assert (folder / "best.json").exists()
    with sqlite3.connect(folder / "study.db") as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with quiet_optuna(), open_storage(Place.of(None, folder)) as opened:
        (only,) = opened.get_all_studies()
        loaded = optuna.load_study(study_name=only.study_name, storage=opened)
        states = Counter(frozen.state.name for frozen in loaded.trials)
        kept = [trial.configuration.key for trial in read_trials(loaded)]
    assert states["RUNNING"] == states["WAITING"] == 0
    assert len(kept) == len(set(kept)) == trials
    assert before <= set(kept)


def _kept(folder: Path) -> set[str]:
    """Returns the configurations whose measurement the database has; none is there twice."""
    if not (folder / "study.db").exists():
        return set()
    statement = (
        "SELECT value_json FROM trial_user_attributes JOIN trials USING (trial_id) "
        "WHERE key = 'configuration' AND state IN ('COMPLETE', 'PRUNED') AND trial_id IN "
        "(SELECT trial_id FROM trial_user_attributes WHERE key IN ('measurement', 'failure'))"
    )
    # a reader that may not write takes back no transaction that a kill cut off, and reads nothing
    with sqlite3.connect(f"file:{folder / 'study.db'}?mode=rw", timeout=60, uri=True) as file:
        try:
            rows = file.execute(statement).fetchall()
        except sqlite3.OperationalError:  # it was killed before it had made its tables
            return set()
    keys = [Configuration.of(json.loads(value)).key for (value,) in rows]
    assert len(keys) == len(set(keys))
    return set(keys)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=9m", "tmpfs", str(place)]
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root may mount")
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def _study(folder: Path, model: Path, trials: int) -> subprocess.CompletedProcess[str]:
    worker = Path(__file__).parent / "shared_worker.py"
    return subprocess.run(
        [sys.executable, str(worker), str(model), str(folder), str(trials), "0"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.stress
@pytest.mark.parametrize("left_mib", [0, 4])
def test_a_full_disk_keeps_what_was_measured(
    tiny_disk: Path, tmp_path: Path, left_mib: int
) -> None:
    sample_models.write("lstm", tmp_path / "model.onnx")
    folder = tiny_disk / "out"
    first = _study(folder, tmp_path / "model.onnx", 3)
    assert first.returncode == 0, first.stderr
    filler = tiny_disk / "filler"
    with filler.open("wb") as file:
        while os.statvfs(tiny_disk).f_bavail * 4096 > left_mib << 20:
            file.write(bytes(4096))
            file.flush()
    full = _study(folder, tmp_path / "model.onnx", 8)
    assert full.returncode != 0
    assert "StorageError" in full.stderr
    assert "What was measured is kept" in " ".join(full.stderr.split())
    filler.unlink()
    again = _study(folder, tmp_path / "model.onnx", 8)
    assert again.returncode == 0, again.stderr
    measured = (folder / "measured").read_text().split()
    assert len(measured) == len(set(measured)) == 8


@pytest.mark.process
def test_a_folder_that_cannot_be_written_to(tiny_disk: Path, tmp_path: Path) -> None:
    sample_models.write("lstm", tmp_path / "model.onnx")
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    done = command_line.run(tmp_path, "study", "model.onnx", "--out", str(tiny_disk / "out"))
    assert done.returncode == 2
    assert re.search(r"cannot make the folder .*--out\s+DIR", " ".join(done.stderr.split()))
    assert "Traceback" not in done.stderr


_NO_WAITING = Clock(sleep=lambda _: None)


@pytest.fixture
def sqlite_as_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Place:
    """A place that counts as a server's, and is a file."""
    url = f"sqlite:///{tmp_path / 'study.db'}"
    monkeypatch.setattr(
        database,
        "_open_server",
        lambda _, patience, *__: database._careful(optuna.storages.RDBStorage, patience)(url),
    )
    return Place.of("postgresql://host/name", tmp_path)


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize(
    "method",
    ["set_trial_system_attr", "set_trial_user_attr", "set_trial_state_values"],
)
def test_a_server_that_is_away_for_a_while(
    monkeypatch: pytest.MonkeyPatch, sqlite_as_server: Place, method: str, is_lost: bool
) -> None:
    """The worker waits with its outcome in hand, and says so; nothing is measured twice.

    Before the server does something, or after it, when the reply is lost.
    """
    notes: list[str] = []
    measurer = FakeMeasurer(thread_cost)
    original = getattr(optuna.storages.RDBStorage, method)
    left = 0

    @functools.wraps(original)
    def flaky(*arguments: Any, **named: Any) -> object:
        nonlocal left
        begins = any(each is TrialState.RUNNING for each in (*arguments, *named.values()))
        if not left or begins:
            return original(*arguments, **named)
        left -= 1
        if is_lost:
            original(*arguments, **named)
        raise OperationalError("SELECT", {}, Exception("server closed the connection"))

    monkeypatch.setattr(optuna.storages.RDBStorage, method, flaky)
    with quiet_optuna(), open_storage(sqlite_as_server, notes.append, clock=_NO_WAITING) as storage:
        study = optuna.create_study(storage=storage, directions=["minimize"] * 2)
        build_search(measurer, study=study, worker="one").run(2, None)
        left = 1 if is_lost else 3
        build_search(measurer, study=study, worker="one").run(6, None)
        kept = [trial.configuration for trial in read_trials(study)]
        states = {frozen.state.name for frozen in study.trials}
    assert notes[0].startswith("Database connection lost; retrying")
    assert notes[1] == "The database connection is back."
    assert len(kept) == len(set(kept)) == 6
    assert sorted(map(str, kept)) == sorted(map(str, measurer.searched))
    assert states == {"COMPLETE"}


def test_a_server_that_stays_away(monkeypatch: pytest.MonkeyPatch, sqlite_as_server: Place) -> None:
    """The study stops with exit code 75, and its message has nothing of the library's."""
    monkeypatch.setattr(database, "_PATIENCE_S", 0.0)

    @functools.wraps(optuna.storages.RDBStorage.set_trial_user_attr)
    def away(*_: object, **__: object) -> None:
        raise OperationalError("SELECT", {}, Exception("password"))

    monkeypatch.setattr(optuna.storages.RDBStorage, "set_trial_user_attr", away)

    def search() -> None:
        with quiet_optuna(), open_storage(sqlite_as_server, clock=_NO_WAITING) as storage:
            study = optuna.create_study(storage=storage, directions=["minimize"] * 2)
            build_search(FakeMeasurer(thread_cost), study=study, worker="one").run(5, None)

    with pytest.raises(StorageError) as stopped:
        search()
    assert stopped.value.exit_code == 75
    assert "password" not in str(stopped.value)
