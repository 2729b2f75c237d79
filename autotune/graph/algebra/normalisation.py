"""Normalisations, softmax and squares in parts, as one operator or as runtimes know them."""

from typing import NamedTuple

import numpy as np
import onnx

from autotune.facts.graphs import attribute_of, operator_of
from autotune.graph.algebra.expressions import linear, polynomial, product, with_number
from autotune.graph.algebra.scope import Array, Scope
from autotune.graph.algebra.structure import axes_of

_LAYER_NORM = "Add Add Div Mul Pow ReduceMean ReduceMean Sqrt Sub".split()
_RMS_NORM = "Add Div Mul Pow ReduceMean Sqrt".split()


class _Normalised(NamedTuple):
    """A tensor divided by the root of its mean square.

    Attributes:
        base: What is normalised, the mean taken off where it is taken off.
        is_centred: Whether the mean is taken off.
        axes: The axes of the means.
        epsilon: What is added to the mean square.
        gain: A constant that multiplies the result; None where there is none.
    """

    base: str
    is_centred: bool
    axes: tuple[int, ...]
    epsilon: float
    gain: Array | None


def normalisation(scope: Scope, node: onnx.NodeProto) -> bool:
    """Makes every spelling of layer and RMS normalisation one.

    ``d / sqrt(mean(d²) + ε)`` is the same whether it is a quotient or a product with a reciprocal,
    whether squares are products or powers, and wherever the gain is multiplied; d is x, or x minus
    its mean. Layer normalisation is ONNX's operator from opset 17 on, RMS normalisation from opset
    23 on. Before that the nodes are written as ONNX Runtime's fusions look for them, and no other
    rule changes them. Each side rounds every value at most six times, besides the sums of the
    means: a value differs by a few units in its last place.
    """
    bias, root = None, node
    if operator_of(node) == "Add":
        places = [i for i in (0, 1) if scope.floats(node.input[i]) is not None]
        if len(places) != 1 or not scope.is_private(node.input[1 - places[0]]):
            return False
        inner = scope.producer(node.input[1 - places[0]], "Mul", "Div")
        if inner is None:
            return False
        bias, root = scope.floats(node.input[places[0]]), inner
    normalised = _normalised(scope, root)
    if normalised is None or not scope.is_float32(normalised.base):
        return False
    shape = scope.shape(normalised.base)
    if not shape or list(normalised.axes) != [len(shape) - 1]:
        return False
    write = _write_layer_norm if normalised.is_centred else _write_rms_norm
    return write(scope, node, normalised, bias)


def _normalised(scope: Scope, node: onnx.NodeProto) -> _Normalised | None:
    """Returns how the output of a Mul or Div is normalised, or None."""
    number, factors = product(scope, node)
    constants = [array for array in map(scope.floats, factors) if array is not None]
    others = [name for name in factors if scope.floats(name) is None]
    if number != 1 or len(constants) > 1:
        return None
    gain = constants[0] if constants else None
    for centred, root in _quotients(scope, others):
        total = linear(scope, root)
        mean = scope.producer(total.base, "ReduceMean")
        if mean is None or total.scale != 1 or total.offset <= 0:
            continue
        axes = _axes(scope, mean)
        if not axes or not attribute_of(mean, "keepdims", 1):
            continue
        if polynomial(scope, mean.input[0], centred) != {2: 1.0}:
            continue
        base = _centred(scope, centred, axes)
        if base is None and _may_pass_for_centred(scope, centred):
            continue
        return _Normalised(base or centred, base is not None, tuple(axes), total.offset, gain)
    return None


def _axes(scope: Scope, node: onnx.NodeProto) -> list[int] | None:
    """Returns the axes of a reduction, counted from the first one; None where they are unknown."""
    axes, rank = axes_of(scope, node), scope.rank(node.input[0])
    return sorted(axis % rank for axis in axes) if axes and rank else None


def _quotients(scope: Scope, factors: list[str]) -> list[tuple[str, str]]:
    """Returns the tensors a and v where the product of the factors is ``a / sqrt(v)``."""
    if len(factors) == 1:
        node = scope.producer(factors[0], "Div")
        below = _root(scope, node.input[1], 0.5) if node else None
        return [(node.input[0], below)] if node and below else []
    if len(factors) != 2:
        return []
    pairs = ((factors[0], factors[1]), (factors[1], factors[0]))
    roots = [(name, _root(scope, other, -0.5)) for name, other in pairs]
    return [(name, root) for name, root in roots if root]


