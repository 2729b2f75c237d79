"""The locks on cores: no user can stop the others, and no TMPDIR avoids them."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.errors import StudyError
from autotune.storage import core_locks, locks


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of all users, and the folder of this user beside it, in a place of the test."""
    monkeypatch.delenv(core_locks.VARIABLE)
    monkeypatch.setattr(core_locks, "SHARED", tmp_path / "all" / "cores")
    monkeypatch.setattr(core_locks, "own_folder", lambda: tmp_path / "own")
    (tmp_path / "all").mkdir()
    return tmp_path / "all" / "cores"


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """The folder of a study."""
    (tmp_path / "study").mkdir()
    return tmp_path / "study"


def notes_of(study: Path) -> list[str]:
    """Returns the notes of a study that takes its locks."""
    notes: list[str] = []
    with locks.exclusive_use(study, on_note=notes.append):
        pass
    return notes


def test_all_users_may_write_to_the_shared_folder(shared: Path, study: Path) -> None:
    """The folder is open to all with the sticky bit, and so are its files, whatever the umask."""
    earlier = os.umask(0o077)
    try:
        assert notes_of(study) == []
    finally:
        os.umask(earlier)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777
    modes = {stat.S_IMODE(file.stat().st_mode) for file in shared.iterdir()}
    assert modes == {0o666}
    own = core_locks.own_folder()
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert {file.name for file in own.iterdir()} == {file.name for file in shared.iterdir()}


@pytest.mark.parametrize("kind", ["file", "link", "fifo in it", "link in it", "hard link in it"])
def test_a_spoilt_folder_stops_nobody(shared: Path, study: Path, tmp_path: Path, kind: str) -> None:
    """The study goes on with its own locks and says what is wrong; no link is followed."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    core = min(os.sched_getaffinity(0)) if sys.platform == "linux" else 0
    if kind == "file":
        shared.write_bytes(b"")
    elif kind == "link":
        shared.symlink_to(tmp_path, target_is_directory=True)
    else:
        shared.mkdir()
        lock = shared / f"{core}.lock"
        if kind == "fifo in it":
            os.mkfifo(lock)
        elif kind == "link in it":
            lock.symlink_to(precious)
        else:
            lock.hardlink_to(precious)
    (note,) = notes_of(study)
    assert f"the locks of the cores in {shared} cannot be used" in note
    assert f"remove {shared}" in note
    assert "AUTOTUNE_LOCKS" in note
    assert precious.read_bytes() == b"mine"
    assert list(tmp_path.glob("*.lock")) == []
    with (
        locks.exclusive_use(study),
        pytest.raises(StudyError, match="measures on these cores"),
        locks.exclusive_use(tmp_path),
    ):
        pass


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root is two users")
def test_a_folder_closed_by_another_user_is_named_with_its_owner(
    shared: Path, study: Path, tmp_path: Path
) -> None:
    """A user whose access was denied is not stopped, and reads who can mend it."""
    shared.mkdir(mode=0o700)
    script = (
        "import os, pathlib, sys\n"
        "from autotune.storage import core_locks, locks\n"
        "core_locks.SHARED = pathlib.Path(sys.argv[1])\n"
        "core_locks.own_folder = lambda: pathlib.Path(sys.argv[2]) / 'own'\n"
        "os.environ.pop('AUTOTUNE_LOCKS', None)\n"
        "os.setuid(12345)\n"
        "with locks.exclusive_use(pathlib.Path(sys.argv[2]), on_note=print):\n"
        "    pass\n"
    )
    os.chown(study, 12345, 12345)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    done = subprocess.run(
        [sys.executable, "-c", script, str(shared), str(study)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "this user may not write to it" in done.stdout
    assert f"remove {shared} as root, or name" in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="Linux lists the locks of all processes")
def test_the_holder_of_a_lock_is_named(shared: Path, study: Path, tmp_path: Path) -> None:
    """The refusal names the process and its user, so that a lock without a study can be ended."""
    with (
        locks.exclusive_use(study),
        pytest.raises(StudyError, match=rf"process {os.getpid()}, .* of "),
        locks.exclusive_use(tmp_path),
    ):
        pass


@pytest.mark.process
def test_another_temporary_folder_does_not_avoid_the_locks(
    shared: Path, study: Path, tmp_path: Path
) -> None:
    """Two studies with two values of TMPDIR have the same two folders of locks."""
    script = (
        "import os\n"
        "from autotune.storage import core_locks\n"
        "os.environ.pop('AUTOTUNE_LOCKS', None)\n"
        "print([str(folder.path) for folder in core_locks.lock_folders()])\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "TMPDIR": str(folder)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for folder in (study, tmp_path)
    }
    assert len(outputs) == 1
    assert str(tmp_path) not in outputs.pop()


def test_the_variable_names_the_one_folder(
    shared: Path, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With AUTOTUNE_LOCKS set, neither of the two fixed places is touched."""
    monkeypatch.setenv(core_locks.VARIABLE, str(tmp_path / "named"))
    assert notes_of(study) == []
    assert list((tmp_path / "named").iterdir())
    assert not shared.exists()
    assert not (tmp_path / "own").exists()
