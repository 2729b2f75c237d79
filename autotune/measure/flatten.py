"""A run's outputs as plain arrays."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def flatten(names: Sequence[str], values: Sequence[object]) -> dict[str, NDArray[np.generic]]:
    """Returns a run's outputs as arrays that can be saved without pickling.

    Sequences become one array for each element, maps one for their keys and one for their values,
    missing optional outputs are left out.
    """
    flat: dict[str, NDArray[np.generic]] = {}
    for name, value in zip(names, values, strict=True):
        if isinstance(value, list):
            inner = [f"{name}[{i}]" for i in range(len(value))]
            flat[f"{name}.length"] = np.asarray(len(value))
            flat.update(flatten(inner, value))
        elif isinstance(value, dict):
            keys = sorted(value)
            flat[f"{name}.keys"] = np.asarray(keys)
            flat[f"{name}.values"] = np.asarray([value[key] for key in keys])
        elif value is not None:
            array = np.asarray(value)
            flat[name] = array.astype(str) if array.dtype == object else array
    return flat
