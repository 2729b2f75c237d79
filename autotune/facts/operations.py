"""The operations of one node, counted from the shapes of its inputs and outputs.

A multiplication with the addition after it counts as two operations, a comparison or a function
such as ``exp`` as one. The formulas follow the definitions of the operators
(https://onnx.ai/onnx/operators/ and ONNX Runtime's ContribOperators.md). A node that only moves
data has none.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx

Shape = tuple[int, ...]

VIEWS = frozenset("Reshape Squeeze Unsqueeze Flatten Identity Dropout Optional".split())
"""Operators whose output is their input's memory: they read and write nothing."""

INT8 = frozenset(
    """
    ConvInteger MatMulInteger QLinearConv QLinearMatMul DynamicQuantizeMatMul MatMulIntegerToFloat
    QGemm QAttention DynamicQuantizeLSTM QLinearAdd QLinearMul QLinearSigmoid QLinearLeakyRelu
    QLinearGlobalAveragePool QLinearAveragePool QLinearConcat QLinearSoftmax
    """.split()
)
"""Operators that compute with eight-bit numbers."""

_MOVES = frozenset(
    """
    Transpose Concat ConcatFromSequence Split Slice Gather GatherElements GatherND Scatter
    ScatterElements ScatterND Expand Tile Pad Cast CastLike Shape Size Constant ConstantOfShape
    Range OneHot NonZero DepthToSpace SpaceToDepth QuantizeLinear DequantizeLinear
    DynamicQuantizeLinear ReorderInput ReorderOutput EyeLike Compress Unique ReverseSequence
    SequenceConstruct SequenceAt SequenceEmpty SequenceInsert SequenceLength SplitToSequence
    QLinearConcat MemcpyFromHost MemcpyToHost If Loop Scan
    """.split()
)
# Operations for each element of the output; an operator that is in no table has one.
_FOR_EACH_OUTPUT: Mapping[str, int] = {
    **dict.fromkeys(("BatchNormalization", "PRelu", "LeakyRelu", "HardSigmoid", "Clip"), 2),
    # greatest, difference, exponential, sum and quotient
    **dict.fromkeys(("Softmax", "LogSoftmax", "QLinearSoftmax"), 5),
    # mean, difference, square, variance, root, quotient, scale and shift
    **dict.fromkeys(("LayerNormalization", "InstanceNormalization", "GroupNormalization"), 8),
    **dict.fromkeys(("SkipLayerNormalization", "EmbedLayerNormalization"), 9),
    **dict.fromkeys(("RMSNormalization", "SimplifiedLayerNormalization", "LpNormalization"), 5),
    # quotient, error function, sum and two products
    **dict.fromkeys(("Gelu", "BiasGelu", "FastGelu", "QuickGelu"), 5),
    **dict.fromkeys(("HardSwish", "Swish", "Mish", "Celu", "Elu", "Selu"), 3),
}


class UnknownShapeError(Exception):
    """A shape that a formula needs is not known."""


class ShapedNode:
    """A node with the shapes of its inputs and outputs, None where one is unknown or left out.

    Args:
        node: The node.
        inputs: Shapes by position.
        outputs: Shapes by position.
    """

    def __init__(
        self,
        node: onnx.NodeProto,
        inputs: Sequence[Shape | None],
        outputs: Sequence[Shape | None],
    ) -> None:
        self.operator: str = node.op_type
        self._names: Sequence[str] = node.input
        self._inputs = inputs
        self._outputs = outputs
        self._attributes = {
            item.name: onnx.helper.get_attribute_value(item) for item in _plain(node)
        }

    def has_input(self, position: int) -> bool:
        """Returns whether the node has that input."""
        return len(self._names) > position and bool(self._names[position])

    def input(self, position: int) -> Shape:
        """Returns the shape of an input; raises :class:`UnknownShapeError` where it is unknown."""
        return _shape_at(self._inputs, position)

    def output(self, position: int = 0) -> Shape:
        """Returns the shape of an output; raises as :meth:`input` does."""
        return _shape_at(self._outputs, position)

    def attribute(self, name: str, default: Any = None) -> Any:
        """Returns the value of an attribute that is no graph."""
        return self._attributes.get(name, default)


def _plain(node: onnx.NodeProto) -> list[onnx.AttributeProto]:
    graphs = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
    return [item for item in node.attribute if item.type not in graphs]


def _shape_at(shapes: Sequence[Shape | None], position: int) -> Shape:
    shape = shapes[position] if position < len(shapes) else None
    if shape is None:
        raise UnknownShapeError
    return shape


def operations(node: ShapedNode) -> int:
    """Returns the operations of one execution of `node`, those of its subgraphs left out.

    Raises:
        UnknownShapeError: a shape is not known.
    """
    if node.operator in _MOVES or node.operator in VIEWS:
        return 0
    formula = _FORMULAS.get(node.operator)
    if formula is not None:
        return formula(node)
    if node.operator.startswith(("Reduce", "Arg", "Global", "CumSum", "TopK", "NonMax")):
        return math.prod(node.input(0))
    return math.prod(node.output()) * _FOR_EACH_OUTPUT.get(node.operator, 1)


def _matmul(node: ShapedNode) -> int:
    # the last axis of the first factor is the one that is summed over; FusedMatMul may transpose
    summed = node.input(0)[-2 if node.attribute("transA", 0) else -1]
    return 2 * math.prod(node.output()) * summed


def _gemm(node: ShapedNode) -> int:
    rows, columns = node.output()
    summed = node.input(0)[0 if node.attribute("transA", 0) else 1]
    bias = rows * columns if node.has_input(2) else 0
    return 2 * rows * columns * summed + bias


