"""The raw run times of measurements, a file for each; statistics are derived from them."""

import itertools
from pathlib import Path

import numpy as np

from autotune.deploy.files import create
from autotune.errors import FormatError, StorageError
from autotune.measure.duet import Duet


def keep_raw(duet: Duet, folder: Path, name: str) -> str:
    """Writes a duet's raw times to a new file in `folder`; returns its name.

    Args:
        duet: The turns.
        folder: Created if it is missing.
        name: The file is the first of ``NAME-1.npz``, ``NAME-2.npz`` ... that does not exist.

    Raises:
        StorageError: the disk gave out.
    """
    numbered = (f"{name}-{i}.npz" for i in itertools.count(1))
    file = next(file for file in numbered if not (folder / file).exists())
    try:
        folder.mkdir(exist_ok=True)
        write_raw(duet, folder / file)
    except (OSError, FormatError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StorageError(
            f"cannot write raw run times to {folder / file}: {reason}; make room and "
            "type the same command again"
        ) from None
    return file


def write_raw(duet: Duet, path: Path) -> None:
    """Writes a duet's raw times to a new file.

    It has, for each side, all runs one after another, and the runs of each turn. The arrays are
    ``reference_ns``, ``reference_runs``, ``candidate_ns``, ``candidate_runs``,
    ``candidate_cpu_ns`` (one per turn), ``before`` (number of the reference's turn before each of
    the candidate's) and ``quiet_ms``. With several clients ``reference_mean_ms`` and
    ``candidate_mean_ms`` have the estimate of each turn.
    """
    arrays: dict[str, np.ndarray] = {}
    for side, turns in (("reference", duet.reference), ("candidate", duet.candidate)):
        arrays[f"{side}_ns"] = np.asarray([ns for turn in turns for ns in turn.run_ns])
        arrays[f"{side}_runs"] = np.asarray([len(turn.run_ns) for turn in turns])
        if turns[0].mean_ms is not None:
            arrays[f"{side}_mean_ms"] = np.asarray([turn.mean_ms for turn in turns])
    with create(path) as file:
        np.savez_compressed(
            file,
            **arrays,  # type: ignore[arg-type]  # numpy's stub takes them for allow_pickle
            candidate_cpu_ns=np.asarray([turn.cpu_ns for turn in duet.candidate]),
            before=np.asarray(duet.before),
            quiet_ms=np.asarray(duet.quiet_ms),
        )
