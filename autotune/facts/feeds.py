"""Feeds, and the .npz file in which they go from one process to another."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import DataError, shown
from autotune.facts.arrays import read_arrays

Feed = Mapping[str, NDArray[np.generic]]
"""One call's inputs: an array for each input name."""


def save_samples(samples: Sequence[Feed], path: Path) -> None:
    """Writes samples to an .npz file that :func:`load_samples` reads."""
    arrays: dict[str, Any] = {
        f"{i}:{name}": array for i, feed in enumerate(samples) for name, array in feed.items()
    }
    # a model without inputs has empty samples: an array without a name says that there is one
    arrays |= {f"{i}:": np.zeros(0) for i, feed in enumerate(samples) if not feed}
    np.savez(path, **arrays)


def load_samples(path: Path) -> list[dict[str, NDArray[np.generic]]]:
    """Returns the samples in a file of :func:`save_samples`.

    Raises:
        DataError: it is no such file, or a damaged one.
    """
    samples: dict[int, dict[str, NDArray[np.generic]]] = {}
    for key, array in read_arrays(path).items():
        index, _, name = key.partition(":")
        if not re.fullmatch("[0-9]{1,9}", index):
            raise DataError(f"{path}: the array {shown(key)} belongs to no sample")
        sample = samples.setdefault(int(index), {})
        if name:
            sample[name] = array
    return [samples[index] for index in sorted(samples)]
