"""Outputs that a child wrote to a file, which may hold anything: it ran a stranger's model."""

import stat
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.facts.feeds import load_samples
from autotune.process.child import ChildFailure

# The parent holds them in memory.
_LARGEST_BYTES = 4 << 30


def read_outputs(path: Path) -> list[dict[str, NDArray[np.generic]]]:
    """Returns each sample's outputs from the file that a child was asked to write to `path`.

    Raises:
        ChildFailure: of kind ``protocol``; it wrote no file, or something else.
    """
    try:
        # reading a pipe or a device would not end
        if not stat.S_ISREG(path.lstat().st_mode):
            raise ValueError("no plain file")
        with zipfile.ZipFile(path) as archive:
            size_bytes = sum(item.file_size for item in archive.infolist())
        if size_bytes > _LARGEST_BYTES:
            raise ValueError("too large to compare")
        samples = load_samples(path)
        # numpy returns a member that is no array as bytes
        if not all(isinstance(array, np.ndarray) for feed in samples for array in feed.values()):
            raise ValueError("no array")
    except Exception as error:  # noqa: BLE001  # a stranger's file fails in any way
        raise ChildFailure("protocol", f"its outputs cannot be read ({error})") from None
    return samples