def _root(scope: Scope, name: str, power: float) -> str | None:
    """Returns v where the tensor `name` is v to the power of 0.5 or -0.5."""
    node = scope.producer(name, "Sqrt", "Pow", "Reciprocal", "Div")
    if node is None:
        return None
    if operator_of(node) == "Sqrt":
        return str(node.input[0]) if power > 0 else None
    if operator_of(node) == "Reciprocal":
        return _root(scope, node.input[0], -power)
    parts = with_number(scope, node)
    if parts is None:
        return None
    tensor, number, place = parts
    if operator_of(node) == "Pow":
        return tensor if place == 1 and number == power else None
    return _root(scope, tensor, -power) if place == 0 and number == 1 else None


def _centred(scope: Scope, name: str, axes: list[int]) -> str | None:
    """Returns x where the tensor `name` is x minus its mean over these axes."""
    difference = scope.producer(name, "Sub")
    if difference is None:
        return None
    mean = scope.producer(difference.input[1], "ReduceMean")
    if mean is None or mean.input[0] != difference.input[0] or _axes(scope, mean) != axes:
        return None
    return str(mean.input[0]) if attribute_of(mean, "keepdims", 1) else None


def _may_pass_for_centred(scope: Scope, name: str) -> bool:
    """Returns whether ONNX Runtime takes a tensor for x minus its mean, which it is not.

    Its fusion of layer normalisation asks for a difference with a mean, in whatever order.
    """
    difference = scope.producer(name, "Sub")
    return difference is not None and any(
        scope.producer(item, "ReduceMean") is not None for item in difference.input
    )


def _vector(values: Array | None, size: int, default: float) -> Array | None:
    """Returns a constant as a vector of one number for each of `size` channels of the last axis.

    None where the constant differs along another axis, and a vector of `default` without any.
    """
    if values is None:
        return np.full(size, default, np.float32)
    if values.dtype != np.float32 or values.size not in (1, size):
        return None
    if values.size == size > 1 and values.shape[-1] != size:
        return None
    return np.ascontiguousarray(np.broadcast_to(values.reshape(-1), (size,)))


def _vectors(
    scope: Scope, node: onnx.NodeProto, normalised: _Normalised, bias: Array | None
) -> list[str] | None:
    """Returns the names of gain and bias as vectors along the last axis, or None."""
    shape = scope.shape(normalised.base)
    size = shape[-1] if shape else None
    if size is None or any(
        a is not None and a.ndim > len(shape or ()) for a in (normalised.gain, bias)
    ):
        return None
    gains, shifts = _vector(normalised.gain, size, 1.0), _vector(bias, size, 0.0)
    if gains is None or shifts is None:
        return None
    return [
        scope.constant(gains, f"{node.output[0]}/gain"),
        scope.constant(shifts, f"{node.output[0]}/bias"),
    ]


def _write_layer_norm(
    scope: Scope, node: onnx.NodeProto, normalised: _Normalised, bias: Array | None
) -> bool:
    base, output = normalised.base, node.output[0]
    if scope.opset < 17 and _settle(scope, node, base, _LAYER_NORM):
        return False
    vectors = _vectors(scope, node, normalised, bias)
    if vectors is None:
        return False
    if scope.opset >= 17:
        inputs = [base, *vectors]
        operator = "LayerNormalization"
        made = scope.make(operator, inputs, output, axis=-1, epsilon=normalised.epsilon)
        scope.replace(node, made)
        return True
    mean = scope.make("ReduceMean", [base], axes=[-1], keepdims=1)
    centred = scope.make("Sub", [base, mean.output[0]])
    nodes = _quotient(scope, centred.output[0], normalised.epsilon)
    gained = scope.make("Mul", [nodes[-1].output[0], vectors[0]])
    last = scope.make("Add", [gained.output[0], vectors[1]], output)
    _write_settled(scope, node, [mean, centred, *nodes, gained, last])
    return True


