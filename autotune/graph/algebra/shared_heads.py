"""Products with matrices that were repeated for several heads, as exporters write grouped queries.

Opset 23's Attention takes grouped queries too. It is not written: it refuses masks that broadcast
along words, takes a row whose mask is the lowest float for one that is hidden and answers zeros,
needs the opset raised, and took 0.47 to 0.57 of the time of the parts where these products took
0.23 to 0.52. GroupQueryAttention hides later words whatever the mask says, and MultiHeadAttention
with repeated keys took twice the time of the parts.
"""

from typing import NamedTuple

import numpy as np
import onnx

from autotune.facts.graphs import attribute_of, operator_of
from autotune.graph.algebra.expressions import with_number
from autotune.graph.algebra.scope import Scope
from autotune.graph.algebra.structure import axes_of, with_tensor

_LAST_TWO = [0, 1, 3, 2]


class _Shared(NamedTuple):
    """A tensor of four axes whose second one was repeated.

    Attributes:
        base: The tensor before that.
        heads: Its second size.
        groups: How often each of them was repeated, one after the other.
    """

    base: str
    heads: int
    groups: int


def grouped_product(scope: Scope, node: onnx.NodeProto) -> bool:
    """Multiplies the rows of all heads that share a matrix with that matrix, not with its copies.

    Row s of head ``k G + g`` is multiplied with matrix k. In ``x`` reshaped from [batch, heads,
    rows, columns] to [batch, heads / G, G rows, columns], that is row ``g rows + s`` of head k:
    Reshape keeps the order. Matrices that are turned, or multiplied by a number, are so before they
    would be repeated. So each number is the same sum of products; as there are more rows for a
    matrix, another kernel may sum them in another order. Masks, Softmax and what follows take the
    shape that they had; a number that multiplies the product does so before it gets that shape,
    where ONNX Runtime fuses it. No value moves, so infinity and NaN stay where they were. A tensor
    without elements and with an open number of rows cannot be reshaped.
    """
    left, matrix = node.input
    steps = []
    while (step := _step(scope, matrix)) is not None:
        steps.append(step)
        matrix = with_tensor(scope, step)
    shared = _shared(scope, matrix)
    sizes = scope.sizes(left) or ()
    if shared is None or len(sizes) != 4 or sizes[1] != shared.heads * shared.groups:
        return False
    rows, stem = sizes[2], node.output[0]
    together = [0, shared.heads, rows * shared.groups if isinstance(rows, int) else -1, 0]
    apart = [0, shared.heads * shared.groups, rows if isinstance(rows, int) else -1, 0]
    nodes: list[onnx.NodeProto] = []
    changed = shared.base
    for step in reversed(steps):
        nodes.append(_again(scope, step, matrix, changed))
        matrix, changed = step.output[0], nodes[-1].output[0]
    nodes.append(scope.make("Reshape", [left, _shape(scope, together, stem)]))
    nodes.append(scope.make("MatMul", [nodes[-1].output[0], changed]))
    scaling = _scaling(scope, node)
    if scaling is not None:
        nodes.append(_again(scope, scaling, stem, nodes[-1].output[0]))
    last = scaling or node
    shape = _shape(scope, apart, stem)
    nodes.append(scope.make("Reshape", [nodes[-1].output[0], shape], last.output[0]))
    scope.replace(last, *nodes)
    return True


def _step(scope: Scope, name: str) -> onnx.NodeProto | None:
    """Returns the node that turns matrices or multiplies them by a number, for one product."""
    node = scope.producer(name, "Transpose", "Mul", "Div") if scope.is_private(name) else None
    if node is None or operator_of(node) == "Transpose":
        return node if node and list(attribute_of(node, "perm", ())) == _LAST_TWO else None
    parts = with_number(scope, node)
    return node if parts and not (operator_of(node) == "Div" and parts[2] == 0) else None


def _again(scope: Scope, node: onnx.NodeProto, name: str, other: str) -> onnx.NodeProto:
    """Returns a new node that does to `other` what a node does to `name`."""
    made = scope.make(operator_of(node), [other if item == name else item for item in node.input])
    made.attribute.extend(node.attribute)
    return made


def _shape(scope: Scope, sizes: list[int], stem: str) -> str:
    return scope.constant(np.array(sizes, np.int64), f"{stem}/shape")


def _scaling(scope: Scope, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """Returns the node that alone takes a product and multiplies it by a number."""
    name = node.output[0]
    if not scope.is_private(name):
        return None
    (consumer,) = scope.consumers(name)
    is_factor = operator_of(consumer) in ("Mul", "Div")
    return consumer if is_factor and with_number(scope, consumer) is not None else None


def _shared(scope: Scope, name: str) -> _Shared | None:
    """Returns what was repeated along a new third axis that was merged with the second one.

    The third size after that is the number of groups, and the merged tensor has as many elements as
    the first one times that number. So nothing else was repeated.
    """
    merged = scope.producer(name, "Reshape")
    repeated = scope.producer(merged.input[0], "Expand", "Tile") if merged else None
    split = scope.producer(repeated.input[0], "Unsqueeze", "Reshape") if repeated else None
    if repeated is None or split is None:
        return None
    base = split.input[0]
    sizes, result = scope.sizes(base) or (), scope.sizes(name) or ()
    if len(sizes) != 4 or len(result) != 4 or None in sizes:
        return None
    batch, heads, *matrix = sizes
    if operator_of(split) == "Unsqueeze":
        is_split = axes_of(scope, split) in ([2], [-3])
    else:
        is_split = scope.sizes(split.output[0]) == (batch, heads, 1, *matrix)
    if not is_split or (batch, *matrix) != (result[0], *result[2:]):
        return None
    if not isinstance(heads, int) or not isinstance(result[1], int) or not heads:
        return None
    groups = result[1] // heads
    grown = scope.sizes(repeated.output[0]) or ()
    if len(grown) != 5 or grown[2] != groups or groups * heads != result[1]:
        return None
    return _Shared(base, heads, groups)
