"""Outputs that a child wrote to a file, which may hold anything: it ran a stranger's model."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.errors import DataError
from autotune.facts.feeds import load_samples
from autotune.measure.fidelity import OutputMismatchError, Outputs
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


def samples_of(
    batches: Sequence[Outputs], size: int, count: int
) -> list[dict[str, NDArray[np.generic]]]:
    """Returns the outputs of single samples, so that errors compare with those of other sizes.

    Args:
        batches: The outputs of each batch.
        size: Samples of a batch.
        count: How many samples there are; the last batch may repeat some.

    Raises:
        OutputMismatchError: the first dimension of an output does not count the samples.
    """
    samples = []
    for outputs in batches:
        for name, array in outputs.items():
            if not array.ndim or len(array) % size:
                raise OutputMismatchError(
                    f"the output '{name}' has the shape {list(array.shape)} for a batch of {size}, "
                    f"and its first dimension must be a multiple of {size}"
                )
        parts = {name: np.split(array, size) for name, array in outputs.items()}
        samples += [{name: part[i] for name, part in parts.items()} for i in range(size)]
    return samples[:count]
