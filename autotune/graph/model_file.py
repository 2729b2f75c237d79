"""Model files as the steps of the graph half read and write them."""

from pathlib import Path

import onnx
from onnx import external_data_helper

from autotune.facts.graphs import all_weights
from autotune.facts.weights import to_initializers
from autotune.graph.entries import StepRefusedError

LARGEST_PROTO_BYTES = (1 << 31) - 1
"""Above this protobuf cannot hold a model in one file, and most tools hold one in memory."""

# The rest of a model has a few megabytes.
_LARGEST_WEIGHTS_BYTES = LARGEST_PROTO_BYTES - (1 << 26)


def load(source: Path) -> onnx.ModelProto:
    """Returns the model with its external data in memory."""
    return onnx.load(source)


def is_large(model: onnx.ModelProto) -> bool:
    """Returns whether a model with its weights in memory is too large for one file.

    A model that is cannot tell its own size.
    """
    sizes: list[int] = [item.ByteSize() for item in all_weights(model.graph)]
    return sum(sizes) > _LARGEST_WEIGHTS_BYTES


def save(model: onnx.ModelProto, target: Path) -> None:
    """Writes the model, with its weights beside it where one file cannot hold them.

    Raises:
        StepRefusedError: there is no model: the tool returned None.
    """
    if model is None:
        raise StepRefusedError("the tool returned no model")
    if is_large(model):
        onnx.save(model, target, save_as_external_data=True, location=f"{target.name}.data")
    else:
        onnx.save(model, target)


def has_external_data(source: Path) -> bool:
    """Returns whether some weights of the model are stored outside its file."""
    return any(
        external_data_helper.uses_external_data(item)
        for item in all_weights(onnx.load(source, load_external_data=False).graph)
    )


def uncover_weights(source: Path) -> None:
    """Rewrites a model whose weights are in Constant nodes or inputs: they become initializers.

    Its external data stay as they are.
    """
    model = onnx.load(source, load_external_data=False)
    if to_initializers(model):
        source.write_bytes(model.SerializeToString())


def data_file(tensor: onnx.TensorProto) -> str | None:
    """Returns the name of the file that holds the tensor; None where the model's own does."""
    return next((e.value for e in tensor.external_data if e.key == "location"), None)


def size_with_data(source: Path) -> int:
    """Returns the bytes of all files in the folder of `source`, which holds no other model."""
    return sum(file.stat().st_size for file in source.parent.iterdir() if file.is_file())
