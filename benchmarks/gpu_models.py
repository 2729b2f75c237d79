"""The models of ``gpu.py``, made with fixed seeds, and their inputs."""

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

from autotune.facts import sample_models

Array = NDArray[Any]

CNN, ENCODER, DECODER = "cnn", "encoder", "decoder"
NAMES = (CNN, ENCODER, DECODER)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large the models are.

    Attributes:
        texts: How many texts a batch of the encoder holds.
        prompt: Tokens of the decoder's prompt.
        new: Tokens that follow it.
    """

    channels: int = 64
    image: int = 224
    images: int = 8
    width: int = 768
    heads: int = 12
    layers: int = 6
    words: int = 30000
    texts: int = 8
    prompt: int = 128
    new: int = 64


SMALL = Sizes(
    channels=8, image=32, images=2, width=64, heads=4, layers=2, words=500, texts=2, prompt=8, new=4
)

_LONGEST_TEXT = 128
_BATCHES = 4


def write(name: str, sizes: Sizes, folder: Path) -> Path:
    """Writes a model and its inputs; returns the path of the model."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {
        CNN: lambda: sample_models.cnn(channels=sizes.channels, size=sizes.image),
        ENCODER: lambda: sample_models.transformer(
            width=sizes.width, heads=sizes.heads, layers=sizes.layers, words=sizes.words
        ),
        DECODER: lambda: decoder(sizes),
    }[name]()
    path = folder / f"{name}.onnx"
    onnx.save(made, path)
    for number, feed in enumerate(feeds(name, sizes)):
        target = folder / "inputs" / f"{number}.npz"
        target.parent.mkdir(exist_ok=True)
        np.savez(target, **feed)  # type: ignore[arg-type]  # numpy's stubs take it for an option
    return path


def feeds(name: str, sizes: Sizes) -> list[Mapping[str, Array]]:
    """Returns the inputs: images, batches of texts with their true lengths, or a prompt."""
    random = np.random.default_rng(7)
    if name == CNN:
        shape = (sizes.images, 3, sizes.image, sizes.image)
        return [{"image": random.standard_normal(shape).astype(np.float32)} for _ in range(2)]
    if name == ENCODER:
        return [_padded(batch) for batch in _batches(sizes)]
    return [{"input_ids": random.integers(1, sizes.words, (1, sizes.prompt))}]


def _batches(sizes: Sizes) -> list[list[list[int]]]:
    """Returns the sentences of the project's license as numbers of words, in batches."""
    license_text = (Path(__file__).parent.parent / "LICENSE").read_text("utf-8")
    texts = [
        [zlib.crc32(word.encode()) % sizes.words for word in re.findall(r"\w+|[^\w\s]", part)]
        for part in re.split(r"(?<=[.;:])\s+|\n\n", license_text)
    ]
    kept = [text[:_LONGEST_TEXT] for text in texts if len(text) > 2]
    step = len(kept) // _BATCHES
    return [kept[start : start + sizes.texts] for start in range(0, step * _BATCHES, step)]


def _padded(texts: Sequence[Sequence[int]]) -> Mapping[str, Array]:
    longest = max(map(len, texts))
    ids = np.zeros((len(texts), longest), np.int64)
    mask = np.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
        mask[row, : len(text)] = 1
    return {"input_ids": ids, "attention_mask": mask}