def _write_rms_norm(
    scope: Scope, node: onnx.NodeProto, normalised: _Normalised, bias: Array | None
) -> bool:
    if bias is not None or (scope.opset < 23 and _settle(scope, node, normalised.base, _RMS_NORM)):
        return False
    vectors = _vectors(scope, node, normalised, None)
    if vectors is None or normalised.gain is None:
        return False
    output = node.output[0]
    if scope.opset >= 23:
        inputs = [normalised.base, vectors[0]]
        operator = "RMSNormalization"
        made = scope.make(operator, inputs, output, axis=-1, epsilon=normalised.epsilon)
        scope.replace(node, made)
        return True
    nodes = _quotient(scope, normalised.base, normalised.epsilon)
    last = scope.make("Mul", [nodes[-1].output[0], vectors[0]], output)
    _write_settled(scope, node, [*nodes, last])
    return True


def _quotient(scope: Scope, base: str, epsilon: float) -> list[onnx.NodeProto]:
    """Returns the nodes that divide a tensor by the root of the mean square of its last axis."""
    two = scope.constant(np.array(2, np.float32), f"{base}/two")
    added = scope.constant(np.array(epsilon, np.float32), f"{base}/epsilon")
    square = scope.make("Pow", [base, two])
    if scope.opset >= 18:
        last = scope.constant(np.array([-1], np.int64), f"{base}/axes")
        mean = scope.make("ReduceMean", [square.output[0], last], keepdims=1)
    else:
        mean = scope.make("ReduceMean", [square.output[0]], axes=[-1], keepdims=1)
    total = scope.make("Add", [mean.output[0], added])
    root = scope.make("Sqrt", [total.output[0]])
    return [square, mean, total, root, scope.make("Div", [base, root.output[0]])]


def _write_settled(scope: Scope, node: onnx.NodeProto, nodes: list[onnx.NodeProto]) -> None:
    scope.settled.update(item.output[0] for item in nodes)
    scope.replace(node, *nodes)


def _settle(scope: Scope, node: onnx.NodeProto, base: str, operators: list[str]) -> bool:
    """Settles the nodes from `base` to a node if they have these types; returns whether they do."""
    nodes = {node.output[0]: node}
    pending = [*node.input]
    while pending:
        name = pending.pop()
        inner = scope.producer(name)
        if name == base or inner is None or name in nodes:
            continue
        if len(nodes) == len(operators):
            return False
        nodes[name] = inner
        pending += inner.input
    if sorted(operator_of(item) for item in nodes.values()) != operators:
        return False
    scope.settled.update(nodes)
    return True


def softmax(scope: Scope, node: onnx.NodeProto) -> bool:
    """Makes ``exp(x) / sum(exp(x))`` Softmax, with or without the maximum taken off before.

    Softmax takes the maximum off, which divides both by the same number: a value differs by a few
    units in its last place. Where exp(x) overflowed, the answer is right now.
    """
    power = scope.producer(node.input[0], "Exp")
    total = scope.producer(node.input[1], "ReduceSum")
    if power is None or total is None or total.input[0] != power.output[0]:
        return False
    axes, base = _axes(scope, total), power.input[0]
    rank = scope.rank(base)
    if not axes or len(axes) != 1 or not attribute_of(total, "keepdims", 1) or not rank:
        return False
    difference = scope.producer(base, "Sub")
    largest = scope.producer(difference.input[1], "ReduceMax") if difference else None
    if difference and largest and largest.input[0] == difference.input[0]:
        is_same = _axes(scope, largest) == axes and attribute_of(largest, "keepdims", 1)
        base = difference.input[0] if is_same else base
    # along another axis ONNX Runtime transposes twice and takes twenty times as long as the parts
    if not scope.is_float32(base) or axes[0] != rank - 1:
        return False
    scope.replace(node, scope.make("Softmax", [base], node.output[0], axis=rank - 1))
    return True


def square(scope: Scope, node: onnx.NodeProto) -> bool:
    """Makes ``x ** 2`` the product of x and x, which is what ONNX Runtime computes, more slowly.

    A square whose mean is taken stays: fusions of normalisations look for it.
    """
    parts = with_number(scope, node)
    consumers = scope.consumers(node.output[0])
    if parts is None or parts[1:] != (2.0, 1) or not scope.is_float32(parts[0]):
        return False
    if any(operator_of(item) == "ReduceMean" for item in consumers):
        return False
    scope.replace(node, scope.make("Mul", [parts[0], parts[0]], node.output[0]))
    return True
