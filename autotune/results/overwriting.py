"""What autotune writes must not be what it reads."""

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from autotune.errors import StudyError


def refuse_overwriting(written: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Refuses inputs that lie where something will be written, directly or through a link.

    Args:
        written: Files and folders that will be written, as far as they are there.
        inputs: Files and folders that are read; all of them are there.

    Raises:
        StudyError: an input is one of `written`, or lies in one of them.
    """
    for path in inputs:
        place = path.resolve()
        for entry in written:
            target = entry.resolve()
            # a hard link is the same file under another path
            same = target == place or (target.exists() and target.samefile(place))
            if same or target in place.parents:
                raise StudyError(
                    f"{path} would be overwritten: autotune writes to {entry}. Name another folder "
                    "with --out DIR, or move the file"
                )


def entries_like(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Returns the entries of a folder whose names match a pattern; empty where it is none.

    Raises:
        StudyError: the folder cannot be read.
    """
    if not folder.is_dir():
        return []
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise StudyError(f"cannot read the folder {folder}: {error.strerror}") from None
    return [entry for entry in entries if any(fnmatch(entry.name, p) for p in patterns)]
