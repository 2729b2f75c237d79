"""Feeds, and the .npz file in which they go from one process to another."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Feed = Mapping[str, NDArray[np.generic]]
"""One call's inputs: an array for each input name."""


def save_samples(samples: Sequence[Feed], path: Path) -> None:
    """Writes samples to an .npz file that :func:`load_samples` reads."""
    arrays: dict[str, Any] = {
        f"{i}:{name}": array for i, feed in enumerate(samples) for name, array in feed.items()
    }
    np.savez(path, **arrays)


def load_samples(path: Path) -> list[dict[str, NDArray[np.generic]]]:
    """Returns the samples in a file of :func:`save_samples`."""
    samples: dict[int, dict[str, NDArray[np.generic]]] = {}
    with np.load(path, allow_pickle=False) as archive:
        for key in archive.files:
            index, _, name = key.partition(":")
            samples.setdefault(int(index), {})[name] = archive[key]
    return [samples[index] for index in sorted(samples)]
