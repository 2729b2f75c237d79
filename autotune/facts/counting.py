"""The work of a run of a model: operations of its products, and bytes, counted from shapes.

The formulas follow the definitions of the operators (https://onnx.ai/onnx/operators/ and ONNX
Runtime's ContribOperators.md).
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx.inliner

from autotune.facts.graphs import RUNTIME_DOMAIN, operator_name, operator_of
from autotune.facts.work import Work

Shape = tuple[int, ...]

# Takes a node's attributes, and the shapes of its inputs and its first output; where a shape is
# None, because it is not known, and the formula needs it, a TypeError says so.
_Formula = Callable[[Mapping[str, Any], Sequence[Shape], Shape], int]
_INT8 = {"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"} | {
    f"{RUNTIME_DOMAIN}.{name}"
    for name in "DynamicQuantizeMatMul QGemm MatMulIntegerToFloat DynamicQuantizeLSTM "
    "QLinearConv".split()
}
# Products that this module has no formula for.
_UNCOUNTED = {"Attention", "Einsum"} | {
    f"{RUNTIME_DOMAIN}.{name}"
    for name in "Attention MultiHeadAttention GroupQueryAttention QAttention MatMulBnb4".split()
}


def count(model: onnx.ModelProto, inputs: Mapping[str, Shape]) -> Work:
    """Returns the work of one run.

    Of the branches of an ``If`` the one with more operations counts, and the body of a ``Loop`` or
    a ``Scan`` counts once.
    """
    graph = _with_shapes(model, inputs).graph
    tally = _count(graph, {}, {})
    sizes = _extents(graph)
    boundary = [*inputs, *(item.name for item in graph.output)]
    return Work(
        float_operations=tally.by_operator.total() - tally.int8_operations,
        int8_operations=tally.int8_operations,
        weight_bytes=sum(tally.weights.values()),
        boundary_bytes=sum(_bytes(sizes.get(name)) for name in boundary),
        by_operator=dict(tally.by_operator.most_common()),
        unknown=tally.unknown,
    )


def item_bits(element: int) -> int:
    """Returns the bits of an element of ONNX's type `element`; 0 where it has no fixed size."""
    if element in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        return 0
    name = onnx.TensorProto.DataType.Name(element)
    for bits, endings in {2: ("INT2",), 4: ("INT4", "FLOAT4E2M1")}.items():
        if name.endswith(endings):  # numpy holds each in a byte
            return bits
    return int(onnx.helper.tensor_dtype_to_np_dtype(element).itemsize) * 8


@dataclass(frozen=True, kw_only=True)
class _Extent:
    """Shape of a tensor, None where it is not known, and bits of an element."""

    shape: Shape | None
    bits: int


@dataclass
class _Tally:
    """Sums over the nodes of a graph; weights by their name, because each is read once."""

    by_operator: Counter[str] = field(default_factory=Counter)
    weights: dict[str, int] = field(default_factory=dict)
    int8_operations: int = 0
    unknown: int = 0

    def add(self, other: "_Tally") -> None:
        """Adds the sums of a graph inside a node."""
        self.by_operator.update(other.by_operator)
        self.weights.update(other.weights)
        self.int8_operations += other.int8_operations
        self.unknown += other.unknown


