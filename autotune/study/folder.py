"""The folder that a study writes to, and what it must not write over."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from autotune.deploy.files import is_file
from autotune.deploy.providers import CACHE_FOLDER
from autotune.errors import AutotuneError, StudyError
from autotune.process.scratch import carries_mark, write_mark
from autotune.results.result import StudyResult
from autotune.results.writing import (
    CACHE,
    PAGE,
    RESULT_FILES,
    entries_like,
    refuse_overwriting,
    repair,
)
from autotune.search.context import Context
from autotune.space.files import presets
from autotune.storage.database import Place
from autotune.storage.locks import DATABASE, make_folder
from autotune.study.options import StudyOptions
from autotune.study.seams import SAMPLES

_WRITTEN = (
    *RESULT_FILES,
    PAGE,
    CACHE,
    CACHE_FOLDER,
    SAMPLES,
    DATABASE,
    f"{DATABASE}-*",
    ".lock",
)
"""Names of the files and folders that a study writes to its folder, as patterns."""

_TAKEN = (*RESULT_FILES, PAGE, CACHE, CACHE_FOLDER, SAMPLES)
"""Those that another program may have written, with something else in them."""


def check_folder(options: StudyOptions, ctx: Context, place: Place) -> None:
    """Refuses a folder in which the study would write over what it reads, or another's files.

    Raises:
        StudyError: it would, or the folder is a file.
    """
    folder = ctx.folder
    if folder.exists() and not folder.is_dir():
        raise StudyError(f"{folder} is a file; name another folder with --out DIR")
    refuse_overwriting(_written(folder, place), _inputs(options, ctx))
    if _is_own(folder):
        return
    if taken := entries_like(folder, _TAKEN):
        raise StudyError(
            f"{taken[0]} is there already, and no study of autotune wrote it; nothing is "
            "overwritten: name another folder with --out DIR"
        )


@contextlib.contextmanager
def emptied_if_refused(folder: Path) -> Iterator[Callable[[], None]]:
    """Empties a folder that was empty if the study is refused before anything is measured.

    Yields what is called once the measuring begins.
    """
    was_empty = not folder.exists() or all(entry.name == ".lock" for entry in folder.iterdir())
    begun: list[bool] = []
    try:
        yield lambda: begun.append(True)
    except AutotuneError:
        if was_empty and not begun:
            for entry in entries_like(folder, (CACHE, DATABASE, f"{DATABASE}-*")):
                with contextlib.suppress(OSError):
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        raise


def take_folder(folder: Path) -> None:
    """Marks the folder of a study as its own, and completes what an ended process left there.

    Raises:
        StorageError: writing to the disk failed.
        StudyError: the folder cannot be made.
    """
    cache = folder / CACHE
    make_folder(cache)
    if not carries_mark(cache):
        write_mark(cache)
    repair(folder)


def _is_own(folder: Path) -> bool:
    """Returns whether a study of autotune has begun in the folder."""
    has_result = StudyResult.found_in(folder) is not None
    return has_result or carries_mark(folder / CACHE) or is_file(folder / DATABASE)


def _written(folder: Path, place: Place) -> list[Path]:
    """Returns what a study writes to its folder, as far as it is there, and its database."""
    database: list[Path] = []
    if place.file is not None:
        names = [f"{place.file.name}{end}" for end in ("", "-journal", "-wal", "-shm")]
        database = [place.file.with_name(name) for name in names]
    return [*entries_like(folder, _WRITTEN), *database]


def _inputs(options: StudyOptions, ctx: Context) -> list[Path]:
    """Returns the files and folders that a study reads."""
    inputs = [ctx.model.path, *ctx.model.data_files, *options.first]
    if options.data is not None:
        inputs += [options.data, *options.data.glob("*.npz")]
    if options.space not in presets():
        inputs.append(Path(options.space))
    return inputs
