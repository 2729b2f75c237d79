"""The graph that ONNX Runtime makes of a model, for the children that look into it."""

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

# Saving the optimised graph takes a copy of all weights; above this it is not worth knowing.
_LARGEST_BYTES = 1 << 30


def optimised_model(path: Path) -> onnx.ModelProto | None:
    """Returns the model in the file `path` as ONNX Runtime's default optimises it.

    Returns None where it is too large to be written out, or cannot be written.
    """
    import onnxruntime

    if path.stat().st_size > _LARGEST_BYTES:
        return None
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        settings = onnxruntime.SessionOptions()
        settings.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        try:
            onnxruntime.InferenceSession(
                str(path), settings, providers=["CPUExecutionProvider"], enable_fallback=0
            )
            return onnx.load(settings.optimized_model_filepath)
        except Exception as error:  # noqa: BLE001  # models beyond 2 GiB cannot be saved whole
            sys.stderr.write(f"the optimised graph could not be read: {error}\n")
            return None


def count_subnormals(array: np.ndarray) -> int:
    """Returns how many numbers of an fp32 array are subnormal."""
    bits = array.view(np.uint32) & 0x7FFFFFFF
    return int(((bits > 0) & (bits < 0x00800000)).sum())
