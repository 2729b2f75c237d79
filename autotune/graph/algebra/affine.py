"""Constant factors and summands go into the weights of the convolution or product beside them.

All of these rules compute new weights and biases in 64 bits from the old ones and round each once
to the type that the weight has, by at most half a unit in its last place. So the outputs differ as
much as if the weights had been stored once more: by about half a unit in the last place of the sum
of the absolute values of the terms. Where a weight or bias would overflow, or lose digits below the
smallest normal number, a rule does not apply. Where a product overflowed before it was scaled down,
the answer is finite now. NaN and infinity in the input reach the same outputs: no factor is zero.
"""

from typing import NamedTuple

import numpy as np
import onnx

from autotune.facts.graphs import attribute_of, operator_of
from autotune.graph.algebra.expressions import rounds
from autotune.graph.algebra.scope import Array, Scope
from autotune.graph.algebra.weights import (
    Weighted,
    channels_of,
    input_scaled,
    input_shifted,
    output_scaled,
    output_shifted,
    weighted,
)


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
    is_training = attribute_of(node, "training_mode", 0) or sum(map(bool, node.output)) > 1
    rank = scope.rank(node.input[0])
    if is_training or rank is None or rank < 2 or not attribute_of(node, "spatial", 1):
        return None
    vectors = [np.asarray(values, np.float64) for values in arrays if values is not None]
    if len(vectors) < 4:
        return None
    gamma, beta, mean, variance = vectors
    spread = variance + float(attribute_of(node, "epsilon", 1e-5))
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
    if attribute_of(item.node, "transA", 0):
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
