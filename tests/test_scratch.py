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


def left_in(place: Path) -> list[Path]:
    """Returns what is left in the folder of the user."""
    return list((place / f"autotune-{os.getuid()}").iterdir())


def test_a_process_removes_its_folder(tmp_path: Path) -> None:
    holder = Holder(tmp_path)
    assert holder.folder.is_dir()
    assert holder.folder.is_relative_to(tmp_path)
    for folder in (holder.folder, *holder.folder.parents[:2]):
        assert folder.stat().st_mode & 0o077 == 0
    holder.end(kill=False)
    assert left_in(tmp_path) == []


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
    assert left_in(tmp_path) == []


def test_many_may_start_at_once(tmp_path: Path) -> None:
    """Processes that start and sweep at the same time do not take each other's folders."""
    for _ in range(4):
        Holder(tmp_path).end(kill=True)
    holders = [Holder(tmp_path) for _ in range(6)]
    assert all(holder.folder.is_dir() for holder in holders)
    assert sum(path.suffix == ".lock" for path in left_in(tmp_path)) == 6
    for holder in holders:
        holder.end(kill=False)
    assert left_in(tmp_path) == []


def test_a_sweep_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    """A lock without its folder is removed too: the lock is what goes last."""
    (tmp_path / "0123456789ab.lock").touch()
    scratch.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["file", "link", "open to others"])
def test_what_others_put_in_its_place_is_not_used(tmp_path: Path, kind: str) -> None:
    taken, precious = tmp_path / f"autotune-{os.getuid()}", tmp_path / "precious"
    precious.mkdir(mode=0o700)
    (precious / "mine.lock").touch()
    if kind == "file":
        taken.touch()
    elif kind == "link":
        taken.symlink_to(precious)
    else:
        taken.mkdir()
        taken.chmod(0o777)
    before = everything_in(tmp_path)
    holder = Holder(tmp_path)
    assert not holder.folder.is_relative_to(taken)
    assert holder.folder.parents[1].stat().st_mode & 0o077 == 0
    holder.end(kill=False)
    holder.folder.parents[1].rmdir()
    assert everything_in(tmp_path) == before


def test_a_link_inside_a_swept_folder_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    killed = Holder(tmp_path)
    (killed.folder / "link").symlink_to(precious)
    killed.end(kill=True)
    scratch.sweep(killed.folder.parents[1])
    assert left_in(tmp_path) == []
    assert (precious / "file").exists()


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
    scratch.sweep(killed.folder.parents[1])
    assert orphans[0].wait(timeout=60) != 0
    assert orphans[1].poll() is None
    orphans[1].kill()
    orphans[1].wait()
    alive.end(kill=False)


def marked(folder: Path) -> Path:
    """Makes a folder with the mark of autotune; returns the mark."""
    folder.mkdir()
    scratch.write_mark(folder)
    return folder / scratch.MARK_FILE


def test_a_marked_folder_goes(tmp_path: Path) -> None:
    marked(tmp_path / "cache")
    (tmp_path / "cache" / "below").mkdir()
    scratch.remove_marked(tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", ["a link", "other content", "another's"])
def test_what_is_not_marked_by_us_stays(tmp_path: Path, fault: str) -> None:
    mark = marked(tmp_path / "cache")
    if fault == "a link":
        mark.unlink()
        mark.symlink_to(marked(tmp_path / "other"))
    elif fault == "other content":
        mark.write_bytes(b"mine")
    elif os.geteuid() == 0:
        os.chown(mark, 12345, 12345)
    else:
        pytest.skip("only root gives files away")
    before = everything_in(tmp_path)
    scratch.remove_marked(tmp_path / "cache")
    assert everything_in(tmp_path) == before


def test_a_link_to_a_marked_folder_stays(tmp_path: Path) -> None:
    marked(tmp_path / "cache")
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    scratch.remove_marked(tmp_path / "link")
    assert (tmp_path / "cache" / scratch.MARK_FILE).exists()
