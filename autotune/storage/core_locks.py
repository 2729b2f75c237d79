"""Where the locks on the cores of a machine lie, and what makes such a place unfit.

Two studies on one core disturb each other, of one user or of two, with one TMPDIR or with two. So
the locks have two fixed places: a folder of this user, and a folder that all users share. Any user
can spoil the shared folder: it can be a link, a file, or closed to others. Then studies of other
users go unnoticed, and a note says how to mend that; the study goes on. The variable AUTOTUNE_LOCKS
names one folder instead of both.
"""

import contextlib
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

VARIABLE = "AUTOTUNE_LOCKS"
"""Environment variable that names the folder of the locks on cores."""

SHARED = Path("/tmp" if os.name == "posix" else tempfile.gettempdir(), "autotune-cores")
"""The folder that all users of a machine share, unless the variable names another."""


class UnfitPlaceError(Exception):
    """A place cannot hold locks; the text says why."""


@dataclass(frozen=True, kw_only=True)
class LockFolder:
    """A folder that holds a lock file for each core.

    Attributes:
        path: The folder.
        is_shared: Whether all users of the machine write to it.
    """

    path: Path
    is_shared: bool

    def make(self) -> None:
        """Makes the folder if it is not there.

        Raises:
            UnfitPlaceError: it cannot hold locks.
        """
        try:
            with contextlib.suppress(FileExistsError):
                self.path.mkdir(mode=0o700)
                if self.is_shared:
                    self.path.chmod(0o1777)  # mkdir subtracts the umask
            status = self.path.lstat()
        except OSError as error:
            raise UnfitPlaceError(error.strerror or "unknown fault") from None
        if not stat.S_ISDIR(status.st_mode):
            raise UnfitPlaceError("it is no folder")
        if self.is_shared:
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise UnfitPlaceError("this user may not write to it")
        elif sys.platform != "win32" and (status.st_uid != os.getuid() or status.st_mode & 0o022):
            raise UnfitPlaceError("other users may write to it")

    def files(self) -> list[Path]:
        """Returns the lock file for each core that this process may run on.

        Raises:
            UnfitPlaceError: one of them is no file that can be locked.
        """
        cores = os.sched_getaffinity(0) if sys.platform == "linux" else {0}
        paths = [self.path / f"{core}.lock" for core in sorted(cores)]
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                    raise UnfitPlaceError(f"{path.name} is no lock file")
        return paths

    def note(self, reason: object) -> str:
        """Returns what it means that the folder is unfit, and what mends it."""
        effect = "of other users" if self.is_shared else "of yours"
        return (
            f"the locks of the cores in {self.path} cannot be used ({reason}), so other studies "
            f"{effect} on these cores may go unnoticed and disturb the timings; remove "
            f"{self.path}{_owner(self.path)}, or name another folder in {VARIABLE}"
        )


def lock_folders() -> list[LockFolder]:
    """Returns the folders whose locks a study takes, in the order in which all studies do."""
    if named := os.environ.get(VARIABLE):
        return [LockFolder(path=Path(named), is_shared=True)]
    return [
        LockFolder(path=own_folder(), is_shared=False),
        LockFolder(path=SHARED, is_shared=True),
    ]


def own_folder() -> Path:
    """Returns the folder of this user, which does not depend on TMPDIR."""
    if sys.platform == "win32":
        return Path(tempfile.gettempdir()) / "autotune-own-cores"
    runtime = Path(f"/run/user/{os.getuid()}")
    with contextlib.suppress(OSError):
        if runtime.lstat().st_uid == os.getuid():
            return runtime / "autotune-cores"
    return SHARED.with_name(f"{SHARED.name}-{os.getuid()}")


def holder_of(lock_file: Path) -> str:
    """Returns the process that holds a lock, and its user, in words; empty where that is unknown.

    Linux lists the locks of all processes that this one can see.
    """
    for pid in _holders(lock_file):
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            return f"process {pid}, {process.name()}, of {process.username()}"
    return ""


def _holders(lock_file: Path) -> Iterator[int]:
    try:
        inode = lock_file.stat().st_ino
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        match = re.match(r"[0-9]+: FLOCK +\S+ +\S+ +([0-9]+) [0-9a-f:]+:([0-9]+) ", line)
        if match and int(match[2]) == inode:
            yield int(match[1])


def _owner(path: Path) -> str:
    """Returns who can remove a path of another user."""
    try:
        owner = path.owner() if path.lstat().st_uid != os.getuid() else ""
    except (OSError, KeyError, NotImplementedError, AttributeError):
        owner = ""
    if owner in ("", "root"):
        return " as root" if owner else ""
    return f" as root or as {owner}"
