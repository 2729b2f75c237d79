"""ONNX Runtime's own optimisations that break a valid model, for the child that opens it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autotune.deploy.options import OPTIMIZERS

DISABLED = "optimization.disable_specified_optimizers"
"""The session entry with the optimisations that ONNX Runtime leaves out."""


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
    return onnxruntime.InferenceSession(
        str(path), settings, providers=["CPUExecutionProvider"], enable_fallback=0
    )
