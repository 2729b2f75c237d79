"""Random graphs for the rules of algebra, and the check that their answers stay the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from algebra_models import answers, inputs_of, simplified
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from autotune.facts.weights import to_initializers

Draw = Callable[[st.SearchStrategy[Any]], Any]
_NUMBERS = [0.1, 1 / 6, 0.25, 0.5, 1.0, 2.0, 3.0, 6.0, -1.0, -2.0, 0.0, 1e-38]


class _Builder:
    """Adds random nodes to a graph, whose tensors have four axes and one of two shapes."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self.opset = draw(st.sampled_from([7, 9, 10, 11, 12, 13, 15, 17, 18, 20, 21]))
        self.size = draw(st.sampled_from([3, 4]))
        self.channels = draw(st.sampled_from([1, 2, 4]))
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.tensors = ["x"]
        self._values = np.random.default_rng(draw(st.integers(0, 99)))

    def constant(self, values: NDArray[Any]) -> str:
        """Returns the name of a constant: an initializer, a node, or an input with a default."""
        tensor = numpy_helper.from_array(values, f"c{len(self.initializers)}_{len(self.nodes)}")
        kind = self._draw(st.sampled_from(["initializer", "initializer", "node", "input"]))
        if kind == "node":
            self.nodes.append(helper.make_node("Constant", [], [tensor.name], value=tensor))
            return str(tensor.name)
        self.initializers.append(tensor)
        if kind == "input" and values.dtype == np.float32:
            self.inputs.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, values.shape)
            )
        return str(tensor.name)

    def weight(self, *shape: int) -> str:
        return self.constant(self._values.normal(0, 0.5, shape).astype(np.float32))

    def number(self, value: float) -> str:
        """Returns the name of a constant of one element, with up to four axes."""
        shape = self._draw(st.sampled_from([(), (1,), (1, 1, 1, 1)]))
        return self.constant(np.full(shape, value, np.float32))

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        output = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def bounds(self, x: str, low: float, high: float) -> str:
        """Returns a tensor between bounds, in one of the ways to write them."""
        if self.opset >= 8 and self._draw(st.booleans()):
            least = self.add("Max", x, self.number(low))
            return self.add("Min", self.number(high), least)
        if self.opset < 11:
            return self.add("Clip", x, min=float(low), max=float(high))
        names = [self.constant(np.array(value, np.float32)) for value in (low, high)]
        return self.add("Clip", x, *names)

    def mean(self, x: str) -> str:
        if self.opset >= 18:
            return self.add("ReduceMean", x, self.constant(np.array([-1], np.int64)))
        return self.add("ReduceMean", x, axes=[3])

    def either_way(self, operator: str, x: str, y: str) -> str:
        return self.add(operator, *((x, y) if self._draw(st.booleans()) else (y, x)))

    def step(self) -> None:
        x = self._draw(st.sampled_from(self.tensors[-3:]))
        self.tensors.append(self._draw(st.sampled_from(_STEPS))(self, x))

    def with_number(self, x: str) -> str:
        operator = self._draw(st.sampled_from(["Add", "Sub", "Mul", "Div"]))
        value = self._draw(st.sampled_from(_NUMBERS))
        if operator == "Div" and abs(value) < 0.1:
            value = 3.0
        pair = (x, self.number(value))
        is_swapped = operator != "Div" and self._draw(st.booleans())
        return self.add(operator, *(pair[::-1] if is_swapped else pair))

    def vector(self, x: str) -> str:
        operator = self._draw(st.sampled_from(["Add", "Sub", "Mul"]))
        shapes = [(self.channels, 1, 1), (1, self.channels, 1, 1), (self.size,), (1, 1, self.size)]
        return self.add(operator, x, self.weight(*self._draw(st.sampled_from(shapes))))

    def plain(self, x: str) -> str:
        names = ["Relu", "Neg", "Abs", "Sigmoid", "Identity", "Dropout", "LeakyRelu"]
        return self.add(self._draw(st.sampled_from(names)), x)

    def convolution(self, x: str) -> str:
        groups = self._draw(st.sampled_from([1, self.channels]))
        is_transposed = self._draw(st.booleans())
        kernel, pads = self._draw(st.sampled_from([(1, 0), (3, 1)]))
        weight = self.weight(self.channels, self.channels // groups, kernel, kernel)
        bias = [self.weight(self.channels)] if self._draw(st.booleans()) else []
        operator = "ConvTranspose" if is_transposed else "Conv"
        return self.add(operator, x, weight, *bias, pads=[pads] * 4, group=groups)

    def batch_normalised(self, x: str) -> str:
        spread = np.abs(self._values.normal(1, 0.3, self.channels)).astype(np.float32) + 0.1
        vectors = [self.weight(self.channels) for _ in range(3)]
        return self.add("BatchNormalization", x, *vectors, self.constant(spread))

    def matrix(self, x: str) -> str:
        return self.add("MatMul", x, self.weight(self.size, self.size))

    def sum_of_two(self, x: str) -> str:
        return self.add("Add", x, self._draw(st.sampled_from(self.tensors)))

    def hard_swish(self, x: str) -> str:
        bounded = self.bounds(self.either_way("Add", x, self.number(3)), 0, 6)
        if self._draw(st.booleans()):
            return self.add("Div", self.either_way("Mul", x, bounded), self.number(6))
        return self.either_way("Mul", x, self.add("Mul", bounded, self.number(1 / 6)))

    def gelu(self, x: str) -> str:
        if self.opset < 9:
            return x
        erf = self.add("Erf", self.add("Div", x, self.number(2**0.5)))
        gate = self.either_way("Add", erf, self.number(1))
        half = self.either_way("Mul", x, self.number(0.5))
        return self.either_way("Mul", half, gate)

    def leaky(self, x: str) -> str:
        return self.either_way("Max", x, self.either_way("Mul", x, self.number(0.1)))

    def layer_norm(self, x: str) -> str:
        centred = self.add("Sub", x, self.mean(x))
        square = self.either_way("Mul", centred, centred)
        root = self.add("Sqrt", self.either_way("Add", self.mean(square), self.number(0.1)))
        normal = self.add("Mul", centred, self.add("Reciprocal", root))
        return self.add("Add", self.add("Mul", normal, self.weight(self.size)), self.number(1))

    def transposed(self, x: str) -> str:
        order = self._draw(st.permutations(range(4)))
        back = [order.index(axis) for axis in range(4)]
        there = self.add("Transpose", x, perm=order)
        if self._draw(st.booleans()):
            there = self.add("Mul", there, self.number(2))
        return self.add("Transpose", there, perm=back)

    def reshaped(self, x: str) -> str:
        flat = self.add("Reshape", x, self.constant(np.array([2, -1], np.int64)))
        shape = np.array([2, self.channels, self.size, self.size], np.int64)
        return self.add("Reshape", flat, self.constant(shape))

    def squared(self, x: str) -> str:
        return self.add("Mul", self.add("Pow", x, self.number(2)), self.number(0.1))

    def sliced(self, x: str) -> str:
        """Cuts what was put behind the tensor off again, with a Slice for each axis."""
        twice = self.add("Concat", x, x, axis=2)
        cuts = [(2, 0, self.size), (3, 0, 2**31 - 1)]
        for axis, start, end in self._draw(st.permutations(cuts)):
            if self.opset < 10:
                twice = self.add("Slice", twice, starts=[start], ends=[end], axes=[axis])
                continue
            places = (start, end, self._draw(st.sampled_from([axis, axis - 4])))
            names = [self.constant(np.array([place], np.int64)) for place in places]
            twice = self.add("Slice", twice, *names)
        return twice

    def attention(self, x: str) -> str:
        """Attention of each word to all, with as many heads as a tensor has rows."""
        query, value = (self.add("Transpose", x, perm=[0, 2, 1, 3]) for _ in range(2))
        scores = self.add("MatMul", query, self.add("Transpose", x, perm=[0, 2, 3, 1]))
        scores = self.add("Mul", scores, self.number(0.5))
        if self._draw(st.booleans()):
            mask = self.weight(1, self._draw(st.sampled_from([1, self.size])), *2 * [self.channels])
            scores = self.either_way("Add", scores, mask)
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=3), value)
        return self.add("Transpose", mixed, perm=[0, 2, 1, 3])

    def model(self) -> onnx.ModelProto:
        made = [name for name in dict.fromkeys(self.tensors) if name != "x"]
        outputs = {made[-1], *self._draw(st.lists(st.sampled_from(made), max_size=2))}
        shape = [2, self.channels, self.size, self.size]
        is_open = self._draw(st.booleans())
        x = helper.make_tensor_value_info(
            "x", TensorProto.FLOAT, ["batch", *shape[1:]] if is_open else shape
        )
        infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in sorted(outputs)]
        graph = helper.make_graph(
            self.nodes, "g", [x, *self.inputs], infos, initializer=self.initializers
        )
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


