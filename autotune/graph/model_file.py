"""Model files as the steps of the graph parameters read and write them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import external_data_helper

from autotune.facts.graphs import all_nodes, all_weights, operator_of
from autotune.facts.weights import to_initializers
from autotune.graph.entries import StepRefusedError

LARGEST_PROTO_BYTES = (1 << 31) - 1
"""Above this protobuf cannot hold a model in one file, and most tools hold one in memory."""

_BLOCKED_DOMAIN = "com.microsoft.nchwc"
_BLOCKED_LAYOUT = "NchwcTransformer"
_DATA_FILE = "session.optimized_model_external_initializers_file_name"
# The rest of a model has a few megabytes.
_LARGEST_WEIGHTS_BYTES = LARGEST_PROTO_BYTES - (1 << 26)


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


def write_optimised(
    source: Path,
    target: Path,
    level: str,
    entries: Mapping[str, str] | None = None,
    leave_out: str = "",
) -> None:
    """Writes what ONNX Runtime's CPU provider makes of the model, for every processor.

    The blocked layout of convolutions (NCHWc) is left to the session that opens the file: its
    weights have the block size of one kind of processor, and another kind computes wrong answers
    from them without an error.

    Raises:
        StepRefusedError: ONNX Runtime wrote the blocked layout all the same.
    """
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    settings.optimized_model_filepath = str(target)
    settings.log_severity_level = 4
    left_out = f"{_BLOCKED_LAYOUT};{leave_out}" if leave_out else _BLOCKED_LAYOUT
    settings.add_session_config_entry("optimization.disable_specified_optimizers", left_out)
    # otherwise the written model refers to the external data of the source by their path
    if size_with_data(source) > LARGEST_PROTO_BYTES // 2 or has_external_data(source):
        settings.add_session_config_entry(_DATA_FILE, f"{target.name}.data")
    for key, value in (entries or {}).items():
        settings.add_session_config_entry(key, value)
    onnxruntime.InferenceSession(
        source, settings, providers=["CPUExecutionProvider"], enable_fallback=0
    )
    written = onnx.load(target, load_external_data=False).graph
    if any(node.domain == _BLOCKED_DOMAIN for node in all_nodes(written)):
        raise StepRefusedError("ONNX Runtime wrote weights in the blocks of this processor")


def remove_unused(graph: onnx.GraphProto, operators: Sequence[str]) -> None:
    """Removes the nodes whose outputs nothing takes, of one type of operators after the other."""
    for name in operators:
        taken = {tensor for node in all_nodes(graph) for tensor in node.input}
        taken |= {item.name for item in graph.output}
        for node in [n for n in graph.node if operator_of(n) == name]:
            if taken.isdisjoint(node.output):
                graph.node.remove(node)


def remove_unused_weights(graph: onnx.GraphProto) -> None:
    """Removes the initializers of the main graph that nothing takes, but for inputs' defaults."""
    taken = {name for node in all_nodes(graph) for name in node.input}
    taken |= {item.name for item in (*graph.output, *graph.input)}
    for item in [item for item in graph.initializer if item.name not in taken]:
        graph.initializer.remove(item)


def refill(field: Any, items: Sequence[Any]) -> None:
    """Makes a repeated field of a message hold these items, which may be some of its own."""
    copies = [type(item).FromString(item.SerializeToString()) for item in items]
    del field[:]
    field.extend(copies)


def has_external_data(source: Path) -> bool:
    """Returns whether some weights of the model are stored outside its file."""
    return any(
        external_data_helper.uses_external_data(item)
        for item in all_weights(onnx.load(source, load_external_data=False).graph)
    )


def lift_constants(source: Path) -> None:
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
