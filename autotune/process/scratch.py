"""Temporary folders that do not outlive their process for long, not even one that is killed.

Each process has one root in the system's temporary folder, and beside it a lock file that it holds
for as long as it lives. Whoever starts removes the roots whose lock is free, and the processes that
still work in them. The lock tells, and not a process number: numbers are used again, and containers
that share ``/tmp`` do not see each other's processes.
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
from pathlib import Path

import filelock
import psutil

MARK = "AUTOTUNE_SCRATCH"
"""Variable in the environment of a process that names the folder in which it works."""

_PREFIX = "autotune-"
# Whoever starts processes as fast as they are killed is left alone after that many rounds.
_MOST_ROUNDS = 50


def make() -> Path:
    """Returns a new, empty folder that nobody else may read."""
    return Path(tempfile.mkdtemp(dir=root()))


@functools.cache
def root() -> Path:
    """Returns the folder of this process, removed when it ends; sweeps on the first call."""
    place = Path(tempfile.gettempdir()).resolve()
    sweep(place)
    while True:
        made = place / f"{_PREFIX}{secrets.token_hex(6)}"
        lock = filelock.FileLock(_lock_of(made))
        lock.acquire()
        try:
            # a sweep may have come between the making of the file and its locking
            if _lock_of(made).exists():
                made.mkdir(mode=0o700)
                break
        except FileExistsError:
            pass
        lock.release()
    atexit.register(_remove, made, lock)
    return made


def sweep(place: Path) -> None:
    """Removes what processes of this user left in the folder `place`, and ends what works there."""
    for path in place.glob(f"{_PREFIX}*.lock"):
        if not _is_ours(path):
            continue
        lock = filelock.FileLock(path)
        try:
            lock.acquire(timeout=0)
        except (filelock.Timeout, OSError):
            continue
        left = path.with_suffix("")
        end_processes(left)
        _remove(left, lock)


def end_processes(folder: Path) -> None:
    """Kills every process that was started to work in `folder` or below, whoever its parent is.

    What a process starts inherits its mark. A grandchild in a session of its own whose parent is
    gone can be found in no other way.
    """
    for _ in range(_MOST_ROUNDS):
        found = [process for process in psutil.process_iter() if _works_in(process, folder)]
        if not found:
            return
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        # not wait(): that would take the exit code of a child from whoever started it
        time.sleep(0.01)


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        mark = process.environ().get(MARK)
    except (psutil.Error, OSError):
        return False
    return mark is not None and Path(mark).is_relative_to(folder) and process.pid != os.getpid()


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _is_ours(path: Path) -> bool:
    """Returns whether it is a file of this user: in ``/tmp`` others may place what they like."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and (sys.platform == "win32" or found.st_uid == os.getuid())


def _remove(folder: Path, lock: filelock.BaseFileLock) -> None:
    """Removes a root whose lock is held; the lock file last, as it tells that there is something.

    Windows does not remove an open file; there the library does it when the lock is released.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        if not folder.exists():
            _lock_of(folder).unlink()
    lock.release()
