"""Feeds, and the .npz file in which they go from one process to another."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.deploy.records import read
from autotune.errors import DataError, FormatError
from autotune.facts.arrays import read_arrays

Feed = Mapping[str, NDArray[np.generic]]
"""One call's inputs: an array for each input name."""

_NAMES = "names"


def native(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """Returns the array in the machine's byte order and in C order, a copy only where it must be.

    ONNX Runtime reads an array's bytes without a look at their order.
    """
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def contents(feeds: Iterable[Feed]) -> Iterator[bytes]:
    """Yields every value of the feeds with its name, type and shape, for a digest."""
    for feed in feeds:
        for name in sorted(feed):
            array = np.ascontiguousarray(feed[name])
            yield f"{name} {array.dtype} {array.shape}".encode()
            yield array.tobytes()


def save_samples(samples: Sequence[Feed], path: Path) -> None:
    """Writes samples to an .npz file that :func:`load_samples` reads.

    The names are kept apart from the arrays, as text: an archive cannot hold every name (numpy
    takes the array ``x`` for ``x.npy`` where it holds both).
    """
    names = json.dumps([list(feed) for feed in samples]).encode()
    arrays: dict[str, Any] = {_NAMES: np.frombuffer(names, np.uint8)}
    for i, feed in enumerate(samples):
        arrays.update({f"{i}:{j}": array for j, array in enumerate(feed.values())})
    np.savez(path, **arrays)


def load_samples(path: Path) -> list[dict[str, NDArray[np.generic]]]:
    """Returns the samples in a file of :func:`save_samples`, all arrays as :func:`native` has them.

    Raises:
        DataError: it is no such file, or a damaged one.
    """
    arrays = read_arrays(path)
    try:
        return [
            {name: native(arrays[f"{i}:{j}"]) for j, name in enumerate(names)}
            for i, names in enumerate(_names(arrays[_NAMES]))
        ]
    except (ValueError, RecursionError, KeyError, FormatError):
        raise DataError(f"{path}: its names and its arrays do not match") from None


def _names(text: NDArray[np.generic]) -> tuple[tuple[str, ...], ...]:
    names: tuple[tuple[str, ...], ...] = read(
        tuple[tuple[str, ...], ...], json.loads(text.tobytes()), _NAMES
    )
    return names
