"""Outputs that a child wrote to a file, which may hold anything: it ran a stranger's model."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.errors import DataError
from autotune.facts.feeds import load_samples
from autotune.process.child import ChildFailure


def read_outputs(path: Path) -> list[dict[str, NDArray[np.generic]]]:
    """Returns each sample's outputs from the file that a child was asked to write to `path`.

    Raises:
        ChildFailure: of kind ``protocol``; it wrote no file, or something else.
    """
    try:
        # the child could have made a link to a file of the user's
        if path.is_symlink():
            raise ChildFailure("protocol", "its outputs are a link, not a file")
        return load_samples(path)
    except DataError as error:
        raise ChildFailure("protocol", f"its outputs cannot be read ({error})") from None
