"""Locks: one study at a time in a folder, on a database file, and on each core of a machine."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock

from autotune.errors import CannotMeasureError, RequestError, StudyError, system_fault
from autotune.storage.core_locks import (
    VARIABLE,
    LockFolder,
    UnfitPlaceError,
    holder_of,
    lock_folders,
)

_POLL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class _Claim:
    """A lock file, and what to say where another process holds it.

    Attributes:
        path: The lock file.
        conflict: What the other process does.
        remedy: What the user can do instead of waiting.
    """

    path: Path
    conflict: str
    remedy: str


@contextlib.contextmanager
def exclusive_use(
    folder: Path,
    database: Path | None = None,
    *,
    wait: bool = False,
    on_note: Callable[[str], None] = lambda _: None,
    poll_s: float = _POLL_S,
) -> Iterator[None]:
    """Holds the folder, the database file and the cores that this process may use.

    Two studies on the same cores would disturb each other's timings; on cores of their own
    (taskset, a cpuset) they may run side by side. The locks are taken in the same order by every
    process, so two processes that wait never wait for each other.

    Args:
        folder: The folder of the study.
        database: The SQLite file that keeps its trials, if there is one.
        wait: Whether to wait until all of them are free.
        on_note: Called with a sentence before the wait begins, once for each kind of conflict, and
            where the locks of the cores cannot be used.
        poll_s: Time between two looks at a lock that another process holds.

    Raises:
        StudyError: another process holds one of them and `wait` is false, or the lock file of the
            folder or the database cannot be written.
    """
    announced: set[str] = set()

    def announce(sentence: str) -> None:
        if sentence not in announced:
            announced.add(sentence)
            on_note(sentence)

    def take(claim: _Claim) -> None:
        lock = filelock.FileLock(claim.path, mode=0o666)
        if not _acquire(lock):
            if not wait:
                raise StudyError(
                    f"{claim.conflict}. Wait for it to end (`autotune study --wait` does), "
                    f"or {claim.remedy}"
                )
            announce(f"{claim.conflict}; waiting for it to end")
            lock.acquire(poll_interval=poll_s)
        held.callback(lock.release)

    with contextlib.ExitStack() as held:
        _take_files(folder, database, take)
        _take_cores(take, announce)
        yield


def _take_files(folder: Path, database: Path | None, take: Callable[[_Claim], None]) -> None:
    """Takes the locks of the folder and of the database."""
    try:
        for claim in _claims(folder, database):
            take(claim)
    except OSError as error:
        if not isinstance(system_fault(error), RequestError):  # a full disk, too few files
            raise
        raise StudyError(f"cannot write to {folder}: {error.strerror}") from None


def _take_cores(take: Callable[[_Claim], None], announce: Callable[[str], None]) -> None:
    """Takes the locks of the cores; a place that cannot hold them is announced and passed over."""
    for lock_folder in lock_folders():
        try:
            lock_folder.make()
            for path in lock_folder.files():
                take(_core_claim(lock_folder, path))
        except UnfitPlaceError as unfit:
            announce(lock_folder.note(unfit))
        except OSError as error:
            if isinstance(system_fault(error), CannotMeasureError):
                raise
            announce(lock_folder.note(error.strerror))


def _acquire(lock: filelock.BaseFileLock) -> bool:
    """Takes a lock without waiting; returns whether it was free.

    Raises:
        OSError: the lock file cannot be opened.
    """
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return False
    return True


def _claims(folder: Path, database: Path | None) -> Iterator[_Claim]:
    """Gives the files that a study claims, in the order in which every study claims them."""
    yield _Claim(
        path=folder / ".lock",
        conflict=f"another autotune is at work in {folder}",
        remedy="give this one a folder of its own with --out DIR",
    )
    if database is not None and database.resolve().parent != folder.resolve():
        yield _Claim(
            path=database.with_name(f".{database.name}.lock"),
            conflict=f"another autotune writes to {database}, and SQLite serves one at a time",
            remedy="use --storage postgresql://..., which serves many machines",
        )


def _core_claim(lock_folder: LockFolder, path: Path) -> _Claim:
    """Returns the claim on a core."""
    holder = holder_of(path)
    remedy = "give each of them cores of its own (taskset -c)"
    if lock_folder.is_shared:
        remedy += f"; if the holder is no study, name another folder of locks in {VARIABLE}"
    return _Claim(
        path=path,
        conflict=f"another autotune measures on these cores{f' ({holder})' if holder else ''}, "
        "and the two would disturb each other's timings",
        remedy=remedy,
    )
