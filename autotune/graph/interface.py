"""What callers see of a model: its inputs, its outputs, and the inputs that have a default value.

Each step gets a model whose inputs have no default values, so that no tool takes an input that may
be fed for a constant. What a step writes gets the source's inputs and outputs back, with their
order, names, types and shapes; the default values come back after the last step.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import external_data_helper, numpy_helper

from autotune.graph.entries import StepRefusedError
from autotune.graph.model_file import refill

Defaults = Mapping[str, onnx.TensorProto]
"""The default values of inputs, by name."""


def take_defaults(path: Path) -> Defaults:
    """Removes the default values of inputs from a model's file; returns them."""
    model = onnx.load(path, load_external_data=False)
    inputs = {item.name for item in model.graph.input}
    defaults: dict[str, onnx.TensorProto] = {}
    kept = []
    for item in model.graph.initializer:
        if item.name not in inputs:
            kept.append(item)
            continue
        tensor = onnx.TensorProto()
        tensor.CopyFrom(item)
        if external_data_helper.uses_external_data(tensor):
            external_data_helper.load_external_data_for_tensor(tensor, str(path.parent))
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]
        defaults[item.name] = tensor
    if defaults:
        refill(model.graph.initializer, kept)
        path.write_bytes(model.SerializeToString())
    return defaults


def give_defaults(path: Path, defaults: Defaults) -> None:
    """Gives the inputs of a model their default values back."""
    if not defaults:
        return
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer.extend(defaults.values())
    path.write_bytes(model.SerializeToString())


def arrays_of(defaults: Defaults) -> dict[str, NDArray[Any]]:
    """Returns default values as arrays, as samples hold them."""
    return {name: numpy_helper.to_array(tensor) for name, tensor in defaults.items()}


def restore(path: Path, source: onnx.GraphProto) -> None:
    """Gives a written model the inputs and outputs of its source.

    An input that the step removed, because nothing takes it, is there again.

    Args:
        source: The graph before the step, with or without its nodes.

    Raises:
        StepRefusedError: an input or output has another type, an output is missing, or there is a
            new input.
    """
    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    if list(graph.input) == list(source.input) and list(graph.output) == list(source.output):
        return
    for kind, own, before in (
        ("input", graph.input, source.input),
        ("output", graph.output, source.output),
    ):
        written = {item.name: item for item in own}
        for item in before:
            if item.name not in written:
                if kind == "output" or item.name in _made(graph):
                    raise StepRefusedError(f"its {kind} '{item.name}' is lost")
            elif _type(item) != _type(written[item.name]):
                raise StepRefusedError(f"its {kind} '{item.name}' gets another type")
        if new := written.keys() - {item.name for item in before}:
            raise StepRefusedError(f"there is a new {kind} '{min(new)}'")
        refill(own, list(before))
    path.write_bytes(model.SerializeToString())


def _made(graph: onnx.GraphProto) -> set[str]:
    """Returns the names that a graph defines besides its inputs."""
    made = {name for node in graph.node for name in node.output}
    return made | {item.name for item in graph.initializer}


def _type(item: onnx.ValueInfoProto) -> bytes:
    """Returns the type of an input or output without its sizes; empty where none is given."""
    kind = onnx.TypeProto()
    kind.CopyFrom(item.type)
    _drop_shapes(kind)
    return bytes(kind.SerializeToString(deterministic=True))


def _drop_shapes(kind: onnx.TypeProto) -> None:
    field = kind.WhichOneof("value")
    if field in ("tensor_type", "sparse_tensor_type"):
        getattr(kind, field).ClearField("shape")
    elif field in ("sequence_type", "optional_type"):
        _drop_shapes(getattr(kind, field).elem_type)
    elif field == "map_type":
        _drop_shapes(kind.map_type.value_type)
