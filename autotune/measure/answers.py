"""Outputs on their way from a child: a file that a stranger's process wrote."""

import stat
import zipfile
from pathlib import Path

import numpy as np

from autotune.facts.feeds import load_samples
from autotune.process.child import ChildFailure

# The parent holds them in memory.
_LARGEST_BYTES = 4 << 30


def read(path: Path) -> list[dict[str, np.ndarray]]:
    """Returns the samples in the file that a child was told to write to `path`.

    Raises:
        ChildFailure: of kind ``protocol``; it wrote none, or something else.
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
        # numpy hands a member that is no array on as bytes
        if not all(isinstance(array, np.ndarray) for feed in samples for array in feed.values()):
            raise ValueError("no array")
    except Exception as error:  # noqa: BLE001  # a stranger's file fails in any way
        raise ChildFailure("protocol", f"its outputs cannot be read ({error})") from None
    return samples
