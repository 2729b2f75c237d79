"""The sizes that weights demand of dimensions that a model leaves open.

They follow from ONNX's shape inference: an open dimension keeps a name of its own wherever it
reaches, so a convolution that takes it for its channels says how many there are.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import onnx

from autotune.facts.graphs import RUNTIME_DOMAIN, all_graphs, all_nodes, attribute_of, operator_of
from autotune.facts.model_facts import Dimension, Tensor
from autotune.facts.usual_sizes import is_name

Shape = tuple[Dimension, ...]
"""The dimensions of a value: sizes, and symbols of open dimensions of inputs."""

LARGEST_VALUE = 4096
"""Larger constants are weights, whose numbers no shape depends on."""

# Where products take their data and their weights.
_CONVOLUTIONS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(
        ("Conv", "ConvInteger", "ConvTranspose", f"{RUNTIME_DOMAIN}.FusedConv"), (0, 1)
    ),
    "QLinearConv": (0, 3),
}
_MATRIX_PRODUCTS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("MatMul", "MatMulInteger"), (0, 1)),
    **{
        f"{RUNTIME_DOMAIN}.{name}": (0, 1)
        for name in ("FusedMatMul", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "Attention")
    },
    "QLinearMatMul": (0, 3),
}
_PACKED_PRODUCT = f"{RUNTIME_DOMAIN}.MatMulNBits"
_INT8_LSTM = f"{RUNTIME_DOMAIN}.DynamicQuantizeLSTM"
_RECURRENT = frozenset({"LSTM", "GRU", "RNN", _INT8_LSTM})
# The axis that has as many entries as the scale, and where the scale is.
_NORMALISATIONS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), (1, 1)),
    **dict.fromkeys(("LayerNormalization", "SimplifiedLayerNormalization"), (-1, 1)),
    f"{RUNTIME_DOMAIN}.SkipLayerNormalization": (-1, 2),
}
ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div"})
"""Operators of two numbers each."""

_TREES_AND_MORE = "ai.onnx.ml."
_LINEAR = ("ai.onnx.ml.LinearRegressor", "ai.onnx.ml.LinearClassifier")
# Attributes of ai.onnx.ml's operators with an entry for each feature.
_FEATURES = ("offset", "scale", "imputed_value_floats", "imputed_value_int64s")


def symbol_of(tensor: Tensor, number: int) -> str:
    """Returns the name of an open dimension; one without a name gets one of its own."""
    size = tensor.shape[number]
    return size if isinstance(size, str) and is_name(size) else f"{tensor.name}\n{number}"


def inferred_shapes(model: onnx.ModelProto, inputs: Sequence[Tensor]) -> dict[str, Shape]:
    """Returns the shape of each value, with the symbols of open dimensions of the inputs."""
    tensors = {tensor.name: tensor for tensor in inputs}
    for item in model.graph.input:
        tensor = tensors.get(item.name)
        if tensor is None or not item.type.tensor_type.HasField("shape"):
            continue
        for number, dim in enumerate(item.type.tensor_type.shape.dim):
            if not isinstance(tensor.shape[number], int):
                dim.dim_param = symbol_of(tensor, number)
    for inner in all_graphs(model.graph):
        del inner.value_info[:]  # those of the exporter have other names
        for weight in inner.initializer:
            if math.prod(weight.dims) > LARGEST_VALUE:  # inference would only carry it along
                weight.ClearField("raw_data")
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception:  # noqa: BLE001  # a model that it cannot follow has no known sizes, and runs
        return {}
    shapes: dict[str, Shape] = {}
    for inner in all_graphs(inferred.graph):
        for info in (*inner.value_info, *inner.input, *inner.output):
            if info.type.tensor_type.HasField("shape"):
                shapes[info.name] = tuple(
                    dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
                    for dim in info.type.tensor_type.shape.dim
                )
        shapes.update({weight.name: tuple(weight.dims) for weight in inner.initializer})
    return shapes


def demanded_sizes(graph: onnx.GraphProto, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Returns the size that weights demand of each symbol; the node that comes first decides."""
    sizes: dict[str, int] = {}
    for node in all_nodes(graph):
        for symbol, size in _demands(node, shapes):
            if isinstance(symbol, str) and isinstance(size, int) and size > 0:
                sizes.setdefault(symbol, size)
    return sizes


