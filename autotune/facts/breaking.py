"""ONNX Runtime's own optimisations that break a valid model, for the children that open it.

With them a model does not open, does not run, or has other answers.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autotune.deploy.options import OPTIMIZERS
from autotune.facts.feeds import Feed

DISABLED = "optimization.disable_specified_optimizers"
"""The session entry with the optimisations that ONNX Runtime leaves out."""

# A study does not measure a default that is further off; quantised models round by less.
_FAR = 0.2


def open_default(path: Path) -> tuple[Any, tuple[str, ...]]:
    """Returns a session of a model with default options, and the optimisations that are off in it.

    Those are off that break the model: it opens without optimisation, and not with them.

    Raises:
        Exception: whatever ONNX Runtime raises, where that is no fault of an optimisation.
    """
    try:
        return _opened(path, ()), ()
    except MemoryError:
        raise
    except Exception:
        if not _opens(path, sorted(OPTIMIZERS)):
            raise
    breaking = culprits(sorted(OPTIMIZERS), lambda names: _opens(path, names))
    return _opened(path, breaking), breaking


def breaking_on(path: Path, sample: Feed, off: Sequence[str]) -> tuple[str, ...]:
    """Returns the optimisations that must be off for the answers of the model as it stands.

    A model that answers otherwise without all of them too, as one with random numbers does, has the
    same as before.

    Args:
        off: Those that are off already.

    Raises:
        Exception: whatever ONNX Runtime raises where the model does not run unoptimised.
    """
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    exact = _session(path, settings).run(None, dict(sample))

    def works(names: Sequence[str]) -> bool:
        try:
            return _are_near(exact, _opened(path, names).run(None, dict(sample)))
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001  # that it does not run is the answer
            return False

    names = sorted(OPTIMIZERS)
    return tuple(off) if works(off) or not works(names) else culprits(names, works)


def _are_near(expected: Sequence[Any], actual: Sequence[Any]) -> bool:
    """Returns whether floats differ by rounding, if by that of eight bits; others tell nothing."""
    pairs = [
        (x.astype(np.float64), y)
        for x, y in zip(expected, actual, strict=True)
        if isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.shape == y.shape
    ]
    finite = [(x[np.isfinite(x)], y[np.isfinite(x)]) for x, y in pairs]
    return all(np.linalg.norm(x - y) <= _FAR * np.linalg.norm(x) for x, y in finite)


def culprits(names: Sequence[str], works: Callable[[Sequence[str]], bool]) -> tuple[str, ...]:
    """Returns few names without which something works, given that it does without all of them."""
    needed: list[str] = []
    left = list(names)
    while not works(needed):
        # the shortest beginning of the list whose last name is needed
        low, high = 0, len(left)
        while high - low > 1:
            middle = (low + high) // 2
            if works([*needed, *left[:middle]]):
                high = middle
            else:
                low = middle
        needed.append(left[high - 1])
        left = left[: high - 1]
    return tuple(sorted(needed))


def _opens(path: Path, off: Sequence[str]) -> bool:
    try:
        _opened(path, off)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001  # the caller says what it means
        return False
    return True


def _opened(path: Path, off: Sequence[str]) -> Any:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    if off:
        settings.add_session_config_entry(DISABLED, ";".join(off))
    return _session(path, settings)


def _session(path: Path, settings: Any) -> Any:
    import onnxruntime

    settings.log_severity_level = 4
    return onnxruntime.InferenceSession(
        str(path), settings, providers=["CPUExecutionProvider"], enable_fallback=0
    )
