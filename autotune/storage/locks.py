"""Locks: one driver for a folder, one for a database file, and one for each core of a machine."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import filelock

from autotune.errors import StudyError

_CORES = "autotune-cores"


@contextlib.contextmanager
def sole_driver(folder: Path, database: Path | None = None) -> Iterator[None]:
    """Holds the folder, the database file and the cores that this process may use.

    Two studies on the same cores would measure each other; on cores of their own (taskset, a
    cpuset) they may run side by side.

    Raises:
        StudyError: another process holds one of them.
    """
    with contextlib.ExitStack() as held:
        held.enter_context(
            _lock(
                folder / ".lock",
                f"another autotune is at work in {folder}; wait for it, or give this one --out DIR",
            )
        )
        if database is not None and database.resolve().parent != folder.resolve():
            held.enter_context(
                _lock(
                    database.with_name(f".{database.name}.lock"),
                    f"another autotune writes to {database}, and SQLite serves one; for many "
                    "machines use --storage postgresql://...",
                )
            )
        for path in _core_locks():
            held.enter_context(
                _lock(
                    path,
                    "another autotune measures on these cores, and the two would measure each "
                    "other; wait for it, or give each cores of its own (taskset -c)",
                )
            )
        yield


def _core_locks() -> list[Path]:
    """Returns a file for each core that this process may run on, shared by all users."""
    place = Path(tempfile.gettempdir()) / _CORES
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o777)
        place.chmod(0o1777)  # the umask has cut it
    cores = os.sched_getaffinity(0) if sys.platform == "linux" else {0}
    return [place / f"{core}.lock" for core in sorted(cores)]


@contextlib.contextmanager
def _lock(path: Path, refusal: str) -> Iterator[None]:
    lock = filelock.FileLock(path, mode=0o666)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise StudyError(refusal) from None
    except OSError as error:
        raise StudyError(f"cannot write to {path.parent}: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()
