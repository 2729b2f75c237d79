"""The graph that ONNX Runtime makes of a model, for the children that look into it."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

from autotune.facts.graphs import all_initializers
from autotune.facts.weights import read

# Saving the optimised graph takes a copy of the weights in the file; above this it is not worth
# knowing.
_LARGEST_BYTES = 1 << 30


def optimised_model(path: Path) -> onnx.ModelProto | None:
    """Returns the model in the file `path` as ONNX Runtime's default optimises it.

    Weights in external files stay there: :func:`optimised_weights` reads them. Returns None where
    the model is too large to be written out, or cannot be written.
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
            return onnx.load(settings.optimized_model_filepath, load_external_data=False)
        except Exception as error:  # noqa: BLE001  # models beyond 2 GiB cannot be saved whole
            sys.stderr.write(f"the optimised graph could not be read: {error}\n")
            return None


def optimised_weights(optimised: onnx.ModelProto, folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yields name and numbers of each weight of 32 bits in an optimised model.

    Args:
        folder: Where the external files of the model's source lie.
    """
    for tensor in all_initializers(optimised.graph):
        if tensor.data_type == onnx.TensorProto.FLOAT:
            yield tensor.name, read(tensor, folder)


def count_subnormals(array: np.ndarray) -> int:
    """Returns how many numbers of an fp32 array are subnormal."""
    bits = array.view(np.uint32) & 0x7FFFFFFF
    return int(((bits > 0) & (bits < 0x00800000)).sum())
