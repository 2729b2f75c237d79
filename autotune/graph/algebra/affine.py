"""Constant factors and summands go into the weights of the convolution or product beside them.

All of these rules compute new weights and biases in 64 bits from the old ones and round each once
to the type that the weight has, by at most half a unit in its last place. So the outputs differ as
much as if the weights had been stored once more: by about half a unit in the last place of the sum
of the absolute values of the terms. Where a weight or bias would overflow, or lose digits below the
smallest normal number, a rule does not apply. Where a product overflowed before it was scaled down,
the answer is finite now. NaN and infinity in the input reach the same outputs: no factor is zero.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import onnx

from autotune.facts.graphs import operator_of
from autotune.graph.algebra.expressions import rounds, with_number
from autotune.graph.algebra.rule import rule
from autotune.graph.algebra.scope import Array, Scope, attribute
from autotune.graph.algebra.weights import (
    Weighted,
    channels_of,
    input_scaled,
    input_shifted,
    output_scaled,
    output_shifted,
    rounded,
    weighted,
)

# A number that multiplies their input multiplies their output.
_LINEAR = frozenset(
    "Reshape Transpose Squeeze Unsqueeze Flatten Identity Slice Expand Tile Neg DepthToSpace "
    "SpaceToDepth GlobalAveragePool AveragePool ReduceMean ReduceSum".split()
)
# The same for positive numbers alone.
_MONOTONE = frozenset("Relu LeakyRelu MaxPool GlobalMaxPool ReduceMax ReduceMin Abs".split())


class Affine(NamedTuple):
    """What a node does to its input: ``scale * input + shift``, each a constant."""

    tensor: str
    scale: Array
    shift: Array


def affine(scope: Scope, node: onnx.NodeProto) -> Affine | None:
    """Returns what a Mul, Div, Add, Sub, Neg or BatchNormalization does to its input.

    None where it has no constant, or divides by zero.
    """
    one, zero = np.ones(()), np.zeros(())
    if operator_of(node) == "Neg":
        return Affine(node.input[0], -one, zero)
    if operator_of(node) == "BatchNormalization":
        return _normalisation(scope, node)
    arrays = [scope.floats(name) for name in node.input]
    place = next((i for i, values in enumerate(arrays) if values is not None), None)
    if place is None or scope.array(node.input[1 - place]) is not None:
        return None
    values = np.asarray(arrays[place], np.float64)
    tensor = node.input[1 - place]
    if operator_of(node) in ("Add", "Sub") and rounds(arrays[place]):
        return None
    if operator_of(node) == "Mul":
        return Affine(tensor, values, zero) if np.all(values) else None
    if operator_of(node) == "Div":
        return Affine(tensor, 1 / values, zero) if place == 1 and np.all(values) else None
    if operator_of(node) == "Add":
        return Affine(tensor, one, values)
    return Affine(tensor, one, -values) if place == 1 else Affine(tensor, -one, values)


def _normalisation(scope: Scope, node: onnx.NodeProto) -> Affine | None:
    arrays = [scope.floats(name) for name in node.input[1:5]]
    is_training = attribute(node, "training_mode", 0) or sum(map(bool, node.output)) > 1
    rank = scope.rank(node.input[0])
    if is_training or rank is None or rank < 2 or not attribute(node, "spatial", 1):
        return None
    vectors = [np.asarray(values, np.float64) for values in arrays if values is not None]
    if len(vectors) < 4:
        return None
    gamma, beta, mean, variance = vectors
    spread = variance + float(attribute(node, "epsilon", 1e-5))
    if np.any(spread <= 0) or not np.all(gamma):
        return None
    scale = gamma / np.sqrt(spread)
    shape = (-1, *[1] * (rank - 2))
    return Affine(node.input[0], scale.reshape(shape), (beta - mean * scale).reshape(shape))


def into_producer(scope: Scope, node: onnx.NodeProto) -> bool:
    """Puts what a node does to the output of a product into the product's weight and bias.

    ``s (W x + b) + t = (s W) x + (s b + t)``, with a number s and t for each channel of the output.
    """
    form = affine(scope, node)
    if form is None or not scope.is_private(form.tensor):
        return False
    item = weighted(scope, scope.producer(form.tensor))
    if item is None:
        return False
    rank = scope.rank(item.node.input[0])
    scale = channels_of(form.scale, item, item.output_channels, rank)
    shift = channels_of(form.shift, item, item.output_channels, rank)
    if scale is None or shift is None:
        return False
    is_scaled, is_shifted = bool(np.any(scale != 1)), bool(np.any(shift))
    if operator_of(item.node) == "MatMul" and (is_shifted or not is_scaled):
        return False  # it has no bias, and fusions look for one behind it, even for zeros
    if is_scaled:
        arrays = output_scaled(item, scale)
        if arrays is None:
            return False
        item = item._replace(weight=arrays[0], bias=arrays[1] if len(arrays) > 1 else None)
    if is_shifted:
        bias = output_shifted(item, shift)
        if bias is None:
            return False
        item = item._replace(bias=bias)
    if not scope.bypass(node, form.tensor):
        return False
    _write(scope, item)
    return True


def _write(scope: Scope, item: Weighted) -> None:
    """Gives a node its new weight and bias."""
    changes = {1: scope.constant(item.weight, f"{item.node.input[1]}/scaled")}
    if item.bias is not None:
        changes[2] = scope.constant(item.bias, f"{item.node.output[0]}/bias")
    scope.rewire(item.node, changes)


def into_consumers(scope: Scope, node: onnx.NodeProto) -> bool:
    """Puts what a node does to the input of products into their weights and biases.

    ``W (s x + t) + b = (W s) x + (W t + b)``, with a number s and t for each channel of the input.
    A convolution pads its input with zeros: s leaves those as they are, and where there are pads,
    t is not zero there, so that the rule does not apply.
    """
    form = affine(scope, node)
    output = node.output[0]
    consumers = scope.consumers(output)
    if form is None or scope.is_visible(output) or not consumers or _adds_axes(scope, form):
        return False
    changed = []
    for consumer in consumers:
        item = weighted(scope, consumer)
        if item is None or [*consumer.input].count(output) > 1 or consumer.input[0] != output:
            return False
        new = _with_input(item, form, scope.rank(form.tensor))
        if new is None or _may_widen(scope, node, form, item):
            return False
        changed.append(new)
    if not scope.bypass(node, form.tensor):
        return False
    for item in changed:
        _write(scope, item)
    return True


def _adds_axes(scope: Scope, form: Affine) -> bool:
    """Returns whether a constant may give its tensor more axes than that has."""
    axes, rank = max(form.scale.ndim, form.shift.ndim), scope.rank(form.tensor)
    return axes > 0 if rank is None else axes > rank


def _may_widen(scope: Scope, node: onnx.NodeProto, form: Affine, item: Weighted) -> bool:
    """Returns whether a constant may give its tensor more channels than that has: one becomes many.

    The product would take the one.
    """
    if operator_of(node) == "BatchNormalization" or max(form.scale.size, form.shift.size) == 1:
        return False
    shape = scope.shape(form.tensor)
    return not shape or shape[1 if item.is_convolution else -1] != item.input_channels


def _with_input(item: Weighted, form: Affine, rank: int | None) -> Weighted | None:
    """Returns a product that takes the input of an affine node instead of its output."""
    if attribute(item.node, "transA", 0):
        return None
    scale = channels_of(form.scale, item, item.input_channels, rank)
    shift = channels_of(form.shift, item, item.input_channels, rank)
    if scale is None or shift is None:
        return None
    if np.any(shift):
        if operator_of(item.node) == "MatMul":
            return None
        bias = input_shifted(item, shift)
        if bias is None:
            return None
        item = item._replace(bias=bias)
    weight = input_scaled(item, scale)
    return None if weight is None else item._replace(weight=weight)


def number_up(scope: Scope, node: onnx.NodeProto) -> bool:
    """Puts a number that multiplies a tensor into the products and constants that make the tensor.

    Reshape, Transpose, Concat, means and the like, and sums, commute with the number; Relu,
    LeakyRelu and maxima do if it is positive. So ``s relu(W x + b)`` is ``relu((s W) x + (s b))``,
    and the number of a sum goes into each summand. Nothing else takes the values on the way.
    """
    factor = _factor(scope, node)
    if factor is None or not scope.is_private(factor.tensor) or _is_attention(scope, node):
        return False
    changes = _sources(scope, factor.tensor, factor.number)
    if changes is None or not scope.bypass(node, factor.tensor):
        return False
    for change in changes:
        change()
    return True


def number_down(scope: Scope, node: onnx.NodeProto) -> bool:
    """Puts a number that multiplies a tensor into the products that alone take the tensor.

    They may take it through the same operators as in `number_up`, but for sums.
    """
    factor = _factor(scope, node)
    if factor is None:
        return False
    changes = _sinks(scope, node.output[0], factor.number)
    if changes is None or not scope.bypass(node, factor.tensor):
        return False
    for change in changes:
        change()
    return True


class _Factor(NamedTuple):
    tensor: str
    number: float


def _factor(scope: Scope, node: onnx.NodeProto) -> _Factor | None:
    """Returns the tensor that a node multiplies by a number other than zero."""
    parts = with_number(scope, node)
    if parts is None or not parts[1] or not np.isfinite(parts[1]):
        return None
    tensor, number, place = parts
    if operator_of(node) == "Div" and place == 0:
        return None
    return _Factor(tensor, number if operator_of(node) == "Mul" else 1 / number)


def _is_attention(scope: Scope, node: onnx.NodeProto) -> bool:
    """Returns whether a product of two activations takes the number: ONNX Runtime fuses that."""
    return any(
        operator_of(item) == "MatMul" and all(scope.array(name) is None for name in item.input)
        for item in scope.consumers(node.output[0])
    )


_Changes = list[Callable[[], None]]


def _sources(scope: Scope, name: str, number: float, depth: int = 16) -> _Changes | None:
    """Returns what makes a tensor `number` times as large, or None."""
    node = scope.producer(name)
    if node is None or not depth or not scope.is_private(name) or name in scope.settled:
        return None
    item = weighted(scope, node)
    if item is not None:
        arrays = output_scaled(item, np.array([number]))
        if arrays is None:
            return None
        new = item._replace(weight=arrays[0], bias=arrays[1] if len(arrays) > 1 else None)
        return [lambda: _write(scope, new)]
    if _passes(node, number):
        return _sources(scope, node.input[0], number, depth - 1)
    if operator_of(node) not in ("Add", "Sub", "Concat"):
        return None
    changes: _Changes = []
    constants = [i for i, tensor in enumerate(node.input) if scope.array(tensor) is not None]
    if len(constants) == len(node.input):
        return None
    for i, tensor in enumerate(node.input):
        own = (
            _scaled_constant(scope, node, i, number)
            if i in constants
            else _sources(scope, tensor, number, depth - 1)
        )
        if own is None:
            return None
        changes += own
    return changes


def _scaled_constant(
    scope: Scope, node: onnx.NodeProto, place: int, number: float
) -> _Changes | None:
    values = scope.floats(node.input[place])
    if values is None or rounds(values) or not scope.is_changeable(node.input[place]):
        return None
    scaled = rounded(values.astype(np.float64) * number, values, values)
    if scaled is None:
        return None
    stem = f"{node.input[place]}/scaled"
    return [lambda: scope.rewire(node, {place: scope.constant(scaled, stem)})]


def _passes(node: onnx.NodeProto, number: float) -> bool:
    """Returns whether a node's output is `number` times as large where its first input is."""
    if sum(map(bool, node.output)) != 1:
        return False
    return operator_of(node) in _LINEAR or (operator_of(node) in _MONOTONE and number > 0)


def _sinks(scope: Scope, name: str, number: float, depth: int = 16) -> _Changes | None:
    """Returns what makes the consumers of a tensor take one that is not yet multiplied, or None."""
    consumers = scope.consumers(name)
    if not consumers or not depth or scope.is_visible(name):
        return None
    changes: _Changes = []
    for node in consumers:
        if node.input[0] != name or [*node.input].count(name) > 1:
            return None
        item = weighted(scope, node)
        if item is not None:
            weight = input_scaled(item, np.array([number]))
            if weight is None:
                return None
            changes.append(_writer(scope, item._replace(weight=weight)))
            continue
        if node.output[0] in scope.settled or not _passes(node, number):
            return None
        own = _sinks(scope, node.output[0], number, depth - 1)
        if own is None:
            return None
        changes += own
    return changes


def _writer(scope: Scope, item: Weighted) -> Callable[[], None]:
    return lambda: _write(scope, item)


RULES = (
    rule(into_producer, "Mul Div Add Sub Neg BatchNormalization"),
    rule(into_consumers, "Mul Div Add Sub Neg BatchNormalization"),
    rule(number_up, "Mul Div"),
    rule(number_down, "Mul Div"),
)
"""The rules for constant factors and summands."""
