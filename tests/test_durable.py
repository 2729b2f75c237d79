"""Studies that survive: kills at any moment, a full disk, a folder that cannot be written to."""

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
from sqlalchemy.exc import OperationalError
from test_store import Shared

from autotune.errors import StorageError
from autotune.facts import sample_models
from autotune.search.optuna_trials import read_trials
from autotune.space.configuration import Configuration
from autotune.storage import retry
from autotune.storage.database import Clock, Place, open_storage, quiet_optuna
from autotune.storage.spool import Spool

# with that limit nothing is kept: the final comparison is the default's alone, and short
_LATENCY = ("--objective", "latency_ms", "--max-latency", "1us")
_SIGNALS = {
    "Ctrl-C": signal.SIGINT,
    "SIGTERM": signal.SIGTERM,
    "driver": signal.SIGKILL,
    "both": signal.SIGKILL,
}
"""What the driver gets; another strike kills a measuring process alone."""
_LOST_DEFAULT = "does not run with default options (killed)"
"""How a study ends by itself whose measuring process was killed while the default started."""


def _strike(study: Program, kind: str, temporary: Path) -> None:
    """Kills a measuring process, the driver or both, or sends the driver a signal."""
    process = study.process
    if process.poll() is not None:
        assert _LOST_DEFAULT in study.words()
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
    assert code in (128 + number, -number) or _LOST_DEFAULT in study.words(), study.words()
    is_killed = number == signal.SIGKILL
    deadline = time.monotonic() + 60 * is_killed  # its orphans notice that they are alone
    while workers_of(temporary):
        assert time.monotonic() < deadline, study.words()
        time.sleep(0.1)
    assert is_killed or _left(temporary) == []


def _left(temporary: Path) -> list[Path]:
    """Returns what the program left in the folder for temporary files.

    But for the locks of the cores: whoever removed one would let two others hold it at once.
    """
    return [path for path in temporary.iterdir() if path.name != "autotune-cores"]


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
        reported, now = study.reported(), _spooled(folder)
        assert before <= now
        assert len(now) >= reported
        before = now
    assert before
    trials = len(before) + 2
    study = Program(tmp_path, "--trials", str(trials), *_LATENCY)
    assert study.process.wait(timeout=120) == 0, study.words()
    assert _left(temporary) == []
    assert (folder / "best.json").exists()
    assert list(folder.glob("*.spool.jsonl")) == []
    with sqlite3.connect(folder / "study.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with quiet_optuna(), open_storage(Place.of(None, folder)) as opened:
        (only,) = opened.get_all_studies()
        loaded = optuna.load_study(study_name=only.study_name, storage=opened)
        states = Counter(frozen.state.name for frozen in loaded.trials)
        kept = [trial.configuration.key for trial in read_trials(loaded)]
    assert states["RUNNING"] == states["WAITING"] == 0
    assert len(kept) == len(set(kept)) == trials
    assert before <= set(kept)


def _spooled(folder: Path) -> set[str]:
    """Returns the configurations whose measurement was on the disk; none is there twice."""
    keys = [
        Configuration.of(entry["configuration"]).key
        for path in folder.glob("*.spool.jsonl")
        for entry in Spool(folder, path.name.removesuffix(".spool.jsonl")).entries()
    ]
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


class Away:
    """Makes Optuna's storage fail for some calls, as a server does that is away."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def __call__(self, *_: object, **__: object) -> None:
        if self._left > 0:
            self._left -= 1
            raise OperationalError("SELECT", {}, Exception("server closed the connection"))


def _begun(database: optuna.storages.RDBStorage) -> Shared:
    """Returns a new study in the database."""
    optuna.create_study(study_name="shared", storage=database, directions=["minimize"] * 2)
    return Shared(database)


@pytest.mark.parametrize(
    "method", ["create_new_trial", "set_trial_user_attr", "set_trial_state_values"]
)
def test_a_storage_that_is_away_for_a_while(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str
) -> None:
    """The search waits and goes on; what was measured is stored, and no worker repeats it."""
    notes: list[str] = []
    measurer = FakeMeasurer(thread_cost)
    with quiet_optuna(), open_storage(Place.of(None, tmp_path)) as database:
        store = _begun(database).store("one", note=notes.append, spool=Spool(tmp_path, "s"))
        study = store.study
        search = build_search(measurer, study=study, store=store, clock=_NO_WAITING)
        search.run(5, None)
        original = getattr(study._storage, method)
        away = Away(3)

        def flaky(*arguments: object, **named: object) -> object:
            away()
            return original(*arguments, **named)

        monkeypatch.setattr(study._storage, method, flaky)
        search.run(12, None)
        kept = [trial.configuration for trial in read_trials(study)]
        states = {frozen.state.name for frozen in study.trials}
    assert any("connection lost; retrying" in note for note in notes)
    assert any("connection is back" in note for note in notes)
    assert len(kept) == len(set(kept)) == 12
    assert sorted(map(str, kept)) == sorted(map(str, measurer.searched))
    assert "RUNNING" not in states


@pytest.mark.parametrize(
    ("is_shared", "method"), [(True, "set_trial_state_values"), (False, "set_trial_user_attr")]
)
def test_a_storage_that_stays_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_shared: bool, method: str
) -> None:
    """The study stops with exit code 75, a server's after minutes; the spool has all."""
    monkeypatch.setattr(retry, "_PATIENCE_S", 0.0)
    measurer = FakeMeasurer(thread_cost)
    place = Place.of(None, tmp_path)

    def run() -> None:
        with quiet_optuna(), open_storage(place) as database:
            options: dict[str, Any] = {} if is_shared else {"claims": None}
            store = _begun(database).store("one", spool=Spool(tmp_path, "s"), **options)
            search = build_search(measurer, study=store.study, store=store, clock=_NO_WAITING)
            search.run(3, None)
            monkeypatch.setattr(store.study._storage, method, Away(1000))
            search.run(10, None)

    with pytest.raises(StorageError) as stopped:
        run()
    assert stopped.value.exit_code == 75
    assert len(measurer.searched) == 4
    monkeypatch.undo()
    with quiet_optuna(), open_storage(place) as database:
        store = Shared(database).store("one", spool=Spool(tmp_path, "s"))
        again = build_search(measurer, study=store.study, store=store, clock=_NO_WAITING)
        again.run(4, None)
        assert sorted(str(t.configuration) for t in again.trials) == sorted(
            map(str, measurer.searched)
        )
