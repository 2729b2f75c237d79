"""Locks: one study at a time in a folder, on a database file, and on each core of a machine.

Two studies on the same cores would disturb each other's timings; on cores of their own (taskset, a
cpuset) they may run side by side. The locks of the cores lie in a folder of this user, whatever
TMPDIR is. The variable AUTOTUNE_LOCKS names another one, which an administrator can set for all
users of a machine.
"""

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock

from autotune.errors import RequestError, StudyError, system_fault

DATABASE = "study.db"
"""The database in a study's folder; the lock of the folder serves it as well."""

LOCKS_VARIABLE = "AUTOTUNE_LOCKS"
"""Environment variable that names the folder of the locks on cores."""

_LOCK = ".lock"
_POLL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class _Lock:
    """A lock file, and what to say where another process holds it.

    Attributes:
        remedy: What the user can do instead of waiting.
    """

    path: Path
    conflict: str
    remedy: str


@contextlib.contextmanager
def exclusive_use(
    folder: Path | None,
    database: Path | None = None,
    *,
    cores: bool = True,
    wait: bool = False,
    on_note: Callable[[str], None] = lambda _: None,
) -> Iterator[None]:
    """Holds the folder, the database file and the cores that this process may use.

    The locks are taken in the same order by every process, so two processes that wait never wait
    for each other.

    Args:
        folder: The folder of the study; None where nothing is written to one.
        database: The SQLite file that keeps its trials, if there is one.
        cores: Whether something is timed, so that the cores are needed.
        on_note: Called with a sentence before the wait begins, once for each kind of conflict.

    Raises:
        StudyError: another process holds one of them and `wait` is false, or a lock file cannot be
            written.
    """
    announced: set[str] = set()
    with contextlib.ExitStack() as held:
        if folder is not None and not folder.exists():
            make_folder(folder)
            # what is refused leaves nothing behind: this comes after the release of the lock
            held.callback(_remove_empty, folder)
        for wanted in _wanted(folder, database, cores=cores):
            lock = filelock.FileLock(wanted.path, mode=0o666)
            if not _acquire(lock):
                if not wait:
                    raise StudyError(
                        f"{wanted.conflict}. Wait for it to end (`autotune study --set wait=yes` "
                        f"does), or {wanted.remedy}"
                    )
                if wanted.conflict not in announced:
                    on_note(f"{wanted.conflict}; waiting for it to end")
                announced.add(wanted.conflict)
                lock.acquire(poll_interval=_POLL_S)
            held.callback(lock.release)
        yield


def _acquire(lock: filelock.BaseFileLock) -> bool:
    """Takes a lock without waiting; returns whether it was free."""
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return False
    except OSError as error:
        if not isinstance(system_fault(error), RequestError):  # a full disk, too few files
            raise
        folder = Path(lock.lock_file).parent
        raise StudyError(f"cannot write to {folder}: {error.strerror}") from None
    return True


def _wanted(folder: Path | None, database: Path | None, *, cores: bool) -> Iterator[_Lock]:
    """Yields the locks that a study takes, in the order in which every study takes them."""
    if folder is not None:
        yield _Lock(
            path=folder / _LOCK,
            conflict=f"another autotune is at work in {folder}",
            remedy="give this one a folder of its own with --out DIR",
        )
        if database is not None and database.resolve().parent != folder.resolve():
            # the database of another study's folder has that folder's lock
            is_of_folder = database.name == DATABASE
            yield _Lock(
                path=database.with_name(".lock" if is_of_folder else f".{database.name}.lock"),
                conflict=f"another autotune writes to {database}, and SQLite serves one at a time",
                remedy="use --storage postgresql://..., which serves many machines",
            )
    for path in core_locks() if cores else ():
        yield _Lock(
            path=path,
            conflict="another autotune measures on these cores, and the two would disturb each "
            "other's timings",
            remedy="give each of them cores of its own (taskset -c)",
        )


def _remove_empty(folder: Path) -> None:
    """Removes a folder that holds nothing but its lock."""
    with contextlib.suppress(OSError):
        if [path.name for path in folder.iterdir()] == [_LOCK]:
            (folder / _LOCK).unlink()
            folder.rmdir()


def make_folder(folder: Path) -> None:
    """Makes the folder of a study.

    Raises:
        StudyError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise StudyError(f"{folder} is a file; name another folder with --out DIR") from None
    except OSError as error:
        raise StudyError(
            f"cannot make the folder {folder}: {error.strerror}; name another with --out DIR"
        ) from None


def core_locks() -> list[Path]:
    """Returns the lock file for each core that this process may run on, and makes their folder.

    Raises:
        StudyError: the folder cannot hold locks, or others could put links in their place.
    """
    folder = lock_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise _unfit(folder, error.strerror or "unknown fault") from None
    if not stat.S_ISDIR(status.st_mode):
        raise _unfit(folder, "it is no folder")
    if not os.environ.get(LOCKS_VARIABLE) and sys.platform != "win32":
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise _unfit(folder, "other users may write to it")
    cores = os.sched_getaffinity(0) if sys.platform == "linux" else {0}
    paths = [folder / f"{core}.lock" for core in sorted(cores)]
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise _unfit(folder, f"{path.name} is no lock file")
    return paths


def lock_folder() -> Path:
    """Returns the folder of the locks on cores.

    It is the same for as long as the machine runs: the folder of a login comes and goes, and a
    user's cache may be shared between machines.
    """
    if named := os.environ.get(LOCKS_VARIABLE):
        return Path(named)
    if sys.platform == "win32":
        return Path(tempfile.gettempdir()) / "autotune-cores"
    return Path(f"/tmp/autotune-cores-{os.getuid()}")


def _unfit(folder: Path, reason: str) -> StudyError:
    return StudyError(
        f"the locks of the cores in {folder} cannot be used ({reason}); remove it, or name another "
        f"folder in {LOCKS_VARIABLE}"
    )
