"""The mark of folders that autotune made, and may therefore remove.

A folder of the right name in a shared place may still belong to somebody else. autotune removes a
folder without asking only if the folder holds a file that autotune wrote into it when it made it.
"""

import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

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


def is_own_file(path: Path) -> bool:
    """Returns whether `path` is a regular file of this user and no link."""
    return _is_own(path, stat.S_ISREG)


def remove_marked(folder: Path) -> None:
    """Removes a folder that carries the mark, as far as possible; other folders stay.

    The mark goes last: a removal that is cut short can be taken up again.
    """
    if not carries_mark(folder):
        return
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.name != MARK_FILE:
                _remove(path)
        if [path.name for path in folder.iterdir()] == [MARK_FILE]:
            (folder / MARK_FILE).unlink()
            folder.rmdir()


def _remove(path: Path) -> None:
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
