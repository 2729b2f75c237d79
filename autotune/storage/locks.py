"""Locks: one study at a time in a folder, on a database file, and on each core of a machine."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import filelock

from autotune.errors import StudyError

_CORES = "autotune-cores"
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
    on_wait: Callable[[str], None] = lambda _: None,
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
        on_wait: Called with a sentence before the wait begins, once for each kind of conflict.
        poll_s: Time between two looks at a lock that another process holds.

    Raises:
        StudyError: another process holds one of them and `wait` is false, or a lock file cannot be
            written.
    """
    announced: set[str] = set()

    def announce(conflict: str) -> None:
        if conflict not in announced:
            announced.add(conflict)
            on_wait(f"{conflict}; waiting for it to end")

    with contextlib.ExitStack() as held:
        for claim in _claims(folder, database):
            lock = filelock.FileLock(claim.path, mode=0o666)
            if not _acquire(lock):
                if not wait:
                    raise StudyError(
                        f"{claim.conflict}. Wait for it to end (`autotune study --wait` does), "
                        f"or {claim.remedy}"
                    )
                announce(claim.conflict)
                lock.acquire(poll_interval=poll_s)
            held.callback(lock.release)
        yield


def _acquire(lock: filelock.BaseFileLock) -> bool:
    """Takes a lock without waiting; returns whether it was free."""
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return False
    except OSError as error:
        folder = Path(lock.lock_file).parent
        raise StudyError(f"cannot write to {folder}: {error.strerror}") from None
    return True


def _claims(folder: Path, database: Path | None) -> Iterator[_Claim]:
    """Gives what a study claims, in the order in which every study claims it."""
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
    for path in _core_locks():
        yield _Claim(
            path=path,
            conflict="another autotune measures on these cores, and the two would disturb "
            "each other's timings",
            remedy="give each of them cores of its own (taskset -c)",
        )


def _core_locks() -> list[Path]:
    """Returns a lock file for each core that this process may run on, shared by all users."""
    place = Path(tempfile.gettempdir()) / _CORES
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o777)
        place.chmod(0o1777)  # mkdir subtracts the umask
    cores = os.sched_getaffinity(0) if sys.platform == "linux" else {0}
    return [place / f"{core}.lock" for core in sorted(cores)]
