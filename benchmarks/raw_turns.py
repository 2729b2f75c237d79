"""The raw turns of a measurement, as the folder `samples/` of a study keeps them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Raw = dict[str, Any]


def turns_of(raw: Raw, side: str) -> NDArray[np.float64]:
    """Returns the median run of each turn of ``reference`` or ``candidate``, in ns."""
    ends = np.cumsum(raw[f"{side}_runs"])[:-1]
    turns = np.split(raw[f"{side}_ns"], ends)
    return np.asarray([float(np.median(turn)) for turn in turns])


def ratios_of(raw: Raw) -> NDArray[np.float64]:
    """Returns each turn of the candidate over the mean of the reference's turns around it."""
    reference, before = turns_of(raw, "reference"), raw["before"]
    around: NDArray[np.float64] = (reference[before] + reference[before + 1]) / 2
    return turns_of(raw, "candidate") / around
