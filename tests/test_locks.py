"""Who may work in a folder, on a database and on cores: locks, and where those on cores lie."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.errors import StudyError
from autotune.storage import locks

_HOLD = (
    "import os, pathlib, sys\n"
    "from autotune.storage import locks\n"
    "core, *places = sys.argv[1:]\n"
    "if core == 'none':\n"
    "    locks.core_locks = lambda: []\n"
    "else:\n"
    "    os.sched_setaffinity(0, {int(core)})\n"
    "with locks.exclusive_use(*map(pathlib.Path, places)):\n"
    "    print('held', flush=True)\n"
    "    sys.stdin.read()\n"
)


@contextlib.contextmanager
def _held(*places: Path, core: int | None = None) -> Iterator[Callable[[], None]]:
    """Holds places, or a core as well, in a process of its own; gives what ends it."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, "none" if core is None else str(core), *map(str, places)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder.stdin.close


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    return tmp_path / "one", tmp_path / "two"


@pytest.mark.process
def test_a_database_elsewhere_serves_one_driver(folders: tuple[Path, Path], tmp_path: Path) -> None:
    one, two = folders
    database = tmp_path / "shared.db"
    with (
        _held(one, database),
        pytest.raises(StudyError, match="postgresql://"),
        locks.exclusive_use(two, database),
    ):
        pass


@pytest.mark.process
def test_the_database_of_another_folder_serves_one_driver(folders: tuple[Path, Path]) -> None:
    """The study of that folder holds no lock but the folder's."""
    one, two = folders
    with (
        _held(one, one / "study.db"),
        pytest.raises(StudyError, match="postgresql://"),
        locks.exclusive_use(two, one / "study.db"),
    ):
        pass


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_two_drivers_do_not_share_cores(folders: tuple[Path, Path]) -> None:
    one, two = folders
    mine = os.sched_getaffinity(0)
    if len(mine) < 2:
        pytest.skip("there is one core only")
    first, second = sorted(mine)[:2]
    with _held(one, core=first):
        try:
            with (
                pytest.raises(StudyError, match=r"measures on these cores.*--wait.*taskset"),
                locks.exclusive_use(two),
            ):
                pass
            os.sched_setaffinity(0, {second})
            with locks.exclusive_use(two):
                pass
        finally:
            os.sched_setaffinity(0, mine)


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_a_study_can_wait_for_the_cores(folders: tuple[Path, Path]) -> None:
    one, two = folders
    core = min(os.sched_getaffinity(0))
    sentences: list[str] = []
    with _held(one, core=core) as end:

        def note(sentence: str) -> None:
            sentences.append(sentence)
            end()

        with locks.exclusive_use(two, wait=True, on_note=note):
            assert len(sentences) == 1
            with (
                pytest.raises(StudyError, match="measures on these cores"),
                locks.exclusive_use(one),
            ):
                pass
    assert "another autotune measures on these cores" in sentences[0]
    assert "waiting" in sentences[0]


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
def test_a_wait_can_be_interrupted(folders: tuple[Path, Path], tmp_path: Path) -> None:
    one, two = folders
    database = tmp_path / "shared.db"
    interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    # a shell's background jobs start with Ctrl-C ignored
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with _held(one, database):
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
    for holder in (_held(tmp_path), locks.exclusive_use(tmp_path)):
        with holder, pytest.raises(StudyError, match="is at work"), locks.exclusive_use(tmp_path):
            pass
    notes: list[str] = []
    with locks.exclusive_use(tmp_path, wait=True, on_note=notes.append):
        assert notes == []


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="ascii")
    with (
        pytest.raises(StudyError, match="cannot write"),
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
