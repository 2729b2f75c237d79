"""A run's outputs as plain arrays."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.facts.feeds import Feed, load_samples, save_samples

# The end of a name that `flatten` makes for a part of an output.
_PART = re.compile(r"(\[[0-9]+\]|\.length|\.keys|\.values)'*\Z")


def flatten(names: Sequence[str], values: Sequence[object]) -> dict[str, NDArray[np.generic]]:
    """Returns a run's outputs as arrays that can be saved without pickling.

    Sequences become one array for each element (``y[0]``, ``y[1]``) and one for their length
    (``y.length``), maps one for their keys and one for their values (``y.keys``, ``y.values``).
    Missing optional outputs are left out. An output whose own name has such an end gets an
    apostrophe (``y[0]'``), so that no two arrays have one name.
    """
    flat: dict[str, NDArray[np.generic]] = {}
    for name, value in zip(names, values, strict=True):
        flat.update(_parts(f"{name}'" if _PART.search(name) else name, value))
    return flat


def output_of(name: str) -> str:
    """Returns the name of the output that an array of :func:`flatten` is, or is a part of."""
    while (end := _PART.search(name)) and not name.endswith("'"):
        name = name[: end.start()]
    return name[:-1] if end else name


def _parts(name: str, value: object) -> Mapping[str, NDArray[np.generic]]:
    """Returns the arrays of one output, or of one element of a sequence."""
    if isinstance(value, list):
        parts = {f"{name}.length": np.asarray(len(value))}
        for i, element in enumerate(value):
            parts.update(_parts(f"{name}[{i}]", element))
        return parts
    if isinstance(value, dict):
        keys = sorted(value)
        return {
            f"{name}.keys": np.asarray(keys),
            f"{name}.values": np.asarray([value[key] for key in keys]),
        }
    if value is None:
        return {}
    array = np.asarray(value)
    return {name: array.astype(str) if array.dtype == object else array}


def save_outputs(
    session: Any, samples: Path, target: Path, run: Callable[[Feed], Sequence[Any]] | None = None
) -> None:
    """Runs the samples of a file and writes their outputs, flat, to another one.

    Args:
        samples: The file of samples, as :func:`save_samples` writes it.
        run: Returns the outputs of a sample; None runs the session on arrays.
    """
    names = [output.name for output in session.get_outputs()]
    run = run or (lambda feed: session.run(None, feed))
    outputs = [flatten(names, run(feed)) for feed in load_samples(samples)]
    save_samples(outputs, target)