def _demands(
    node: onnx.NodeProto, shapes: Mapping[str, Shape]
) -> Iterator[tuple[Dimension, Dimension]]:
    """Yields dimensions that a node wants to be of one size, what is open first."""
    kind = operator_of(node)
    sizes = partial(_size, node, shapes)
    if kind in _CONVOLUTIONS:
        data, weight = _CONVOLUTIONS[kind]
        is_transposed = kind == "ConvTranspose"
        channels = sizes(weight, 0 if is_transposed else 1)
        groups = 1 if is_transposed else attribute_of(node, "group", 1)
        yield sizes(data, 1), channels * groups if isinstance(channels, int) else None
    elif kind in _MATRIX_PRODUCTS:
        left, right = _MATRIX_PRODUCTS[kind]
        yield sizes(left, -1), sizes(right, -2)
        yield sizes(right, -2), sizes(left, -1)
    elif kind == _PACKED_PRODUCT:
        yield sizes(0, -1), attribute_of(node, "K", 0)
    elif kind == "Gemm":
        left, right = attribute_of(node, "transA", 0), attribute_of(node, "transB", 0)
        yield sizes(0, 1 - left), sizes(1, right)
        yield sizes(1, right), sizes(0, 1 - left)
    elif kind in _RECURRENT:
        yield from _recurrent(node, sizes)
    elif kind in _NORMALISATIONS:
        axis, scale = _NORMALISATIONS[kind]
        yield sizes(0, axis), sizes(scale, -1)
    elif kind == "Einsum":
        yield from _einsum(node, sizes)
    elif kind in ELEMENTWISE:
        yield from _elementwise(node, shapes)
    elif kind.startswith(_TREES_AND_MORE):
        yield sizes(0, 1), _features(node)


def _size(node: onnx.NodeProto, shapes: Mapping[str, Shape], place: int, axis: int) -> Dimension:
    shape = shapes.get(node.input[place], ()) if place < len(node.input) else ()
    return shape[axis] if -len(shape) <= axis < len(shape) else None


def _recurrent(
    node: onnx.NodeProto, sizes: Callable[[int, int], Dimension]
) -> Iterator[tuple[Dimension, Dimension]]:
    yield sizes(0, 2), sizes(1, 1 if operator_of(node) == _INT8_LSTM else 2)
    is_double = attribute_of(node, "direction", b"") == b"bidirectional"
    for place in (5, 6):  # the states
        yield sizes(place, 2), attribute_of(node, "hidden_size", 0)
        yield sizes(place, 0), 2 if is_double else 1


def _einsum(
    node: onnx.NodeProto, sizes: Callable[[int, int], Dimension]
) -> Iterator[tuple[Dimension, Dimension]]:
    """Dimensions with one letter are equal."""
    equation = attribute_of(node, "equation", b"").decode().replace(" ", "")
    places: dict[str, list[tuple[int, int]]] = {}
    for operand, letters in enumerate(equation.partition("->")[0].split(",")):
        before, _, behind = letters.partition("...")
        for axis, letter in enumerate(before):
            places.setdefault(letter, []).append((operand, axis))
        if "..." in letters:
            for axis, letter in enumerate(reversed(behind), 1):
                places.setdefault(letter, []).append((operand, -axis))
    for equal in places.values():
        for own, other in itertools.permutations(equal, 2):
            yield sizes(*own), sizes(*other)


def _elementwise(
    node: onnx.NodeProto, shapes: Mapping[str, Shape]
) -> Iterator[tuple[Dimension, Dimension]]:
    for own, other in ((0, 1), (1, 0)):
        for axis in range(-1, -1 - len(shapes.get(node.input[other], ())), -1):
            wanted = _size(node, shapes, other, axis)
            if isinstance(wanted, int) and wanted > 1:
                yield _size(node, shapes, own, axis), wanted


def _features(node: onnx.NodeProto) -> int | None:
    """Returns how many features an operator of ai.onnx.ml takes; None where it does not say."""
    for name in ("nodes_featureids", "nodes_featureids_as_tensor"):
        if ids := attribute_of(node, name, ()):
            return int(max(ids)) + 1
    for name in _FEATURES:
        if len(values := attribute_of(node, name, ())) > 1:
            return len(values)
    if operator_of(node) in _LINEAR:
        rows = len(attribute_of(node, "intercepts", ())) or attribute_of(node, "targets", 1)
        return len(attribute_of(node, "coefficients", ())) // max(1, int(rows)) or None
    return None
