"""Temporary folders that do not outlive their process for long, not even one that is killed.

All of them lie in a folder of this user alone, in the system's temporary folder. Each process has
one root there, and beside it a lock file that it holds for as long as it lives. A process that
starts removes the roots whose lock is free, and ends the processes that still work in them. A lock
shows whether a root is in use, and a process number does not: numbers are used again, and
containers that share ``/tmp`` do not see each other's processes.

Folders that lie elsewhere, such as the cache of a study, carry a mark: no other one is removed.
"""

import atexit
import contextlib
import functools
import os
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import filelock
import psutil

MARK_FILE = ".autotune"
_CONTENT = b"autotune made this folder and removes it.\n"


def write_mark(folder: Path) -> None:
    """Marks a folder that was just made.

    Raises:
        OSError: writing to disk failed.
    """
    (folder / MARK_FILE).write_bytes(_CONTENT)


def carries_mark(folder: Path) -> bool:
    """Returns whether `folder` is a real folder of this user, with the mark of autotune in it."""
    mark = folder / MARK_FILE
    if not (_is_own(folder, stat.S_ISDIR) and _is_own(mark, stat.S_ISREG)):
        return False
    try:
        with mark.open("rb") as file:
            return file.read(len(_CONTENT) + 1) == _CONTENT
    except OSError:
        return False


def remove_marked(folder: Path) -> None:
    """Removes a folder that carries the mark, as far as possible; other folders stay.

    The mark goes last: a removal that is cut short can be taken up again.
    """
    if not carries_mark(folder):
        return
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name != MARK_FILE:
                _remove_tree(path)
        if [path.name for path in folder.iterdir()] == [MARK_FILE]:
            (folder / MARK_FILE).unlink()
            folder.rmdir()


def _remove_tree(path: Path) -> None:
    """Removes a file, a link (not its target) or a folder; a fault leaves the rest of it."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _is_own(path: Path, is_kind: Callable[[int], bool]) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return is_kind(status.st_mode) and (sys.platform == "win32" or status.st_uid == os.getuid())


MARK = "AUTOTUNE_SCRATCH"
"""Variable in the environment of a process that names the folder in which it works."""

# A program that starts processes as fast as they are killed is left alone after so many rounds.
_MOST_ROUNDS = 50


def make() -> Path:
    """Returns a new, empty folder that only this user may read."""
    return Path(tempfile.mkdtemp(dir=root()))


@functools.cache
def root() -> Path:
    """Returns the folder of this process, removed when it ends; sweeps on the first call."""
    place = _place()
    sweep(place)
    while True:
        folder = place / secrets.token_hex(6)
        lock = filelock.FileLock(_lock_of(folder))
        lock.acquire()
        try:
            # a sweep may have come between the making of the file and its locking
            if _lock_of(folder).exists():
                folder.mkdir(mode=0o700)
                break
        except OSError:
            _lock_of(folder).unlink(missing_ok=True)
            lock.release()
            raise
        lock.release()
    atexit.register(_remove, folder, lock)
    return folder


def _place() -> Path:
    """Returns the folder of this user for the roots of all processes; makes it.

    Where others have put something in its place, it is one of this process alone.
    """
    user = "" if sys.platform == "win32" else f"-{os.getuid()}"
    folder = Path(tempfile.gettempdir()).resolve() / f"autotune{user}"
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
    is_private = _is_own(folder, stat.S_ISDIR) and (
        sys.platform == "win32" or not folder.lstat().st_mode & 0o077
    )
    return folder if is_private else Path(tempfile.mkdtemp(prefix="autotune-"))


def sweep(place: Path) -> None:
    """Removes the roots that ended processes left in the folder `place`.

    Processes that still work in such a root are killed.
    """
    for path in place.glob("*.lock"):
        lock = filelock.FileLock(path)
        try:
            lock.acquire(timeout=0)
        except (filelock.Timeout, OSError):
            continue
        folder = path.with_suffix("")
        end_processes(folder)
        _remove(folder, lock)


def end_processes(folder: Path) -> None:
    """Kills every process that was started to work in `folder` or below.

    A process inherits the mark of the process that started it. A grandchild in a session of its own
    whose parent is gone can be found in no other way.
    """
    for _ in range(_MOST_ROUNDS):
        workers = [process for process in psutil.process_iter() if _works_in(process, folder)]
        if not workers:
            return
        for process in workers:
            with contextlib.suppress(psutil.Error):
                process.kill()
        # not wait(): that would take the exit code of a child from its parent
        time.sleep(0.01)


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        mark = process.environ().get(MARK)
    except (psutil.Error, OSError):
        return False
    return mark is not None and Path(mark).is_relative_to(folder) and process.pid != os.getpid()


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _remove(folder: Path, lock: filelock.BaseFileLock) -> None:
    """Removes a root whose lock is held; the lock file goes last, because it marks the root.

    Windows does not remove an open file; there the library does it when the lock is released.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        if not folder.exists():
            _lock_of(folder).unlink()
    lock.release()
