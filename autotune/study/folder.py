"""The folder that a study writes to, and what it must not write over."""

from pathlib import Path

from autotune.deploy.providers import CACHE_FOLDER
from autotune.errors import StudyError
from autotune.results.writing import CACHE, PAGE, RESULT_FILES, entries_like, refuse_overwriting
from autotune.search.context import Context
from autotune.space.files import presets
from autotune.storage.database import Place
from autotune.storage.locks import DATABASE
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


def make_folder(options: StudyOptions, ctx: Context, place: Place) -> None:
    """Makes the folder of a study, unless the study would write over what it reads.

    Raises:
        RequestError: it would.
        StudyError: the folder cannot be made.
    """
    refuse_overwriting(_written(ctx.folder, place), _inputs(options, ctx))
    try:
        ctx.folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise StudyError(f"{ctx.folder} is a file; name another folder with --out DIR") from None
    except OSError as error:
        raise StudyError(
            f"cannot make the folder {ctx.folder}: {error.strerror}; name another with --out DIR"
        ) from None


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
