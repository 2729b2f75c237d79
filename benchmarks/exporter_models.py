"""Models as exporters write them, for the benchmark of the pre-pass `algebra`."""

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from architectures import FLOAT, Graph


class Spelled(Graph):
    """A graph of opset 13 whose nodes are spelled as exporters spell them."""

    def __init__(self) -> None:
        """Starts without nodes."""
        super().__init__(seed=7, gain=2.0, opset=13)

    def convolution(
        self, x: str, narrow: int, wide: int, size: int, stride: int = 1, groups: int = 1
    ) -> str:
        """Returns the output of a convolution that keeps the size, or divides it by the stride."""
        weight = self.weight(wide, narrow // groups, size, size)
        pads, strides = [size // 2] * 4, [stride, stride]
        return self.add("Conv", x, weight, pads=pads, strides=strides, group=groups)

    def built(self, output: str, inputs: Mapping[str, list[int | str]]) -> onnx.ModelProto:
        """Returns the model of this output and these inputs of floats."""
        for name, shape in inputs.items():
            self.input(name, FLOAT, *shape)
        model = self.model(y=output)
        model.graph.output[0].name = model.graph.node.pop().input[0]
        return model


def _hard_sigmoid(graph: Spelled, x: str) -> str:
    return graph.add("Div", graph.add("Clip", graph.add("Add", x, 3.0), 0.0, 6.0), 6.0)


def _hard_swish(graph: Spelled, x: str) -> str:
    bounded = graph.add("Clip", graph.add("Add", x, 3.0), 0.0, 6.0)
    return graph.add("Div", graph.add("Mul", x, bounded), 6.0)


def _silu(graph: Spelled, x: str) -> str:
    return graph.add("Mul", x, graph.add("Sigmoid", x))


def _inverted_residuals(
    blocks: int,
    activation: Callable[[Spelled, str], str],
    gate: Callable[[Spelled, str], str],
) -> onnx.ModelProto:
    """Returns a stack of inverted residual blocks with squeeze and excitation."""
    graph, width = Spelled(), 24
    x = activation(graph, graph.convolution("x", 3, width, 3, stride=2))
    for _ in range(blocks):
        y = activation(graph, graph.convolution(x, width, 4 * width, 1))
        y = activation(graph, graph.convolution(y, 4 * width, 4 * width, 3, groups=4 * width))
        squeezed = graph.add("GlobalAveragePool", y)
        squeezed = graph.add("Relu", graph.convolution(squeezed, 4 * width, width, 1))
        y = graph.add("Mul", y, gate(graph, graph.convolution(squeezed, width, 4 * width, 1)))
        x = graph.add("Add", x, graph.convolution(y, 4 * width, width, 1))
    return graph.built(graph.add("GlobalAveragePool", x), {"x": [1, 3, 112, 112]})


def mobilenet_v3(blocks: int) -> onnx.ModelProto:
    """Returns blocks of MobileNetV3: hard swish, and hard sigmoid as the gate."""
    return _inverted_residuals(blocks, _hard_swish, _hard_sigmoid)


def efficientnet(blocks: int) -> onnx.ModelProto:
    """Returns blocks of EfficientNet: SiLU, and sigmoid as the gate."""
    return _inverted_residuals(blocks, _silu, lambda graph, x: graph.add("Sigmoid", x))


def paddle(blocks: int) -> onnx.ModelProto:
    """Returns blocks with one learned factor and summand behind convolutions and activations."""
    graph, width = Spelled(), 32
    x = graph.convolution("x", 3, width, 3, stride=2)
    for number in range(blocks):
        for groups, size in ((width, 5), (1, 1)):
            y = graph.convolution(x, width, width, size, groups=groups)
            y = graph.add("Add", graph.add("Mul", y, 0.9 + number / 50), 0.1)
            y = _hard_swish(graph, y)
            x = graph.add("Add", graph.add("Mul", y, 1.1), -0.05)
    return graph.built(graph.add("GlobalAveragePool", x), {"x": [1, 3, 128, 128]})


def encoder(blocks: int) -> onnx.ModelProto:
    """Returns an encoder with normalisations, GELU and softmax in parts, as JAX writes them."""
    graph, width, heads, words = Spelled(), 128, 4, 64
    split = graph.whole(1, words, heads, width // heads)
    merge, last = graph.whole(1, words, width), graph.whole(-1)

    def normalised(x: str) -> str:
        centred = graph.add("Sub", x, graph.add("ReduceMean", x, axes=[-1]))
        spread = graph.add("ReduceMean", graph.add("Mul", centred, centred), axes=[-1])
        inverse = graph.add("Reciprocal", graph.add("Sqrt", graph.add("Add", spread, 1e-6)))
        gained = graph.add("Mul", centred, graph.add("Mul", inverse, graph.weight(width)))
        return graph.add("Add", gained, graph.weight(width))

    def heads_of(x: str, order: list[int]) -> str:
        shaped = graph.add("Reshape", graph.linear(x, width, width), split)
        return graph.add("Transpose", shaped, perm=order)

    def attention(x: str) -> str:
        query, key = heads_of(x, [0, 2, 1, 3]), heads_of(x, [0, 2, 3, 1])
        scores = graph.add("Mul", graph.add("MatMul", query, key), (heads / width) ** 0.5)
        largest = graph.add("ReduceMax", scores, axes=[-1])
        powers = graph.add("Exp", graph.add("Sub", scores, largest))
        shares = graph.add("Div", powers, graph.add("ReduceSum", powers, last))
        mixed = graph.add("MatMul", shares, heads_of(x, [0, 2, 1, 3]))
        merged = graph.add("Transpose", mixed, perm=[0, 2, 1, 3])
        return graph.linear(graph.add("Reshape", merged, merge), width, width)

    def gelu(x: str) -> str:
        cube = graph.add("Mul", x, graph.add("Mul", x, graph.add("Mul", x, 0.044715)))
        inner = graph.add("Mul", graph.add("Add", x, cube), (2 / np.pi) ** 0.5)
        gate = graph.add("Mul", graph.add("Add", graph.add("Tanh", inner), 1.0), 0.5)
        return graph.add("Mul", x, gate)

    x = "x"
    for _ in range(blocks):
        x = graph.add("Add", x, attention(normalised(x)))
        x = graph.add(
            "Add", x, graph.linear(gelu(graph.linear(normalised(x), width, 512)), 512, width)
        )
    return graph.built(normalised(x), {"x": [1, words, width]})


def bert(blocks: int) -> onnx.ModelProto:
    """Returns an encoder with an open batch, as PyTorch's old exporter writes it from opset 13."""
    graph, width, heads, words = Spelled(), 128, 4, 64

    def size(x: str, axis: int) -> str:
        taken = graph.add("Gather", graph.add("Shape", x), graph.constant(axis, np.int64), axis=0)
        return graph.add("Unsqueeze", taken, graph.whole(0))

    def heads_of(x: str, order: list[int]) -> str:
        sizes = [size(x, 0), size(x, 1), graph.whole(heads), graph.whole(width // heads)]
        shaped = graph.add("Reshape", x, graph.add("Concat", *sizes, axis=0))
        return graph.add("Transpose", shaped, perm=order)

    def attention(x: str) -> str:
        query, key, value = (graph.linear(x, width, width) for _ in range(3))
        scores = graph.add("MatMul", heads_of(query, [0, 2, 1, 3]), heads_of(key, [0, 2, 3, 1]))
        scores = graph.add("Add", graph.add("Div", scores, (width / heads) ** 0.5), "mask")
        shares = graph.add("Softmax", scores, axis=-1)
        mixed = graph.add("MatMul", shares, heads_of(value, [0, 2, 1, 3]))
        mixed = graph.add("Transpose", mixed, perm=[0, 2, 1, 3])
        sizes = [size(mixed, 0), size(mixed, 1), graph.whole(width)]
        merged = graph.add("Reshape", mixed, graph.add("Concat", *sizes, axis=0))
        return graph.linear(merged, width, width)

    def normalised(x: str) -> str:
        centred = graph.add("Sub", x, graph.add("ReduceMean", x, axes=[-1]))
        spread = graph.add("ReduceMean", graph.add("Pow", centred, 2.0), axes=[-1])
        root = graph.add("Sqrt", graph.add("Add", spread, 1e-12))
        gained = graph.add("Mul", graph.add("Div", centred, root), graph.weight(width))
        return graph.add("Add", gained, graph.weight(width))

    def gelu(x: str) -> str:
        gate = graph.add("Add", graph.add("Erf", graph.add("Div", x, 2**0.5)), 1.0)
        return graph.add("Mul", graph.add("Mul", x, gate), 0.5)

    x = "x"
    for _ in range(blocks):
        x = normalised(graph.add("Add", attention(x), x))
        inner = gelu(graph.linear(x, width, 512))
        x = normalised(graph.add("Add", graph.linear(inner, 512, width), x))
    shapes: dict[str, list[int | str]] = {
        "x": ["batch", words, width],
        "mask": ["batch", 1, 1, words],
    }
    return graph.built(x, shapes)


def decoder(blocks: int) -> onnx.ModelProto:
    """Returns a decoder with RMS norms, rotated positions and SiLU, as PyTorch writes it."""
    graph, width, heads, words = Spelled(), 128, 4, 64
    channels = width // heads
    split = graph.whole(1, words, heads, channels)
    angles = np.outer(np.arange(words), 1e4 ** -(np.arange(0, channels, 2) / channels))
    angles = np.concatenate([angles, angles], axis=1)
    cosines, sines = graph.constant(np.cos(angles)), graph.constant(np.sin(angles))
    causal = graph.constant(np.triu(np.full((1, 1, words, words), -1e9), 1))

    def product(x: str, narrow: int, wide: int) -> str:
        return graph.add("MatMul", x, graph.weight(narrow, wide))

    def heads_of(x: str) -> str:
        shaped = graph.add("Reshape", product(x, width, width), split)
        return graph.add("Transpose", shaped, perm=[0, 2, 1, 3])

    def part(x: str, start: int, end: int) -> str:
        places = (graph.whole(place) for place in (start, end, 3, 1))
        return graph.add("Slice", x, *places)

    def rotated(x: str) -> str:
        behind = graph.add("Neg", part(x, channels // 2, 2**63 - 1))
        turned = graph.add("Concat", behind, part(x, 0, channels // 2), axis=-1)
        return graph.add("Add", graph.add("Mul", x, cosines), graph.add("Mul", turned, sines))

    def attention(x: str) -> str:
        query, key = rotated(heads_of(x)), rotated(heads_of(x))
        scores = graph.add("MatMul", query, graph.add("Transpose", key, perm=[0, 1, 3, 2]))
        scores = graph.add("Add", graph.add("Div", scores, channels**0.5), causal)
        mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), heads_of(x))
        mixed = graph.add("Transpose", mixed, perm=[0, 2, 1, 3])
        merged = graph.add("Reshape", mixed, graph.whole(1, words, width))
        return product(merged, width, width)

    def normalised(x: str) -> str:
        spread = graph.add("ReduceMean", graph.add("Pow", x, 2.0), axes=[-1])
        inverse = graph.add("Div", 1.0, graph.add("Sqrt", graph.add("Add", spread, 1e-6)))
        return graph.add("Mul", graph.weight(width), graph.add("Mul", x, inverse))

    x = "x"
    for _ in range(blocks):
        x = graph.add("Add", x, attention(normalised(x)))
        y = normalised(x)
        gated = graph.add("Mul", _silu(graph, product(y, width, 384)), product(y, width, 384))
        x = graph.add("Add", x, product(gated, 384, width))
    return graph.built(normalised(x), {"x": [1, words, width]})


def grouped(blocks: int) -> onnx.ModelProto:
    """Returns one step of a decoder with grouped queries and 1,024 words in its cache."""
    graph, heads, shared, channels, words = Spelled(), 16, 4, 64, 1024
    width, new = heads * channels, graph.whole(2)
    own = {name: graph.whole(1, 1, n, channels) for name, n in (("q", heads), ("kv", shared))}
    inputs: dict[str, list[int | str]] = {"x": [1, 1, width]}

    def heads_of(x: str, split: str, wide: int) -> str:
        shaped = graph.add("Reshape", graph.add("MatMul", x, graph.weight(width, wide)), split)
        return graph.add("Transpose", shaped, perm=[0, 2, 1, 3])

    def remembered(x: str, block: int, kind: str) -> str:
        past = f"past_{block}_{kind}"
        inputs[past] = [1, shared, words, channels]
        both = graph.add("Concat", past, heads_of(x, own["kv"], shared * channels), axis=2)
        shape = graph.whole(1, shared, heads // shared, words + 1, channels)
        many = graph.add("Expand", graph.add("Unsqueeze", both, new), shape)
        return graph.add("Reshape", many, graph.whole(1, heads, words + 1, channels))

    x = "x"
    for block in range(blocks):
        keys = graph.add("Transpose", remembered(x, block, "k"), perm=[0, 1, 3, 2])
        scores = graph.add("MatMul", heads_of(x, own["q"], width), keys)
        shares = graph.add("Softmax", graph.add("Mul", scores, channels**-0.5), axis=-1)
        mixed = graph.add("MatMul", shares, remembered(x, block, "v"))
        mixed = graph.add("Transpose", mixed, perm=[0, 2, 1, 3])
        x = graph.add("Add", x, graph.add("Reshape", mixed, graph.whole(1, 1, width)))
    return graph.built(x, inputs)


BUILDERS: Mapping[str, Callable[[int], onnx.ModelProto]] = {
    "mobilenet_v3": mobilenet_v3,
    "efficientnet": efficientnet,
    "paddle": paddle,
    "encoder": encoder,
    "bert": bert,
    "decoder": decoder,
    "grouped": grouped,
}
"""Models in the spelling of exporters, by the number of their blocks."""