def _with_shapes(model: onnx.ModelProto, inputs: Mapping[str, Shape]) -> onnx.ModelProto:
    """Returns the model with the shapes that ONNX infers where its inputs have these shapes.

    Local functions are put in place of their calls. A shape that depends on values stays open.
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


def _extents(graph: onnx.GraphProto) -> dict[str, _Extent]:
    """Returns the extents of the tensors of one graph, without those of graphs around it."""
    by_name = {}
    for item in (*graph.input, *graph.value_info, *graph.output):
        kind = item.type.tensor_type
        sizes = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
        known = kind.HasField("shape") and None not in sizes
        shape = tuple(size for size in sizes if size is not None) if known else None
        by_name[item.name] = _Extent(shape=shape, bits=item_bits(kind.elem_type))
    for name, tensor in _constants(graph).items():
        by_name[name] = _Extent(shape=tuple(tensor.dims), bits=item_bits(tensor.data_type))
    return by_name


def _constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if operator_of(node) == "Constant":
            tensors = [item.t for item in node.attribute if item.HasField("t")]
            constants.update(zip(node.output, tensors, strict=False))
    return constants


def _count(
    graph: onnx.GraphProto,
    around: Mapping[str, _Extent],
    constants_around: Mapping[str, onnx.TensorProto],
) -> _Tally:
    """Returns the sums of a graph, with the extents and constants of the graphs around it."""
    scope = {**around, **_extents(graph)}
    made = {name for node in graph.node for name in node.output}
    made |= {item.name for item in graph.input}
    outer = {name: item for name, item in constants_around.items() if name not in made}
    constants = {**outer, **_constants(graph)}
    dequantised = {n.output[0] for n in graph.node if operator_of(n) == "DequantizeLinear"}
    tally = _Tally()
    for node in graph.node:
        for name in constants.keys() & set(node.input):
            read = _bytes(scope[name])
            if operator_of(node) == "Gather" and name == node.input[0]:
                read = min(read, _bytes(scope.get(node.output[0])))
            tally.weights[name] = max(read, tally.weights.get(name, 0))
        operations = _operations(node, scope)
        if operations is None:
            tally.unknown += 1
        elif operations:
            tally.by_operator[operator_name(node)] += operations
            if operator_of(node) in _INT8 or dequantised.issuperset(node.input[:2]):
                tally.int8_operations += operations
        bodies = [
            _count(inner, scope, constants)
            for attribute in node.attribute
            for inner in ([attribute.g] if attribute.HasField("g") else [*attribute.graphs])
        ]
        if operator_of(node) == "If":
            bodies = [max(bodies, key=lambda body: body.by_operator.total())]
        for body in bodies:
            tally.add(body)
    return tally


def _operations(node: onnx.NodeProto, scope: Mapping[str, _Extent]) -> int | None:
    """Returns the operations of a product, 0 of another node, None where they are not known."""
    if operator_of(node) in _UNCOUNTED:
        return None
    formula = _FORMULAS.get(operator_of(node))
    if formula is None:
        return 0
    places = [scope.get(name) for name in (*node.input, *node.output[:1])]
    shapes: list[Any] = [None if place is None else place.shape for place in places]
    plain = [a for a in node.attribute if not a.HasField("g") and not a.graphs]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in plain}
    try:
        return formula(attributes, shapes[:-1], shapes[-1])
    except (IndexError, KeyError, TypeError, ValueError):
        return None


def _bytes(extent: _Extent | None) -> int:
    if extent is None or extent.shape is None:
        return 0
    return math.prod(extent.shape) * extent.bits // 8


def _product(attributes: Mapping[str, Any], inputs: Sequence[Shape], output: Shape) -> int:
    # the last axis of the first factor is the one that is summed over, unless it is transposed
    return 2 * math.prod(output) * inputs[0][-2 if attributes.get("transA") else -1]


def _packed_product(attributes: Mapping[str, Any], _: Sequence[Shape], output: Shape) -> int:
    return 2 * math.prod(output) * int(attributes["K"])


def _convolution(weight: int) -> _Formula:
    """Returns the formula of a convolution whose weights are at this input."""

    def operations(_: Mapping[str, Any], inputs: Sequence[Shape], output: Shape) -> int:
        # [output channels, input channels of a group, height and width of the kernel]
        return 2 * math.prod(output) * math.prod(inputs[weight][1:])

    return operations


def _transposed_convolution(_: Mapping[str, Any], inputs: Sequence[Shape], __: Shape) -> int:
    # [input channels, output channels of a group, height and width of the kernel]
    return 2 * math.prod(inputs[0]) * math.prod(inputs[1][1:])


def _recurrent(_: Mapping[str, Any], inputs: Sequence[Shape], __: Shape) -> int:
    steps, samples, features = inputs[0]
    directions, gates, hidden = inputs[2]  # the state's weights: [directions, gates * hidden, ..]
    return 2 * steps * samples * directions * gates * (features + hidden)


_OWN_FORMULAS: Mapping[str, _Formula] = {
    **dict.fromkeys(("FusedMatMul", "DynamicQuantizeMatMul", "TransposeMatMul"), _product),
    **dict.fromkeys(("MatMulIntegerToFloat", "FusedGemm", "QGemm"), _product),
    "MatMulNBits": _packed_product,
    **dict.fromkeys(("FusedConv", "NhwcFusedConv"), _convolution(1)),
    "QLinearConv": _convolution(3),
    "DynamicQuantizeLSTM": _recurrent,
}
_FORMULAS: Mapping[str, _Formula] = {
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul", "Gemm"), _product),
    **dict.fromkeys(("Conv", "ConvInteger"), _convolution(1)),
    "QLinearConv": _convolution(3),
    "ConvTranspose": _transposed_convolution,
    **dict.fromkeys(("LSTM", "GRU", "RNN"), _recurrent),
    **{f"{RUNTIME_DOMAIN}.{name}": formula for name, formula in _OWN_FORMULAS.items()},
}
