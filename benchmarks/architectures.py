"""Small models of well-known architectures, with the inputs that Optimum's exports have.

Names, types and open dimensions are those of the exports, the weights are random, and each model is
as deep as it must be to hold what makes its inputs special.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, INT32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32
WIDTH = 64
_LOWEST = np.float32(-3.4e38)


class Graph:
    """A graph that is written node by node."""

    def __init__(self) -> None:
        """Starts without nodes."""
        self._random = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, kind: int, *shape: int | str) -> str:
        """Adds an input and returns its name."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Adds a constant and returns its name."""
        name = f"c{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def whole(self, *values: int) -> str:
        """Adds a list of whole numbers and returns its name."""
        return self.constant(values, np.int64)

    def weight(self, *shape: int) -> str:
        """Adds a random weight that keeps the size of numbers, and returns its name."""
        fan_in = max(1, int(np.prod(shape[1:])) if len(shape) > 2 else shape[0])
        return self.constant(self._random.standard_normal(shape) * np.sqrt(1 / fan_in))

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Adds a node and returns the name of its output."""
        name = f"n{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def size(self, value: str, axis: int) -> str:
        """Adds the size of a dimension, as a list of one number."""
        return self.add("Gather", self.add("Shape", value), self.whole(axis))

    def linear(self, value: str, width_in: int = WIDTH, width: int = WIDTH) -> str:
        """Adds a product with a bias."""
        product = self.add("MatMul", value, self.weight(width_in, width))
        return self.add("Add", product, self.weight(width))

    def norm(self, value: str, width: int = WIDTH) -> str:
        """Adds a layer normalisation."""
        ones, zeros = self.constant(np.ones(width)), self.constant(np.zeros(width))
        return self.add("LayerNormalization", value, ones, zeros)

    def attention(self, value: str, mask: str = "", source: str = "", width: int = WIDTH) -> str:
        """Adds an attention with one head over [batch, positions, WIDTH].

        Args:
            mask: What is added to the scores; nothing if empty.
            source: What keys and values are made of; the value itself if empty.
            width: Features of the source.
        """
        source = source or value
        query = self.linear(value)
        key, content = self.linear(source, width), self.linear(source, width)
        scores = self.add("MatMul", query, self.add("Transpose", key, perm=[0, 2, 1]))
        scores = self.add("Mul", scores, self.constant(WIDTH**-0.5))
        if mask:
            scores = self.add("Add", scores, mask)
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), content)
        return self.norm(self.add("Add", value, self.linear(mixed)))

    def feed_forward(self, value: str) -> str:
        """Adds two products with a GELU between them."""
        inner = self.linear(value, WIDTH, 4 * WIDTH)
        erf = self.add("Erf", self.add("Mul", inner, self.constant(2**-0.5)))
        gelu = self.add("Mul", inner, self.add("Add", erf, self.constant(1.0)))
        half = self.add("Mul", gelu, self.constant(0.5))
        return self.norm(self.add("Add", value, self.linear(half, 4 * WIDTH, WIDTH)))

    def embedded(self, ids: str, rows: int) -> str:
        """Adds a table of embeddings."""
        return self.add("Gather", self.weight(rows, WIDTH), ids)

    def positioned(self, value: str, rows: int) -> str:
        """Adds the first rows of a table of positions, as many as the sequence has."""
        table = self.constant(self._random.standard_normal((1, rows, WIDTH)) * 0.1)
        zero, one = self.whole(0), self.whole(1)
        seen = self.add("Slice", table, zero, self.size(value, 1), one, one)
        return self.add("Add", value, seen)

    def hidden(self, mask: str) -> str:
        """Adds what attention adds to the scores of places that a mask hides."""
        number = self.add("Cast", self.add("Unsqueeze", mask, self.whole(1)), to=FLOAT)
        inverse = self.add("Sub", self.constant(1.0), number)
        return self.add("Mul", inverse, self.constant(_LOWEST))

    def convolved(self, value: str, *shape: int, **attributes: Any) -> str:
        """Adds a convolution with a bias."""
        return self.add(
            "Conv", value, self.weight(*shape), self.constant(np.zeros(shape[0])), **attributes
        )

    def tokens(self, value: str) -> str:
        """Turns [batch, WIDTH, height, width] into [batch, positions, WIDTH]."""
        flat = self.add("Reshape", value, self.whole(0, WIDTH, -1))
        return self.add("Transpose", flat, perm=[0, 2, 1])

    def model(self, **outputs: str) -> onnx.ModelProto:
        """Returns the model; outputs by name, each a value."""
        for name, value in outputs.items():
            self._nodes.append(helper.make_node("Identity", [value], [name]))
        graph = helper.make_graph(
            self._nodes,
            "architecture",
            self._inputs,
            [onnx.ValueInfoProto(name=n, type=_unknown()) for n in outputs],
            self._weights,
        )
        domains = {node.domain for node in self._nodes} - {""}
        opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(d, 3) for d in domains)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name="pytorch")


def _unknown() -> onnx.TypeProto:
    return helper.make_tensor_type_proto(FLOAT, None)


def _picture(graph: Graph, batch: str = "batch_size") -> str:
    return graph.input("pixel_values", FLOAT, batch, "num_channels", "height", "width")


def _patches(graph: Graph, pixels: str, positions: int) -> str:
    patches = graph.convolved(pixels, WIDTH, 3, 16, 16, strides=[16, 16])
    table = graph.weight(1, positions, WIDTH)  # one size of pictures alone
    return graph.add("Add", graph.tokens(patches), table)


def vit() -> onnx.ModelProto:
    """A classifier of pictures by patches, with 14 x 14 positions."""
    graph = Graph()
    hidden = _patches(graph, _picture(graph), 196)
    hidden = graph.feed_forward(graph.attention(hidden))
    pooled = graph.add("ReduceMean", hidden, axes=[1], keepdims=0)
    return graph.model(logits=graph.linear(pooled, WIDTH, 10))


def convnext() -> onnx.ModelProto:
    """A classifier of pictures by convolutions for each channel."""
    graph = Graph()
    hidden = graph.convolved(_picture(graph), WIDTH, 3, 4, 4, strides=[4, 4])
    hidden = graph.convolved(hidden, WIDTH, 1, 7, 7, group=WIDTH, pads=[3] * 4)
    last = graph.feed_forward(graph.add("Transpose", hidden, perm=[0, 2, 3, 1]))
    pooled = graph.add("ReduceMean", last, axes=[1, 2], keepdims=0)
    return graph.model(logits=graph.linear(pooled, WIDTH, 10))


def detr() -> onnx.ModelProto:
    """A detector with a mask of pixels and a fixed number of queries."""
    graph = Graph()
    pixels = _picture(graph)
    mask = graph.input("pixel_mask", INT64, "batch_size", "height", "width")
    features = graph.convolved(pixels, WIDTH, 3, 32, 32, strides=[32, 32])
    seen = graph.add("Unsqueeze", graph.add("Cast", mask, to=FLOAT), graph.whole(1))
    size = graph.add(
        "Concat", graph.size(seen, 0), graph.whole(1), graph.size(features, 2),
        graph.size(features, 3), axis=0,
    )  # fmt: skip
    small = graph.add("Resize", seen, "", "", size, mode="nearest")
    hidden = graph.hidden(graph.add("Reshape", small, graph.whole(0, -1)))
    memory = graph.attention(graph.tokens(features), hidden)
    queries = graph.add("Add", graph.weight(1, 20, WIDTH), graph.add(
        "Mul", graph.add("ReduceMean", memory, axes=[1], keepdims=1), graph.constant(0.0)
    ))  # fmt: skip
    found = graph.attention(queries, hidden, memory)
    boxes = graph.add("Sigmoid", graph.linear(found, WIDTH, 4))
    return graph.model(logits=graph.linear(found, WIDTH, 92), pred_boxes=boxes)


def clip() -> onnx.ModelProto:
    """Texts and pictures in one space, with 77 positions of text."""
    graph = Graph()
    ids = graph.input("input_ids", INT64, "text_batch_size", "sequence_length")
    pixels = _picture(graph, "image_batch_size")
    mask = graph.input("attention_mask", INT64, "text_batch_size", "sequence_length")
    text = graph.positioned(graph.embedded(ids, 1000), 77)
    text = graph.feed_forward(graph.attention(text, graph.hidden(mask)))
    text = graph.add("ReduceMean", text, axes=[1], keepdims=0)
    image = graph.feed_forward(_patches(graph, pixels, 196))
    image = graph.add("ReduceMean", image, axes=[1], keepdims=0)
    scores = graph.add("MatMul", image, graph.add("Transpose", text, perm=[1, 0]))
    return graph.model(logits_per_image=scores, text_embeds=text, image_embeds=image)


def whisper_encoder() -> onnx.ModelProto:
    """An encoder of speech with a table of 1,500 positions: it takes 3,000 frames alone."""
    graph = Graph()
    sound = graph.input(
        "input_features", FLOAT, "batch_size", "feature_size", "encoder_sequence_length"
    )
    hidden = graph.add("Relu", graph.convolved(sound, WIDTH, 80, 3, pads=[1, 1]))
    hidden = graph.convolved(hidden, WIDTH, WIDTH, 3, pads=[1, 1], strides=[2])
    hidden = graph.add("Transpose", hidden, perm=[0, 2, 1])
    hidden = graph.add("Add", hidden, graph.weight(1500, WIDTH))
    return graph.model(last_hidden_state=graph.feed_forward(graph.attention(hidden)))


def bert() -> onnx.ModelProto:
    """An encoder of text with a mask and two kinds of segments."""
    graph = Graph()
    ids, mask, kinds = (
        graph.input(name, INT64, "batch_size", "sequence_length")
        for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    hidden = graph.add("Add", graph.embedded(ids, 3000), graph.embedded(kinds, 2))
    hidden = graph.attention(graph.positioned(hidden, 512), graph.hidden(mask))
    return graph.model(last_hidden_state=graph.feed_forward(hidden))


def t5_encoder() -> onnx.ModelProto:
    """An encoder of text with relative positions from buckets."""
    graph = Graph()
    ids = graph.input("input_ids", INT64, "batch_size", "sequence_length")
    mask = graph.input("attention_mask", INT64, "batch_size", "sequence_length")
    end = graph.add("Squeeze", graph.size(ids, 1))
    places = graph.add("Range", graph.constant(0, np.int64), end, graph.constant(1, np.int64))
    row = graph.add("Unsqueeze", places, graph.whole(0))
    column = graph.add("Unsqueeze", places, graph.whole(1))
    distance = graph.add("Abs", graph.add("Sub", row, column))
    bucket = graph.add("Min", distance, graph.constant(31, np.int64))
    bias = graph.add("Squeeze", graph.add("Gather", graph.weight(32, 1), bucket), graph.whole(2))
    scores = graph.add("Add", graph.hidden(mask), bias)
    hidden = graph.attention(graph.embedded(ids, 3000), scores)
    return graph.model(last_hidden_state=graph.feed_forward(hidden))


def unet() -> onnx.ModelProto:
    """The denoiser of a diffusion model: a latent picture, a step, and the states of a text."""
    graph = Graph()
    sample = graph.input("sample", FLOAT, "batch_size", "num_channels", "height", "width")
    step = graph.input("timestep", INT64, "steps")
    text = graph.input("encoder_hidden_states", FLOAT, "batch_size", "sequence_length", 48)
    angles = graph.add(
        "Mul",
        graph.add("Unsqueeze", graph.add("Cast", step, to=FLOAT), graph.whole(1)),
        graph.constant(np.exp(-np.linspace(0, 9, WIDTH))[None]),
    )
    time = graph.linear(graph.add("Sin", angles))
    hidden = graph.convolved(sample, WIDTH, 4, 3, 3, pads=[1] * 4)
    hidden = graph.add("Add", hidden, graph.add("Unsqueeze", time, graph.whole(2, 3)))
    down = graph.convolved(hidden, WIDTH, WIDTH, 3, 3, pads=[1] * 4, strides=[2, 2])
    mixed = graph.attention(graph.tokens(down), source=text, width=48)
    picture = graph.add(
        "Reshape", graph.add("Transpose", mixed, perm=[0, 2, 1]), graph.add("Shape", down)
    )
    up = graph.add("Resize", picture, "", graph.constant([1, 1, 2, 2]), mode="nearest")
    joined = graph.add("Concat", up, hidden, axis=1)
    return graph.model(out_sample=graph.convolved(joined, 4, 2 * WIDTH, 3, 3, pads=[1] * 4))


def graph_network() -> onnx.ModelProto:
    """Messages along edges, added up at the nodes that they reach."""
    graph = Graph()
    nodes = graph.input("x", FLOAT, "num_nodes", 16)
    edges = graph.input("edge_index", INT64, 2, "num_edges")
    features = graph.input("edge_attr", FLOAT, "num_edges", 4)
    hidden = graph.linear(nodes, 16)
    source, target = (
        graph.add("Gather", edges, graph.constant(i, np.int64), axis=0) for i in (0, 1)
    )
    sent = graph.add("Gather", hidden, source, axis=0)
    message = graph.add("Relu", graph.add("Add", sent, graph.linear(features, 4)))
    places = graph.add("Unsqueeze", target, graph.whole(1))
    zeros = graph.add("Mul", hidden, graph.constant(0.0))
    received = graph.add("ScatterND", zeros, places, message, reduction="add")
    return graph.model(output=graph.linear(graph.add("Add", hidden, received), WIDTH, 3))


def wav2vec2() -> onnx.ModelProto:
    """An encoder of raw sound: convolutions with long strides, then attention."""
    graph = Graph()
    sound = graph.input("input_values", FLOAT, "batch_size", "sequence_length")
    hidden = graph.add("Unsqueeze", sound, graph.whole(1))
    hidden = graph.add("Relu", graph.convolved(hidden, WIDTH, 1, 10, strides=[5]))
    for _ in range(4):
        hidden = graph.add("Relu", graph.convolved(hidden, WIDTH, WIDTH, 4, strides=[2]))
    hidden = graph.attention(graph.add("Transpose", hidden, perm=[0, 2, 1]))
    return graph.model(logits=graph.linear(graph.feed_forward(hidden), WIDTH, 32))


def vits() -> onnx.ModelProto:
    """Phonemes with their number, three settings and a speaker; out comes sound."""
    graph = Graph()
    phonemes = graph.input("input", INT64, "batch_size", "phonemes")
    lengths = graph.input("input_lengths", INT64, "batch_size")
    scales = graph.input("scales", FLOAT, 3)
    speaker = graph.input("sid", INT64, "batch_size")
    end = graph.add("Squeeze", graph.size(phonemes, 1))
    places = graph.add("Range", graph.constant(0, np.int64), end, graph.constant(1, np.int64))
    inside = graph.add("Less", places, graph.add("Unsqueeze", lengths, graph.whole(1)))
    mask = graph.add("Cast", inside, to=FLOAT)
    hidden = graph.attention(graph.embedded(phonemes, 256), graph.hidden(mask))
    voice = graph.add("Unsqueeze", graph.embedded(speaker, 10), graph.whole(1))
    hidden = graph.add("Add", hidden, voice)
    hidden = graph.add("Mul", hidden, graph.add("Unsqueeze", mask, graph.whole(2)))
    loud = graph.add("Gather", scales, graph.constant(0, np.int64))
    hidden = graph.add("Mul", graph.add("Transpose", hidden, perm=[0, 2, 1]), loud)
    sound = graph.add("ConvTranspose", hidden, graph.weight(WIDTH, 1, 16), strides=[8])
    return graph.model(output=graph.add("Tanh", sound))


def lightgbm(trees: int = 20, features: int = 12) -> onnx.ModelProto:
    """Trees of depth one over open features, of which the last one has the highest number."""
    graph = Graph()
    rows = graph.input("input", FLOAT, "batch", "features")
    random = np.random.default_rng(0)
    ids = np.repeat(np.arange(trees), 3)
    score = graph.add(
        "TreeEnsembleRegressor", rows, domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=ids, nodes_nodeids=np.tile([0, 1, 2], trees),
        nodes_featureids=np.repeat(np.arange(trees) % features, 3) * np.tile([1, 0, 0], trees),
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"] * trees,
        nodes_values=random.standard_normal(3 * trees).tolist(),
        nodes_truenodeids=np.tile([1, 0, 0], trees), nodes_falsenodeids=np.tile([2, 0, 0], trees),
        target_treeids=np.repeat(np.arange(trees), 2), target_nodeids=np.tile([1, 2], trees),
        target_ids=[0] * 2 * trees, target_weights=random.standard_normal(2 * trees).tolist(),
    )  # fmt: skip
    return graph.model(variable=score)


ARCHITECTURES: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "ViT": vit,
    "ConvNeXt": convnext,
    "DETR": detr,
    "CLIP": clip,
    "Whisper encoder": whisper_encoder,
    "BERT": bert,
    "T5 encoder": t5_encoder,
    "UNet": unet,
    "graph network": graph_network,
    "wav2vec2": wav2vec2,
    "VITS": vits,
    "LightGBM": lightgbm,
}
"""A function for each model, by name."""


def written(folder: Path) -> dict[str, Path]:
    """Writes every model into a folder and returns the files by name."""
    files = {}
    for name, build in ARCHITECTURES.items():
        files[name] = folder / f"{name.lower().replace(' ', '_')}.onnx"
        onnx.save(build(), files[name])
    return files
