"""Tiny decoders with random weights, one of each kind that exporters write."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, WIDTH, HEADS = 64, 32, 2
SIZE = WIDTH // HEADS
KINDS = ("gqa", "plain", "merged", "crossed", "recurrent")
_CACHE = ("batch_size", HEADS, "past_sequence_length", SIZE)
_GROWN = ("batch_size", HEADS, "total_sequence_length", SIZE)
_IDS = ("batch_size", "sequence_length")
_Array = NDArray[Any]
_Value = tuple[str, int, Sequence[int | str | None]]


class _Builder:
    """Nodes of a graph, and constants of the whole model."""

    def __init__(self, weights: dict[str, _Array], prefix: str = "") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights = weights
        self.prefix = prefix

    def add(self, kind: str, *inputs: str, outputs: int | list[str] = 1, **options: Any) -> str:
        count = len(self.nodes)
        names = (
            outputs
            if isinstance(outputs, list)
            else [f"{self.prefix}{kind}_{count}_{i}" for i in range(outputs)]
        )
        domain = str(options.pop("domain", ""))
        name = f"{self.prefix}{kind}_{count}"
        self.nodes.append(
            helper.make_node(kind, list(inputs), names, name, domain=domain, **options)
        )
        return names[0]

    def constant(self, value: object) -> str:
        array = np.asarray(value)
        name = f"c_{array.dtype}_{'_'.join(map(str, array.shape))}_{abs(hash(array.tobytes()))}"
        self.weights[name] = array
        return name


def _weights(seed: int = 0) -> dict[str, _Array]:
    random = np.random.default_rng(seed)

    def matrix(*shape: int) -> _Array:
        return np.asarray(random.standard_normal(shape) / np.sqrt(shape[0]), np.float32)

    return {
        "embed": matrix(VOCABULARY, WIDTH) * 8,
        "qkv": matrix(WIDTH, 3 * WIDTH),
        "out": matrix(WIDTH, WIDTH),
        "cross_q": matrix(WIDTH, WIDTH),
        "cross_k": matrix(WIDTH, WIDTH),
        "cross_v": matrix(WIDTH, WIDTH),
        "head": matrix(WIDTH, VOCABULARY) * 3,
        "gru_w": matrix(1, 3 * WIDTH, WIDTH),
        "gru_r": matrix(1, 3 * WIDTH, WIDTH),
    }


def _heads(b: _Builder, value: str) -> str:
    split = b.add("Reshape", value, b.constant([0, 0, HEADS, SIZE]))
    return b.add("Transpose", split, perm=[0, 2, 1, 3])


def _attend(b: _Builder, q: str, k: str, v: str, bias: str = "") -> str:
    turned = b.add("Transpose", k, perm=[0, 1, 3, 2])
    scores = b.add("MatMul", q, turned)
    scores = b.add("Mul", scores, b.constant(np.float32(SIZE**-0.5)))
    if bias:
        scores = b.add("Add", scores, bias)
    mixed = b.add("MatMul", b.add("Softmax", scores, axis=-1), v)
    together = b.add("Transpose", mixed, perm=[0, 2, 1, 3])
    return b.add("Reshape", together, b.constant([0, 0, WIDTH]))


def _self_attention(b: _Builder, x: str, pasts: Sequence[str], presents: Sequence[str]) -> str:
    """Returns x with what it attends to; without pasts there is no cache yet."""
    packed = b.add("MatMul", x, "qkv")
    b.add("Split", packed, outputs=[f"{b.prefix}{n}" for n in "qkv"], axis=-1, num_outputs=3)
    q, k, v = (_heads(b, f"{b.prefix}{n}") for n in "qkv")
    if pasts:
        k, v = (
            b.add("Concat", past, new, outputs=[present], axis=-2)
            for past, new, present in zip(pasts, (k, v), presents, strict=True)
        )
    else:
        k, v = (
            b.add("Identity", new, outputs=[present])
            for new, present in zip((k, v), presents, strict=True)
        )
    total = b.add("Gather", b.add("Shape", k), b.constant(2))
    count = b.add("Gather", b.add("Shape", q), b.constant(2))
    zero, one = b.constant(0), b.constant(1)
    rows = b.add("Range", b.add("Sub", total, count), total, one)
    seen = b.add(
        "LessOrEqual", b.add("Range", zero, total, one), b.add("Unsqueeze", rows, b.constant([1]))
    )
    bias = b.add("Where", seen, b.constant(np.float32(0)), b.constant(np.float32(-1e9)))
    mixed = b.add("MatMul", _attend(b, q, k, v, bias), "out")
    return b.add("Add", x, mixed)


def _model(b: _Builder, inputs: Sequence[_Value], outputs: Sequence[_Value], path: Path) -> Path:
    used = {name for node in b.nodes for name in node.input}
    inner = [
        name
        for node in b.nodes
        for item in node.attribute
        if item.HasField("g")
        for each in item.g.node
        for name in each.input
    ]
    kept = {name: array for name, array in b.weights.items() if name in used | set(inner)}
    graph = helper.make_graph(
        b.nodes,
        "decoder",
        [helper.make_tensor_value_info(*item) for item in inputs],
        [helper.make_tensor_value_info(*item) for item in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in kept.items()],
    )
    domains = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=9), path)
    return path


def write(
    kind: str, path: Path, *, past: str = "past_key_values.0", names: str = "present.0"
) -> Path:
    """Writes a decoder and returns its path.

    Args:
        kind: One of :data:`KINDS`.
        path: Where to write.
        past: What names of past inputs begin with.
        names: What names of present outputs begin with.
    """
    pasts, presents = [[f"{p}.{n}" for n in ("key", "value")] for p in (past, names)]
    f, i = TensorProto.FLOAT, TensorProto.INT64
    caches = [(name, f, _CACHE) for name in pasts]
    grown = [(name, f, _GROWN) for name in presents]
    logits = ("logits", f, (*_IDS, VOCABULARY))
    b = _Builder(_weights())
    ids = ("input_ids", i, _IDS)
    mask = ("attention_mask", i, ("batch_size", "total_sequence_length"))
    flag = ("use_cache_branch", TensorProto.BOOL, (1,))
    encoder = ("encoder_hidden_states", f, ("batch_size", "encoder_length", WIDTH))
    x = b.add("Gather", "embed", "input_ids")
    if kind == "recurrent":
        steps = b.add("Transpose", x, perm=[1, 0, 2])
        b.add(
            "GRU", steps, "gru_w", "gru_r", "", "", "state",
            outputs=["made", "stateN"], hidden_size=WIDTH,
        )  # fmt: skip
        rows = b.add("Transpose", b.add("Squeeze", "made", b.constant([1])), perm=[1, 0, 2])
        b.add("MatMul", rows, "head", outputs=["logits"])
        state = (1, "batch_size", WIDTH)
        return _model(b, [ids, ("state", f, state)], [logits, ("stateN", f, state)], path)
    if kind == "gqa":
        lengths = b.add("ReduceSum", "attention_mask", b.constant([1]), keepdims=0)
        last = b.add("Cast", b.add("Sub", lengths, b.constant([1])), to=TensorProto.INT32)
        total = b.add("Gather", b.add("Shape", "attention_mask"), b.constant(1))
        packed = b.add("MatMul", x, "qkv")
        mixed = b.add(
            "GroupQueryAttention", packed, "", "", *pasts, last,
            b.add("Cast", total, to=TensorProto.INT32),
            outputs=["mixed", *presents], domain="com.microsoft",
            num_heads=HEADS, kv_num_heads=HEADS,
        )  # fmt: skip
        x = b.add("Add", x, b.add("MatMul", mixed, "out"))
        b.add("MatMul", x, "head", outputs=["logits"])
        return _model(b, [ids, mask, *caches], [logits, *grown], path)
    if kind == "plain":
        y = _self_attention(b, x, pasts, presents)
        b.add("MatMul", y, "head", outputs=["logits"])
        return _model(b, [ids, *caches], [logits, *grown], path)
    if kind == "merged":
        b.add(
            "If", b.add("Squeeze", "use_cache_branch"), outputs=["y", *presents],
            then_branch=_branch(b.weights, x, pasts, grown, "then_"),
            else_branch=_branch(b.weights, x, (), grown, "else_"),
        )  # fmt: skip
        b.add("MatMul", "y", "head", outputs=["logits"])
        return _model(b, [ids, flag, *caches], [logits, *grown], path)
    crossing = ("batch_size", "encoder_length", WIDTH)
    held = [f"past_key_values.0.encoder.{n}" for n in ("key", "value")]
    made = [f"present.0.encoder.{n}" for n in ("key", "value")]
    y = _self_attention(b, x, pasts, presents)
    b.add(
        "If", b.add("Squeeze", "use_cache_branch"), outputs=made,
        then_branch=_crossing([("Identity", [name]) for name in held], "then_", crossing),
        else_branch=_crossing(
            [("MatMul", [encoder[0], w]) for w in ("cross_k", "cross_v")], "else_", crossing
        ),
    )  # fmt: skip
    q = _heads(b, b.add("MatMul", y, "cross_q"))
    y = b.add("Add", y, _attend(b, q, _heads(b, made[0]), _heads(b, made[1])))
    b.add("MatMul", y, "head", outputs=["logits"])
    return _model(
        b,
        [ids, encoder, flag, *caches, *[(name, f, crossing) for name in held]],
        [logits, *grown, *[(name, f, crossing) for name in made]],
        path,
    )


def write_encoder(path: Path, seed: int = 0) -> Path:
    """Writes an encoder whose output the crossed decoder takes; returns its path."""
    b = _Builder(_weights(seed))
    x = b.add("Gather", "embed", "input_ids")
    mixed = _attend(b, *(_heads(b, b.add("MatMul", x, f"cross_{n}")) for n in "qkv"))
    b.add("Add", x, mixed, outputs=["last_hidden_state"])
    states = ("last_hidden_state", TensorProto.FLOAT, (*_IDS, WIDTH))
    return _model(b, [("input_ids", TensorProto.INT64, _IDS)], [states], path)


def _branch(
    weights: dict[str, _Array],
    x: str,
    pasts: Sequence[str],
    grown: Sequence[_Value],
    prefix: str,
) -> onnx.GraphProto:
    b = _Builder(weights, prefix)
    names = [f"{prefix}{name}" for name, *_ in grown]
    y = _self_attention(b, x, pasts, names)
    outputs: list[_Value] = [(y, TensorProto.FLOAT, (None, None, WIDTH))]
    outputs += [(name, TensorProto.FLOAT, (None, HEADS, None, SIZE)) for name in names]
    return helper.make_graph(
        b.nodes, prefix, [], [helper.make_tensor_value_info(*item) for item in outputs]
    )


def _crossing(
    steps: Sequence[tuple[str, list[str]]], prefix: str, shape: Sequence[int | str]
) -> onnx.GraphProto:
    outputs = [f"{prefix}{n}" for n in ("k", "v")]
    nodes = [
        helper.make_node(kind, inputs, [output], output)
        for (kind, inputs), output in zip(steps, outputs, strict=True)
    ]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs]
    return helper.make_graph(nodes, prefix, [], infos)
