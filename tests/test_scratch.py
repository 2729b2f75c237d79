"""Folders that go with their process, whatever end it takes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from autotune.process import scratch

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.name != "posix", reason="kills as POSIX does"),
]

_HOLDER = """
import sys, time
from autotune.process import scratch
print(scratch.make(), flush=True)
sys.stdin.readline()
"""


class Holder:
    """A process with a scratch folder in `place`."""

    def __init__(self, place: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _HOLDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TMPDIR": str(place)},
        )
        assert self.process.stdout is not None
        self.folder = Path(self.process.stdout.readline().strip())

    def end(self, *, kill: bool) -> None:
        """Lets it end, or kills it."""
        if kill:
            self.process.kill()
        self.process.communicate("\n")


def test_a_process_removes_its_folder(tmp_path: Path) -> None:
    """A process that ends leaves nothing, neither folder nor lock."""
    holder = Holder(tmp_path)
    assert holder.folder.is_dir()
    assert holder.folder.is_relative_to(tmp_path)
    assert holder.folder.stat().st_mode & 0o077 == 0
    assert holder.folder.parent.stat().st_mode & 0o077 == 0
    holder.end(kill=False)
    assert list(tmp_path.iterdir()) == []


def test_the_next_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    """What a killed process left is removed by the next; what others still hold stays."""
    killed, alive = Holder(tmp_path), Holder(tmp_path)
    (killed.folder / "answers.npz").write_bytes(b"large")
    killed.end(kill=True)
    assert killed.folder.exists()
    later = Holder(tmp_path)
    assert not killed.folder.parent.exists()
    assert alive.folder.is_dir()
    for holder in (alive, later):
        holder.end(kill=False)
    assert list(tmp_path.iterdir()) == []


def test_many_may_start_at_once(tmp_path: Path) -> None:
    """Processes that start and sweep at the same time do not take each other's folders."""
    for _ in range(4):
        Holder(tmp_path).end(kill=True)
    holders = [Holder(tmp_path) for _ in range(6)]
    assert all(holder.folder.is_dir() for holder in holders)
    assert len(list(tmp_path.glob("*.lock"))) == 6
    for holder in holders:
        holder.end(kill=False)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    """A lock without its folder is removed too: the lock is what goes last."""
    (tmp_path / "autotune-0123.lock").touch()
    scratch.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    """Links and files without a lock are not ours to remove."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (tmp_path / "autotune-1").symlink_to(precious)
    (tmp_path / "autotune-2.lock").symlink_to(precious / "absent")
    (tmp_path / "autotune-3").mkdir()
    before = sorted(tmp_path.iterdir())
    scratch.sweep(tmp_path)
    assert sorted(tmp_path.iterdir()) == before
    assert list(precious.iterdir()) == []


def test_a_link_in_the_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    """Whoever puts a link in the place of a swept folder loses nothing behind it."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (tmp_path / "autotune-1").symlink_to(precious)
    (tmp_path / "autotune-1.lock").touch()
    scratch.sweep(tmp_path)
    assert (precious / "file").exists()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
def test_what_belongs_to_others_stays(tmp_path: Path) -> None:
    """In a shared folder the files of other users are left alone."""
    lock = tmp_path / "autotune-1.lock"
    lock.touch()
    os.chown(lock, 12345, 12345)
    scratch.sweep(tmp_path)
    assert lock.exists()


def test_processes_of_a_swept_folder_end(tmp_path: Path) -> None:
    """What a killed process's children had started is ended by the sweep, and nothing else."""
    killed, alive = Holder(tmp_path), Holder(tmp_path)
    orphans = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", "import time; time.sleep(600)"],
            env={**os.environ, scratch.MARK: str(holder.folder)},
            start_new_session=True,
        )
        for holder in (killed, alive)
    ]
    # a mark can be read only once the program has been started
    for orphan in orphans:
        while scratch.MARK not in psutil.Process(orphan.pid).environ():
            time.sleep(0.01)
    killed.end(kill=True)
    scratch.sweep(tmp_path)
    assert orphans[0].wait(timeout=60) != 0
    assert orphans[1].poll() is None
    orphans[1].kill()
    orphans[1].wait()
    alive.end(kill=False)