def _quantised_gemm(node: ShapedNode) -> int:
    return 2 * math.prod(node.output()) * node.input(0)[0 if node.attribute("transA", 0) else 1]


def _packed_matmul(node: ShapedNode) -> int:
    return 2 * math.prod(node.output()) * int(node.attribute("K"))


def _conv(weight: int, bias: int) -> Callable[[ShapedNode], int]:
    """Returns the formula of a convolution whose weights and bias are at these inputs."""

    def count(node: ShapedNode) -> int:
        # [output channels, input channels of a group, height and width of the kernel]
        each = math.prod(node.input(weight)[1:])
        outputs = math.prod(node.output())
        return 2 * outputs * each + (outputs if node.has_input(bias) else 0)

    return count


def _conv_transpose(node: ShapedNode) -> int:
    # [input channels, output channels of a group, height and width of the kernel]
    each = math.prod(node.input(1)[1:])
    bias = math.prod(node.output()) if node.has_input(2) else 0
    return 2 * math.prod(node.input(0)) * each + bias


def _recurrent(gates: int, state: int) -> Callable[[ShapedNode], int]:
    """Returns the formula of a recurrent layer.

    For each step, sample and direction: the products of input and state with the weights of all
    gates, their bias where there is one, a function for each number of a gate, and `state`
    operations for each number of the new state.
    """

    def count(node: ShapedNode) -> int:
        first, second, features = node.input(0)  # steps and samples, in either order
        hidden = int(node.attribute("hidden_size") or node.input(2)[-1])
        directions = 2 if node.attribute("direction", b"forward") == b"bidirectional" else 1
        bias = gates * hidden if node.has_input(3) else 0
        step = 2 * gates * hidden * (features + hidden) + bias + gates * hidden + state * hidden
        return first * second * directions * step

    return count


def _attention(node: ShapedNode) -> int:
    """Counts attention whose queries, keys and values are inputs: [batch, (heads,) length, width].

    Scores, softmax and the weighted sum of values; ``MultiHeadAttention`` of ONNX Runtime takes
    the same three inputs.
    """
    query, key = node.input(0), node.input(1)
    value = node.input(2) if node.has_input(2) else key
    heads = (
        query[1]
        if len(query) == 4
        else int(node.attribute("q_num_heads") or node.attribute("num_heads"))
    )
    batch, length, others = query[0], query[-2], key[-2]
    width = query[-1] if len(query) == 4 else query[-1] // heads
    shared = int(node.attribute("kv_num_heads") or heads)
    value_width = value[-1] if len(value) == 4 else value[-1] // shared
    scores = batch * heads * length * others
    return scores * (2 * width + 5 + 2 * value_width)


def _fused_attention(node: ShapedNode) -> int:
    """Counts ONNX Runtime's ``Attention``, which projects its input to all three first."""
    if len(node.input(0)) == 4 or not node.attribute("num_heads"):
        return _attention(node)
    batch, length, features = node.input(0)
    projected = node.input(1)[-1]
    width = projected // 3
    heads = int(node.attribute("num_heads"))
    scores = batch * length * length * (4 * width + 5 * heads)
    return batch * length * projected * (2 * features + 1) + scores


def _einsum(node: ShapedNode) -> int:
    """Counts a contraction of all operands at once: one pass over all indices."""
    equation = node.attribute("equation").decode().replace(" ", "")
    terms = equation.split("->")[0].split(",")
    if "..." in equation:
        raise UnknownShapeError
    sizes = {
        index: size
        for position, term in enumerate(terms)
        for index, size in zip(term, node.input(position), strict=True)
    }
    return (2 if len(terms) > 1 else 1) * math.prod(sizes.values()) * max(1, len(terms) - 1)


def _pool(node: ShapedNode) -> int:
    window: tuple[int, ...] = tuple(node.attribute("kernel_shape", ()))
    return math.prod(node.output()) * math.prod(window)


def _resize(node: ShapedNode) -> int:
    modes = {b"nearest": 0, b"linear": 7, b"cubic": 31}  # two-dimensional: products and sums
    each: int = modes.get(node.attribute("mode", b"nearest"), 0)
    return math.prod(node.output()) * each


_lstm = _recurrent(gates=4, state=5)  # two products and a sum for the cell, tanh and a product

_FORMULAS: Mapping[str, Callable[[ShapedNode], int]] = {
    **dict.fromkeys(("MatMul", "MatMulInteger", "MatMulIntegerToFloat", "QLinearMatMul"), _matmul),
    **dict.fromkeys(("FusedMatMul", "DynamicQuantizeMatMul", "TransposeMatMul"), _matmul),
    **dict.fromkeys(("MatMulNBits", "MatMulBnb4"), _packed_matmul),
    **dict.fromkeys(("Gemm", "FusedGemm"), _gemm),
    "QGemm": _quantised_gemm,
    **dict.fromkeys(("Conv", "FusedConv", "NhwcFusedConv"), _conv(1, 2)),
    "ConvInteger": _conv(1, 4),
    "QLinearConv": _conv(3, 8),
    "ConvTranspose": _conv_transpose,
    **dict.fromkeys(("LSTM", "DynamicQuantizeLSTM"), _lstm),
    "GRU": _recurrent(gates=3, state=5),  # reset, complement, two products and a sum
    "RNN": _recurrent(gates=1, state=0),
    "Attention": _fused_attention,
    **dict.fromkeys(("MultiHeadAttention", "GroupQueryAttention"), _attention),
    "Einsum": _einsum,
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool", "QLinearAveragePool"), _pool),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
}
