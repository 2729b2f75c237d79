"""The raw run times of measurements, a file for each; statistics are derived from them."""

import itertools
from pathlib import Path

import numpy as np

from autotune.deploy.files import create
from autotune.errors import FormatError, StorageError
from autotune.measure.duet import Duet


def keep_raw(duet: Duet, folder: Path, name: str) -> str:
    """Writes a duet's raw times to a new file in `folder`; returns its name.

    It has, for each side, all runs one after another, and the runs of each time slice. The arrays
    are ``reference_ns``, ``reference_runs``, ``configuration_ns``, ``configuration_runs``,
    ``configuration_cpu_ns`` (one per time slice), ``before`` (number of the reference's time slice
    before each of the configuration's) and ``undisturbed_ms``. With several clients
    ``reference_mean_ms`` and ``configuration_mean_ms`` have the estimate of each time slice.

    Args:
        folder: Created if it is missing.
        name: The file is the first of ``NAME-1.npz``, ``NAME-2.npz`` ... that does not exist.

    Raises:
        StorageError: writing to disk failed.
    """
    numbered = (f"{name}-{i}.npz" for i in itertools.count(1))
    file = next(file for file in numbered if not (folder / file).exists())
    try:
        folder.mkdir(exist_ok=True)
        with create(folder / file) as archive:
            np.savez_compressed(archive, **_arrays(duet))  # type: ignore[arg-type]  # allow_pickle
    except (OSError, FormatError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StorageError(
            f"cannot write raw run times to {folder / file}: {reason}; make room and "
            "type the same command again"
        ) from None
    return file


def _arrays(duet: Duet) -> dict[str, np.ndarray]:
    arrays = {
        "configuration_cpu_ns": np.asarray([each.cpu_ns for each in duet.configuration]),
        "before": np.asarray(duet.before),
        "undisturbed_ms": np.asarray(duet.undisturbed_ms),
    }
    for side, turns in (("reference", duet.reference), ("configuration", duet.configuration)):
        arrays[f"{side}_ns"] = np.asarray([ns for time_slice in turns for ns in time_slice.run_ns])
        arrays[f"{side}_runs"] = np.asarray([len(time_slice.run_ns) for time_slice in turns])
        if turns[0].mean_ms is not None:
            arrays[f"{side}_mean_ms"] = np.asarray([time_slice.mean_ms for time_slice in turns])
    return arrays
