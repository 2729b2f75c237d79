"""Folders that go with their process, whatever end it takes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from factories import everything_in

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
        if kill:
            self.process.kill()
        self.process.communicate("\n")


def test_a_process_removes_its_folder(tmp_path: Path) -> None:
    holder = Holder(tmp_path)
    assert holder.folder.is_dir()
    assert holder.folder.is_relative_to(tmp_path)
    assert holder.folder.stat().st_mode & 0o077 == 0
    assert holder.folder.parent.stat().st_mode & 0o077 == 0
    holder.end(kill=False)
    assert list(tmp_path.iterdir()) == []


def test_the_next_removes_what_a_killed_process_left(tmp_path: Path) -> None:
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
    (tmp_path / "autotune-0123456789ab.lock").touch()
    scratch.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


NAME = "autotune-0123456789ab"


def left_over(place: Path, name: str = NAME, *, marked: bool = True) -> Path:
    """Makes a folder as a killed process leaves one, with a lock that nobody holds."""
    folder = place / name
    folder.mkdir()
    (folder / "answers.npz").write_bytes(b"large")
    (place / f"{name}.lock").touch()
    if marked:
        scratch.write_mark(folder)
    return folder


def test_a_link_for_a_mark_is_none(tmp_path: Path) -> None:
    (tmp_path / "marked").mkdir()
    scratch.write_mark(tmp_path / "marked")
    folder = left_over(tmp_path, marked=False)
    (folder / scratch.MARK_FILE).symlink_to(tmp_path / "marked" / scratch.MARK_FILE)
    scratch.sweep(tmp_path)
    assert (folder / "answers.npz").exists()


def test_a_lock_file_that_holds_something_stays(tmp_path: Path) -> None:
    """A lock of autotune is empty; a file of that name with content is somebody's."""
    lock = tmp_path / f"{NAME}.lock"
    lock.write_bytes(b"mine")
    scratch.sweep(tmp_path)
    assert lock.read_bytes() == b"mine"


def test_links_stay(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_bytes(b"mine")
    scratch.write_mark(precious)
    (tmp_path / NAME).symlink_to(precious)
    (tmp_path / f"{NAME}.lock").touch()
    (tmp_path / "autotune-ba9876543210.lock").symlink_to(precious / "file")
    before = everything_in(tmp_path)
    scratch.sweep(tmp_path)
    assert everything_in(tmp_path) == before


def test_a_link_inside_a_swept_folder_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    folder = left_over(tmp_path)
    (folder / "link").symlink_to(precious)
    scratch.sweep(tmp_path)
    assert not folder.exists()
    assert (precious / "file").exists()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("of", ["lock", "folder", "mark"])
def test_what_belongs_to_others_stays(tmp_path: Path, of: str) -> None:
    folder = left_over(tmp_path)
    path = {"lock": folder.with_suffix(".lock"), "folder": folder, "mark": folder / ".autotune"}
    os.chown(path[of], 12345, 12345)
    before = everything_in(tmp_path)
    scratch.sweep(tmp_path)
    assert everything_in(tmp_path) == before


def test_processes_of_a_swept_folder_end(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("name", "mark", "goes"),
    [
        (NAME, "ours", True),
        # the name alone makes no folder ours, and neither does a mark of other content
        (NAME, "", False),
        (NAME, "mine", False),
        # the name has the exact form
        *(
            (name, "ours", False)
            for name in (
                "autotune-results",
                "autotune-1",
                "autotune-0123456789AB",
                f"{NAME}c",
                "autotune-0123456789a²",
            )
        ),
    ],
)
def test_a_marked_folder_of_the_exact_name_goes(
    tmp_path: Path, name: str, mark: str, goes: bool
) -> None:
    """Where a free lock is beside it."""
    folder = left_over(tmp_path, name, marked=mark == "ours")
    if mark == "mine":
        (folder / scratch.MARK_FILE).write_bytes(b"mine")
    before = everything_in(tmp_path)
    scratch.sweep(tmp_path)
    assert everything_in(tmp_path) == ({} if goes else before)
