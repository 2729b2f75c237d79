"""Models of three kinds, so that everything can be tried without a download."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import TensorProto, helper, numpy_helper

# Opset 17 is the newest that every supported ONNX Runtime and pre-pass takes.
_OPSET = 17


class _Graph:
    """Collects nodes and weights; names come from a counter, weights from a fixed seed."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(seed)

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """Returns the name of a new random weight, scaled so that activations keep their size."""
        fan_in = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
        spread = 1 / np.sqrt(fan_in) if scale is None else scale
        return self.constant(self._random.normal(0, spread, shape).astype(np.float32))

    def constant(self, array: ArrayLike) -> str:
        """Returns the name of a new initializer that holds `array`."""
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Returns the name of the first output of a new node."""
        stem = f"{operator.lower()}_{len(self.nodes)}"
        names = [stem, *(f"{stem}_{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(operator, inputs, names, name=stem, **attributes))
        return stem

    def model(
        self, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        """Returns the checked model."""
        graph = helper.make_graph(self.nodes, "sample", inputs, outputs, self.weights)
        opsets = [helper.make_opsetid("", _OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        return model


def cnn(*, channels: int = 64, size: int = 96, blocks: int = 2) -> onnx.ModelProto:
    """Returns a ResNet for images: three stages of residual blocks and ten classes.

    The first stage has `channels` channels. Each later stage has twice the channels of the one
    before and half its height and width. A stage has `blocks` blocks of two convolutions. Batch
    normalisation is folded into the convolutions, as exporters do it. The defaults give 2.8 million
    parameters and 0.25 billion multiplications for each image.

    Input ``image`` is float32 [batch, 3, size, size], output ``logits`` float32 [batch, 10].
    """
    graph = _Graph(seed=1)
    x = graph.add("Relu", _convolution(graph, "image", 3, channels, kernel=7, stride=2))
    x = graph.add("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    narrow = channels
    for stage in range(3):
        wide = channels * 2**stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = graph.add("Relu", _convolution(graph, x, narrow, wide, stride=stride))
            y = _convolution(graph, y, wide, wide, gain=0.5)
            if narrow != wide:
                x = _convolution(graph, x, narrow, wide, kernel=1, stride=stride, gain=1)
            x = graph.add("Relu", graph.add("Add", y, x))
            narrow = wide
    return _classifier(graph, x, narrow, size)


def separable_cnn(*, channels: int = 32, size: int = 64, blocks: int = 3) -> onnx.ModelProto:
    """Returns an image classifier of separable residual blocks, which runs in a fraction of a ms.

    The check of a machine's noise and the benchmarks of what a trial costs take it, because a short
    run shows such costs most.

    Input ``image`` is float32 [batch, 3, size, size], output ``logits`` float32 [batch, 10].
    """
    graph = _Graph(seed=1)
    half: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    same: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    filters = graph.weight(channels, 3, 3, 3)
    x = graph.add("Relu", graph.add("Conv", "image", filters, **half))
    for _ in range(blocks):
        depth = graph.weight(channels, 1, 3, 3)
        y = graph.add("Relu", graph.add("Conv", x, depth, group=channels, **same))
        y = graph.add("Conv", y, graph.weight(channels, channels, 1, 1), kernel_shape=[1, 1])
        x = graph.add("Relu", graph.add("Add", x, y))
    return _classifier(graph, x, channels, size)


def transformer(
    *, width: int = 64, heads: int = 4, layers: int = 2, words: int = 1000
) -> onnx.ModelProto:
    """Returns a sentence encoder with masked attention, GELU and layer normalisation.

    Inputs ``input_ids`` and ``attention_mask`` are int64 [batch, sequence] (identifiers below
    `words`, at most 128 of them), output ``embedding`` is float32 [batch, width].
    """
    graph = _Graph(seed=2)
    x = graph.add("Gather", graph.weight(words, width, scale=1.0), "input_ids")
    ones = graph.constant(np.float32(1))
    mask = graph.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    hidden = graph.add("Mul", graph.add("Sub", ones, mask), graph.constant(np.float32(-1e4)))
    hidden = graph.add("Unsqueeze", hidden, graph.constant(np.array([1, 2], np.int64)))
    for _ in range(layers):
        x = _normalised(graph, graph.add("Add", x, _attention(graph, x, hidden, width, heads)))
        x = _normalised(graph, graph.add("Add", x, _feed_forward(graph, x, width)))
    graph.add("ReduceMean", x, axes=[1], keepdims=0)
    graph.nodes[-1].output[0] = "embedding"
    shape = ["batch", "sequence"]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, shape)
    masks = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, shape)
    embedding = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", width])
    return graph.model([ids, masks], [embedding])


def lstm(*, features: int = 16, width: int = 64) -> onnx.ModelProto:
    """Returns a sequence classifier that carries its state in and out, as a voice detector does.

    Inputs ``frames`` float32 [time, batch, features] and ``state`` float32 [1, batch, width],
    outputs ``score`` float32 [batch, 1] and ``new_state`` like ``state``.
    """
    graph = _Graph(seed=3)
    weights = [
        graph.weight(1, 4 * width, features, scale=0.2),
        graph.weight(1, 4 * width, width, scale=0.1),
    ]
    graph.add("LSTM", "frames", *weights, "", "", "state", "state", outputs=2, hidden_size=width)
    graph.nodes[-1].output[1] = "new_state"
    last = graph.add("Squeeze", "new_state", graph.constant(np.array([0], np.int64)))
    graph.add("Sigmoid", graph.add("MatMul", last, graph.weight(width, 1)))
    graph.nodes[-1].output[0] = "score"
    frames: list[str | int] = ["time", "batch", features]
    state: list[str | int] = [1, "batch", width]
    return graph.model(
        [
            helper.make_tensor_value_info("frames", TensorProto.FLOAT, frames),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, state),
        ],
        [
            helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch", 1]),
            helper.make_tensor_value_info("new_state", TensorProto.FLOAT, state),
        ],
    )


def _convolution(
    graph: _Graph,
    x: str,
    narrow: int,
    wide: int,
    *,
    kernel: int = 3,
    stride: int = 1,
    gain: float = 2,
) -> str:
    """Returns the output of a convolution with bias.

    A `gain` of 2 keeps the variance through a ReLU (He et al., Delving Deep into Rectifiers, 2015).
    """
    spread = np.sqrt(gain / (narrow * kernel**2))
    return graph.add(
        "Conv",
        x,
        graph.weight(wide, narrow, kernel, kernel, scale=spread),
        graph.weight(wide, scale=0.1),
        kernel_shape=[kernel, kernel],
        pads=[kernel // 2] * 4,
        strides=[stride, stride],
    )


def _classifier(graph: _Graph, x: str, channels: int, size: int) -> onnx.ModelProto:
    """Returns the model that pools `x` over the image and ends with ten logits."""
    pooled = graph.add("Flatten", graph.add("GlobalAveragePool", x))
    graph.add("Gemm", pooled, graph.weight(channels, 10), graph.weight(10, scale=0.1))
    graph.nodes[-1].output[0] = "logits"
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, size, size])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])
    return graph.model([image], [logits])


def _attention(graph: _Graph, x: str, hidden: str, width: int, heads: int) -> str:
    split = graph.constant(np.array([0, 0, heads, width // heads], np.int64))
    merge = graph.constant(np.array([0, 0, width], np.int64))

    def project(order: list[int]) -> str:
        y = graph.add("MatMul", x, graph.weight(width, width))
        y = graph.add("Add", y, graph.weight(width, scale=0.1))
        return graph.add("Transpose", graph.add("Reshape", y, split), perm=order)

    query, key, value = project([0, 2, 1, 3]), project([0, 2, 3, 1]), project([0, 2, 1, 3])
    scale = graph.constant(np.float32(1 / np.sqrt(width // heads)))
    scores = graph.add("Mul", graph.add("MatMul", query, key), scale)
    shares = graph.add("Softmax", graph.add("Add", scores, hidden), axis=-1)
    mixed = graph.add("Transpose", graph.add("MatMul", shares, value), perm=[0, 2, 1, 3])
    return graph.add("MatMul", graph.add("Reshape", mixed, merge), graph.weight(width, width))


def _feed_forward(graph: _Graph, x: str, width: int) -> str:
    y = graph.add("MatMul", x, graph.weight(width, 4 * width))
    y = graph.add("Add", y, graph.weight(4 * width, scale=0.1))
    root = graph.constant(np.float32(np.sqrt(2)))
    erf = graph.add("Erf", graph.add("Div", y, root))
    gate = graph.add("Mul", y, graph.add("Add", erf, graph.constant(np.float32(1))))
    gelu = graph.add("Mul", gate, graph.constant(np.float32(0.5)))
    return graph.add("MatMul", gelu, graph.weight(4 * width, width))


def _normalised(graph: _Graph, x: str) -> str:
    width = numpy_helper.to_array(graph.weights[0]).shape[1]
    scale = graph.constant(np.ones(width, np.float32))
    return graph.add("LayerNormalization", x, scale, graph.constant(np.zeros(width, np.float32)))


KINDS: dict[str, Callable[[], onnx.ModelProto]] = {
    "cnn": cnn,
    "transformer": transformer,
    "lstm": lstm,
}
"""What `autotune sample --kind` offers."""


def write(kind: str, path: Path) -> None:
    """Writes the sample model of one of :data:`KINDS` to `path`.

    Raises:
        OSError: the file cannot be written.
    """
    onnx.save(KINDS[kind](), path)