_LAYER = """
    n{i} = LayerNormalization <axis = -1> (x{i}, ones, zeros)
    qkv{i} = MatMul (n{i}, qkv_{i})
    fq{i}, fk{i}, fv{i} = Split <axis = -1, num_outputs = 3> (qkv{i})
    sq{i} = Reshape (fq{i}, split)
    sk{i} = Reshape (fk{i}, split)
    sv{i} = Reshape (fv{i}, split)
    q{i} = Transpose <perm = [0, 2, 1, 3]> (sq{i})
    k{i} = Transpose <perm = [0, 2, 1, 3]> (sk{i})
    v{i} = Transpose <perm = [0, 2, 1, 3]> (sv{i})
    "present.{i}.key" = Concat <axis = 2> ("past_key_values.{i}.key", k{i})
    "present.{i}.value" = Concat <axis = 2> ("past_key_values.{i}.value", v{i})
    t{i} = Transpose <perm = [0, 1, 3, 2]> ("present.{i}.key")
    p{i} = MatMul (q{i}, t{i})
    s{i} = Mul (p{i}, scale)
    m{i} = Add (s{i}, bias)
    w{i} = Softmax <axis = -1> (m{i})
    a{i} = MatMul (w{i}, "present.{i}.value")
    b{i} = Transpose <perm = [0, 2, 1, 3]> (a{i})
    c{i} = Reshape (b{i}, merge)
    o{i} = MatMul (c{i}, out_{i})
    y{i} = Add (x{i}, o{i})
    z{i} = LayerNormalization <axis = -1> (y{i}, ones, zeros)
    u{i} = MatMul (z{i}, up_{i})
    g{i} = Relu (u{i})
    d{i} = MatMul (g{i}, down_{i})
    x{j} = Add (y{i}, d{i})
"""
_BEGIN = """
    tokens = Gather (embed, input_ids)
    places = Gather (places_table, position_ids)
    x0 = Add (tokens, places)
    mask_shape = Shape (attention_mask)
    total = Gather (mask_shape, one)
    all = Range (zero, total, one)
    rows = Unsqueeze (position_ids, last)
    seen = LessOrEqual (all, rows)
    shown = Where (seen, nothing, far)
    bias = Unsqueeze (shown, one_axis)
"""
_END = """
    end = LayerNormalization <axis = -1> (x{layers}, ones, zeros)
    logits = MatMul (end, head)
"""


def decoder(sizes: Sizes) -> onnx.ModelProto:
    """Returns a decoder with learned positions, whose caches grow by a Concat, as exporters do it.

    Inputs ``input_ids``, ``attention_mask``, ``position_ids`` and ``past_key_values.N.key`` and
    ``.value`` [batch, heads, past, size]; outputs ``logits`` and ``present.N.key`` and ``.value``.
    """
    layers, size = sizes.layers, sizes.width // sizes.heads
    body = _BEGIN + "".join(_LAYER.format(i=i, j=i + 1) for i in range(layers))
    caches = [f"{i}.{part}" for i in range(layers) for part in ("key", "value")]
    pasts = [f'float[B, {sizes.heads}, P, {size}] "past_key_values.{name}"' for name in caches]
    presents = [f'float[B, {sizes.heads}, T, {size}] "present.{name}"' for name in caches]
    inputs = ["int64[B, S] input_ids", "int64[B, T] attention_mask", "int64[B, S] position_ids"]
    outputs = [f"float[B, S, {sizes.words}] logits", *presents]
    graph = parser.parse_graph(
        f"decoder ({', '.join([*inputs, *pasts])}) => ({', '.join(outputs)}) "
        f"{{ {body} {_END.format(layers=layers)} }}"
    )
    for name, array in _decoder_weights(sizes).items():
        graph.initializer.append(numpy_helper.from_array(array, name))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model


def _decoder_weights(sizes: Sizes) -> dict[str, Array]:
    random = np.random.default_rng(11)
    width, size = sizes.width, sizes.width // sizes.heads

    def matrix(rows: int, columns: int, gain: float = 1.0) -> Array:
        drawn = random.standard_normal((rows, columns), np.float32)
        return np.asarray(drawn * np.float32(gain / np.sqrt(rows)))

    weights: dict[str, Array] = {
        "embed": matrix(sizes.words, width, float(np.sqrt(sizes.words))),
        "places_table": random.standard_normal((1024, width), np.float32),
        "head": matrix(width, sizes.words),
        "ones": np.ones(width, np.float32),
        "zeros": np.zeros(width, np.float32),
        "scale": np.array(size**-0.5, np.float32),
        "nothing": np.array(0, np.float32),
        "far": np.array(-1e4, np.float32),
        "split": np.array([0, 0, sizes.heads, size]),
        "merge": np.array([0, 0, width]),
        "zero": np.array(0),
        "one": np.array(1),
        "one_axis": np.array([1]),
        "last": np.array([-1]),
    }
    for i in range(sizes.layers):
        weights[f"qkv_{i}"] = matrix(width, 3 * width)
        weights[f"out_{i}"] = matrix(width, width)
        weights[f"up_{i}"] = matrix(width, 4 * width)
        weights[f"down_{i}"] = matrix(4 * width, width)
    return weights
