"""How much a comparison of answers proves, by the outputs of the unoptimised model."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.deploy.config import Coverage
from autotune.measure.fidelity import Outputs

# Names of arrays that say how an output is built: they hardly ever vary.
_FORMS = (".length", ".keys")


def coverage_of(references: Sequence[Outputs], repeat_error: float) -> Coverage:
    """Returns what a comparison with these outputs covers.

    Args:
        references: The unoptimised model's outputs, sample by sample.
        repeat_error: Relative L2 error between two runs of it on the same samples.
    """
    arrays = [array for outputs in references for array in outputs.values()]
    numbers = sum(array.size for array in arrays)
    finite = sum(int(_finite(array).sum()) for array in arrays)
    return Coverage(
        samples=len(references),
        share=finite / numbers if numbers else 1.0,
        constant_outputs=tuple(
            name
            for name in _names(references)
            if not name.endswith(_FORMS) and _is_constant(_arrays(references, name))
        ),
        repeat_error=repeat_error,
    )


def incomparable(references: Sequence[Outputs]) -> str | None:
    """Returns why no answers can be compared with these outputs; None where they can."""
    if not _names(references):
        return "it has no outputs"
    for name in _names(references):
        arrays = _arrays(references, name)
        if any(array.size for array in arrays) and not any(_finite(a).any() for a in arrays):
            return f"all numbers of the output '{name}' are NaN or infinite"
    return None


def _names(references: Sequence[Outputs]) -> list[str]:
    return list(dict.fromkeys(name for outputs in references for name in outputs))


def _arrays(references: Sequence[Outputs], name: str) -> list[NDArray[np.generic]]:
    """Returns the arrays of one output; a sequence may lack some of its elements."""
    return [outputs[name] for outputs in references if name in outputs]


def _finite(array: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Returns where the array has values that can be compared."""
    if array.dtype.kind not in "fc":
        return np.ones(array.shape, np.bool_)
    finite: NDArray[np.bool_] = np.isfinite(array)
    return finite


def _is_constant(arrays: Sequence[NDArray[np.generic]]) -> bool:
    """Returns whether an output is empty, or the same for all of several samples."""
    first, *others = arrays
    if not any(array.size for array in arrays):
        return True
    equal_nan = first.dtype.kind in "fc"
    return bool(others) and all(np.array_equal(first, a, equal_nan=equal_nan) for a in others)
