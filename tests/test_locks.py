"""Who may work in a folder, on a database and on cores: locks, and where those on cores lie."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.errors import StudyError
from autotune.storage import locks

_HOLD = (
    "import pathlib, sys\n"
    "from autotune.storage import locks\n"
    "with locks.exclusive_use(*map(pathlib.Path, sys.argv[1:]), cores=False):\n"
    "    print('held', flush=True)\n"
    "    sys.stdin.read()\n"
)


@contextlib.contextmanager
def _held_elsewhere(*places: Path) -> Iterator[None]:
    """Holds a folder, and a database, in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, *map(str, places)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    return tmp_path / "one", tmp_path / "two"


@pytest.mark.parametrize("name", ["shared.db", "one/study.db"])
def test_a_database_serves_one_study(folders: tuple[Path, Path], tmp_path: Path, name: str) -> None:
    """The study of a folder holds no lock but the folder's for the database in it."""
    one, two = folders
    with (
        locks.exclusive_use(one, tmp_path / name),
        pytest.raises(StudyError, match="postgresql://"),
        locks.exclusive_use(two, tmp_path / name),
    ):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_two_studies_do_not_share_cores(folders: tuple[Path, Path]) -> None:
    one, two = folders
    mine = os.sched_getaffinity(0)
    if len(mine) < 2:
        pytest.skip("there is one core only")
    first, second = sorted(mine)[:2]
    try:
        os.sched_setaffinity(0, {first})
        with locks.exclusive_use(one):
            os.sched_setaffinity(0, mine)
            with (
                pytest.raises(StudyError, match=r"measures on these cores.*wait=yes.*taskset"),
                locks.exclusive_use(two),
            ):
                pass
            os.sched_setaffinity(0, {second})
            with locks.exclusive_use(two):
                pass
    finally:
        os.sched_setaffinity(0, mine)


def test_a_study_can_wait_for_the_cores(folders: tuple[Path, Path]) -> None:
    one, two = folders
    sentences: list[str] = []
    with contextlib.ExitStack() as first:
        first.enter_context(locks.exclusive_use(one))

        def note(sentence: str) -> None:
            sentences.append(sentence)
            first.close()

        with (
            locks.exclusive_use(two, wait=True, on_note=note),
            pytest.raises(StudyError, match="measures on these cores"),
            locks.exclusive_use(one),
        ):
            pass
    (sentence,) = sentences
    assert "another autotune measures on these cores" in sentence
    assert "waiting" in sentence


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
def test_a_wait_can_be_interrupted(folders: tuple[Path, Path], tmp_path: Path) -> None:
    one, two = folders
    database = tmp_path / "shared.db"
    interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    # a shell's background jobs start with Ctrl-C ignored
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with _held_elsewhere(one, database):
            with (
                pytest.raises(KeyboardInterrupt),
                locks.exclusive_use(two, database, wait=True, on_note=lambda _: interrupt.start()),
            ):
                pass
            with locks.exclusive_use(two):
                pass
    finally:
        signal.signal(signal.SIGINT, earlier)


@pytest.mark.process
def test_a_lock_goes_with_its_holder(tmp_path: Path) -> None:
    """Two studies in one folder would measure each other, in two processes too."""
    for holder in (_held_elsewhere(tmp_path), locks.exclusive_use(tmp_path)):
        with holder, pytest.raises(StudyError, match="is at work"), locks.exclusive_use(tmp_path):
            pass
    notes: list[str] = []
    with locks.exclusive_use(tmp_path, wait=True, on_note=notes.append):
        assert notes == []


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="ascii")
    with (
        pytest.raises(StudyError, match="cannot make"),
        locks.exclusive_use(tmp_path / "file" / "folder"),
    ):
        pass


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this user's locks, in a place of the test."""
    monkeypatch.delenv(locks.LOCKS_VARIABLE)
    monkeypatch.setattr(locks, "lock_folder", lambda: tmp_path / "cores")
    (tmp_path / "study").mkdir()
    return tmp_path / "cores"


def test_a_core_is_measured_on_by_one_study(folder: Path, tmp_path: Path) -> None:
    """The folder is this user's alone, and each core that may be used has a file in it."""
    with (
        locks.exclusive_use(tmp_path / "study"),
        pytest.raises(StudyError, match="measures on these cores"),
        locks.exclusive_use(tmp_path),
    ):
        pass
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    cores = os.sched_getaffinity(0) if sys.platform == "linux" else {0}
    assert {file.name for file in folder.iterdir()} == {f"{core}.lock" for core in cores}


@pytest.mark.parametrize("kind", ["file", "link", "open", "link in it", "hard link in it"])
def test_a_folder_that_others_may_change_is_refused(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    core = min(os.sched_getaffinity(0)) if sys.platform == "linux" else 0
    if kind == "file":
        folder.write_bytes(b"")
    elif kind == "link":
        folder.symlink_to(tmp_path / "study", target_is_directory=True)
    else:
        folder.mkdir()
        folder.chmod(0o777 if kind == "open" else 0o700)
        lock = folder / f"{core}.lock"
        if kind == "link in it":
            lock.symlink_to(precious)
        elif kind == "hard link in it":
            lock.hardlink_to(precious)
    with (
        pytest.raises(StudyError, match=r"cannot be used.* in AUTOTUNE_LOCKS"),
        locks.exclusive_use(tmp_path / "study"),
    ):
        pass
    assert precious.read_bytes() == b"mine"


def test_the_folder_does_not_depend_on_tmpdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two studies with two values of TMPDIR see each other; the variable names another folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv(locks.LOCKS_VARIABLE, str(tmp_path / "named"))
    assert {file.parent for file in locks.core_locks()} == {tmp_path / "named"}
    monkeypatch.delenv(locks.LOCKS_VARIABLE)
    if sys.platform != "win32":
        assert not locks.lock_folder().is_relative_to(tmp_path)
        # a folder that is there for as long as someone is logged in would be a second place
        assert not locks.lock_folder().is_relative_to("/run")


def test_what_is_refused_leaves_nothing(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    with locks.exclusive_use(tmp_path):
        for folder in (mine, tmp_path / "new"):
            with pytest.raises(StudyError, match="measures on"), locks.exclusive_use(folder):
                pass
    assert not (tmp_path / "new").exists()
    assert mine.is_dir()