_STEPS = (
    _Builder.with_number,
    _Builder.with_number,
    _Builder.vector,
    _Builder.plain,
    _Builder.convolution,
    _Builder.convolution,
    _Builder.batch_normalised,
    _Builder.matrix,
    _Builder.sum_of_two,
    _Builder.hard_swish,
    _Builder.gelu,
    _Builder.leaky,
    _Builder.layer_norm,
    _Builder.transposed,
    _Builder.reshaped,
    _Builder.squared,
    _Builder.sliced,
    _Builder.attention,
)


@st.composite
def models(draw: Draw) -> onnx.ModelProto:
    """Returns a random model: sums, shared tensors and constants, several outputs, any opset."""
    builder = _Builder(draw)
    builder.step()
    for _ in range(draw(st.integers(1, 9))):
        builder.step()
    if len(set(builder.tensors)) == 1:
        builder.tensors.append(builder.add("Neg", "x"))
    return builder.model()


def check(before: onnx.ModelProto, seed: int) -> None:
    """Checks the answers of a model up to a part of the largest value of any tensor on the way."""
    to_initializers(before)  # as before every step
    after = simplified(before)
    assert len(after.graph.node) <= len(before.graph.node) + 4
    feeds = {"x": inputs_of(before, seed, spread=1.0)["x"][:2]}
    whole = onnx.ModelProto()
    whole.CopyFrom(before)
    known = {item.name for item in before.graph.output}
    for node in before.graph.node:
        if node.op_type != "Constant" and node.output[0] not in known:
            whole.graph.output.add(name=node.output[0])
    largest = max(float(np.max(np.abs(array), initial=1)) for array in answers(whole, feeds))
    pairs = zip(answers(before, feeds), answers(after, feeds), strict=True)
    for expected, found in pairs:
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * largest)
