"""The shapes of a model's tensors for one shape of each input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx.inliner

from autotune.facts.operations import Shape


@dataclass(frozen=True, kw_only=True)
class Extent:
    """The extent of a tensor.

    Attributes:
        shape: Its shape; None where it is not known.
        item_bits: Bits of an element; 0 where its type is not known or has no fixed size.
    """

    shape: Shape | None
    item_bits: int


def item_bits(element: int) -> int:
    """Returns the bits of an element of ONNX's type `element`; 0 where it has no fixed size."""
    if element in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        return 0
    name = onnx.TensorProto.DataType.Name(element)
    for bits, endings in {2: ("INT2",), 4: ("INT4", "FLOAT4E2M1")}.items():
        if name.endswith(endings):  # numpy holds each in a byte
            return bits
    return int(onnx.helper.tensor_dtype_to_np_dtype(element).itemsize) * 8


def with_shapes(model: onnx.ModelProto, inputs: Mapping[str, Shape]) -> onnx.ModelProto:
    """Returns the model with the shapes that ONNX infers where its inputs have these shapes.

    Local functions are put in place of their calls. What ONNX cannot infer stays open: a shape may
    depend on values that only a run computes.

    Args:
        model: The model, which is changed.
        inputs: Shape of each input that is fed.
    """
    for item in model.graph.input:
        if item.name in inputs:
            shape = item.type.tensor_type.shape
            del shape.dim[:]
            for size in inputs[item.name]:
                shape.dim.add().dim_value = size
    # what the exporter noted holds for the sizes that it knew
    del model.graph.value_info[:]
    for item in model.graph.output:
        if item.type.HasField("tensor_type"):
            item.type.tensor_type.ClearField("shape")
    try:
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return model


def extents(graph: onnx.GraphProto) -> dict[str, Extent]:
    """Returns the extents of the tensors of one graph, without those of graphs around it."""
    by_name = {
        item.name: _extent(item) for item in (*graph.input, *graph.value_info, *graph.output)
    }
    for tensor in graph.initializer:
        by_name[tensor.name] = tensor_extent(tensor)
    for node in graph.node:
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    by_name[node.output[0]] = tensor_extent(attribute.t)
    return by_name


def tensor_extent(tensor: onnx.TensorProto) -> Extent:
    """Returns the extent of a constant."""
    return Extent(shape=tuple(tensor.dims), item_bits=item_bits(tensor.data_type))


def _extent(item: onnx.ValueInfoProto) -> Extent:
    kind = item.type.tensor_type
    shape = _sizes(kind.shape.dim) if kind.HasField("shape") else None
    return Extent(shape=shape, item_bits=item_bits(kind.elem_type))


def _sizes(dimensions: Sequence[onnx.TensorShapeProto.Dimension]) -> Shape | None:
    if not all(dimension.HasField("dim_value") for dimension in dimensions):
        return None
    return tuple(dimension.dim_value for dimension in dimensions)
