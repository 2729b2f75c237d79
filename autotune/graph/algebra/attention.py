"""Attention that exporters write out, as ONNX Runtime's MultiHeadAttention.

Whether that operator is faster than its parts depends on the lengths and the processor, so these
rules are a pre-pass of their own, which a study measures on the model itself.
"""

from typing import NamedTuple

import numpy as np
import onnx

from autotune.facts.graphs import RUNTIME_DOMAIN
from autotune.graph.algebra.expressions import linear
from autotune.graph.algebra.rule import rule
from autotune.graph.algebra.scope import Scope, attribute

_HEADS_SECOND = [0, 2, 1, 3]
_KEYS_LAST = [0, 2, 3, 1]


class _Heads(NamedTuple):
    """A tensor before its heads were moved to the second axis, and the number that multiplies it.

    Attributes:
        name: The tensor.
        batch: Its first size, or the name of that.
        words: Its second size, or the name of that.
        heads: Its third size.
        channels: Its last size, the channels of a head.
        scale: The number.
    """

    name: str
    batch: int | str
    words: int | str
    heads: int
    channels: int
    scale: float


def attention(scope: Scope, node: onnx.NodeProto) -> bool:
    """Makes ``Softmax(s Q Kᵀ + mask) V``, with heads by Reshape and Transpose, one operator.

    The operator computes the same sums of products, takes the maximum off in Softmax as that
    does, and adds the mask to the scaled scores; it may sum in blocks. So a share differs by a few
    units in its last place, and by as much as the products of Q and K do, which sum in another
    order; an output is a mean of V with these shares. Where a score overflowed before it was
    scaled down, the answer is finite now. The rule applies where heads and channels are
    known, and batches and words are known or have names. A mask that is the same for all words is
    repeated for each, which must be a known number. Keys and values that several heads share keep
    the nodes that repeat them.
    """
    if list(attribute(node, "perm", ())) != _HEADS_SECOND:
        return False
    mixed = scope.producer(node.input[0], "MatMul")
    if mixed is None or not scope.is_private(node.input[0]):
        return False
    shares = scope.producer(mixed.input[0], "Softmax")
    value = _heads(scope, mixed.input[1], _HEADS_SECOND)
    if shares is None or not scope.is_private(mixed.input[0]) or value is None:
        return False
    default_axis = -1 if scope.opset >= 13 else 1
    if attribute(shares, "axis", default_axis) not in (-1, 3):
        return False
    for scores, mask in _masked(scope, shares.input[0]):
        total = linear(scope, scores)
        product = scope.producer(total.base, "MatMul")
        if product is None or total.offset or not scope.is_private(scores):
            continue
        query = _heads(scope, product.input[0], _HEADS_SECOND)
        key = _heads(scope, product.input[1], _KEYS_LAST)
        if query is None or key is None or not _fit(query, key, value):
            continue
        scale = total.scale * query.scale * key.scale
        if value.scale != 1 or not scale > 0 or not _is_mask(scope, mask, query, key):
            continue
        _write(scope, node, (query, key, value), mask, scale)
        return True
    return False


def _masked(scope: Scope, name: str) -> list[tuple[str, str]]:
    """Returns the scores and the mask that Softmax may have: a sum, either way round, or none."""
    total = scope.producer(name, "Add")
    if total is None or not scope.is_private(name):
        return [(name, "")]
    first, second = total.input
    return [(first, second), (second, first)]


def _heads(scope: Scope, name: str, order: list[int]) -> _Heads | None:
    """Returns the tensor whose axes a Transpose orders so, perhaps multiplied by a number."""
    total = linear(scope, name)
    moved = scope.producer(total.base, "Transpose")
    if moved is None or total.offset or list(attribute(moved, "perm", ())) != order:
        return None
    sizes = scope.sizes(moved.input[0]) or ()
    if len(sizes) != 4 or not scope.is_float32(moved.input[0]):
        return None
    batch, words, heads, channels = sizes
    if batch is None or words is None or not isinstance(heads, int):
        return None
    if not isinstance(channels, int):
        return None
    return _Heads(moved.input[0], batch, words, heads, channels, total.scale)


def _fit(query: _Heads, key: _Heads, value: _Heads) -> bool:
    """Returns whether query, key and value have the same batch, heads, words and channels."""
    return (
        query.batch == key.batch == value.batch
        and query.heads == key.heads == value.heads
        and query.channels == key.channels
        and key.words == value.words
    )


def _is_mask(scope: Scope, mask: str, query: _Heads, key: _Heads) -> bool:
    """Returns whether a tensor can be added to the scores by the operator; "" stands for none."""
    if not mask:
        return True
    sizes = scope.sizes(mask) or ()
    if len(sizes) != 4 or not scope.is_float32(mask):
        return False
    batch, heads, rows, columns = sizes
    is_repeated = rows == 1 and isinstance(query.words, int)
    return (
        batch in (1, query.batch)
        and heads in (1, query.heads)
        and (rows == query.words or is_repeated)
        and columns == key.words
    )


def _write(
    scope: Scope, node: onnx.NodeProto, parts: tuple[_Heads, ...], mask: str, scale: float
) -> None:
    nodes: list[onnx.NodeProto] = []

    def shaped(operator: str, tensor: str, shape: list[int], output: str = "") -> str:
        """Returns the output of a new node that takes a constant shape."""
        sizes = scope.constant(np.array(shape, np.int64), f"{tensor}/shape")
        nodes.append(scope.make(operator, [tensor, sizes], output))
        return str(nodes[-1].output[0])

    flat = []
    for part in parts:
        width = part.heads * part.channels
        split = scope.producer(part.name, "Reshape")
        if split is not None and scope.sizes(split.input[0]) == (part.batch, part.words, width):
            flat.append(split.input[0])
        else:
            flat.append(shaped("Reshape", part.name, [0, 0, width]))
    query, _, value = parts
    if mask and isinstance(query.words, int):
        sizes = scope.sizes(mask) or ()
        if sizes[2] != query.words:
            mask = shaped("Expand", mask, [1, 1, query.words, 1])
    made = scope.make(
        "MultiHeadAttention",
        [*flat, "", "", mask] if mask else flat,
        num_heads=query.heads,
        scale=scale,
    )
    made.domain = RUNTIME_DOMAIN
    nodes.append(made)
    shape = [0, 0, value.heads, value.channels]
    if isinstance(query.batch, int) and isinstance(query.words, int):
        shape[:2] = [query.batch, query.words]
    shaped("Reshape", made.output[0], shape, node.output[0])
    scope.replace(node, *nodes)


RULES = (rule(attention, "Transpose"),)
"""The rule for attention."""
