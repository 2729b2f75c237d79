"""Nodes with constant weights that a factor or a summand of their input or output can go into."""

from typing import NamedTuple

import numpy as np
import onnx

from autotune.facts.graphs import attribute_of, operator_of
from autotune.graph.algebra.scope import Array, Scope

WEIGHTED = ("Conv", "ConvTranspose", "MatMul", "Gemm")
"""The operators that this is about."""


class Weighted(NamedTuple):
    """A Conv, ConvTranspose, MatMul or Gemm of a tensor and a constant weight.

    Attributes:
        node: The node.
        weight: The weight.
        bias: The bias; None where the node has none.
        groups: Groups of channels, 1 but for convolutions.
    """

    node: onnx.NodeProto
    weight: Array
    bias: Array | None
    groups: int

    @property
    def is_convolution(self) -> bool:
        """Whether its channels are axis 1 of its input and output, instead of the last one."""
        return operator_of(self.node) in ("Conv", "ConvTranspose")

    @property
    def input_axis(self) -> int:
        """The axis of the weight that the input's channels are multiplied with."""
        if operator_of(self.node) == "Conv":
            return 1
        return 1 if attribute_of(self.node, "transB", 0) else 0

    @property
    def output_channels(self) -> int:
        """The number of channels of the output."""
        size = self.weight.shape[0 if operator_of(self.node) == "Conv" else 1 - self.input_axis]
        return int(size) * (self.groups if operator_of(self.node) == "ConvTranspose" else 1)

    @property
    def input_channels(self) -> int:
        """The number of channels of the input."""
        size = int(self.weight.shape[self.input_axis])
        return size * (self.groups if operator_of(self.node) == "Conv" else 1)


def weighted(scope: Scope, node: onnx.NodeProto | None) -> Weighted | None:
    """Returns a node with its constant weight and bias.

    None where it has another operator, its weight is no constant matrix or filter of floats that
    may change, or its bias is no constant.
    """
    if node is None or operator_of(node) not in WEIGHTED or len(node.input) < 2:
        return None
    if node.output[0] in scope.settled or scope.array(node.input[0]) is not None:
        return None
    weight = scope.floats(node.input[1]) if scope.is_changeable(node.input[1]) else None
    is_filter = operator_of(node) in ("Conv", "ConvTranspose")
    if weight is None or weight.ndim < 2 or (weight.ndim > 2) != is_filter:
        return None
    bias = None
    if len(node.input) > 2 and node.input[2]:
        bias = scope.floats(node.input[2])
        if bias is None:
            return None
    groups = int(attribute_of(node, "group", 1)) if is_filter else 1
    return Weighted(node, weight, bias, groups)


def channels_of(values: Array, item: Weighted, count: int, rank: int | None) -> Array | None:
    """Returns the number of each channel in a constant that is added to or multiplies a tensor.

    Args:
        values: The constant.
        item: The node before or after it.
        count: Channels of the tensor.
        rank: Axes of the node's input; None where that is not known.

    Returns:
        A vector of `count` numbers, or of one number; None where the constant differs along
        another axis, or could give the result more axes.
    """
    if values.ndim > (item.weight.ndim if operator_of(item.node) != "MatMul" else rank or 1):
        return None
    if values.size == 1:
        return values.reshape(1)
    axis = values.ndim - 1 - (item.weight.ndim - 2 if item.is_convolution else 0)
    if axis < 0 or values.shape[axis] != count or values.size != count:
        return None
    return values.reshape(count)


def rounded(values: Array, like: Array, old: Array | None = None) -> Array | None:
    """Returns numbers of 64 bits in the type of an array, rounded once.

    None where one of them overflows or loses digits below the smallest normal number.

    Args:
        values: The numbers.
        like: The array whose type they get.
        old: The numbers that they come from: where those are zero, zero loses nothing.
    """
    smallest = np.finfo(like.dtype).tiny
    is_small = np.abs(values) < smallest
    is_zero = values == 0 if old is None else old == 0
    if np.any(is_small & ~is_zero):
        return None
    with np.errstate(over="ignore"):
        result: Array = values.astype(like.dtype)
    return result if np.all(np.isfinite(result)) else None


def output_scaled(item: Weighted, scale: Array) -> list[Array] | None:
    """Returns weight and bias of the node whose output is `scale` times as large.

    Args:
        item: The node.
        scale: A number for each channel of the output, or one for all.
    """
    factor = np.asarray(scale, np.float64)
    weight = item.weight.astype(np.float64)
    if factor.size == 1:
        wide = weight * factor
    elif operator_of(item.node) == "ConvTranspose":
        groups, inputs, outputs = item.groups, weight.shape[0], weight.shape[1]
        tall = weight.reshape(groups, inputs // groups, outputs, -1)
        wide = (tall * factor.reshape(groups, 1, outputs, 1)).reshape(weight.shape)
    else:
        axis = 0 if operator_of(item.node) == "Conv" else 1 - item.input_axis
        shape = [1] * weight.ndim
        shape[axis] = -1
        wide = weight * factor.reshape(shape)
    results = [rounded(wide, item.weight, item.weight)]
    if item.bias is not None:
        bias = item.bias.astype(np.float64)
        results.append(rounded(bias * factor, item.bias, bias * np.ones_like(factor)))
    whole = [array for array in results if array is not None]
    return whole if len(whole) == len(results) else None


def input_scaled(item: Weighted, scale: Array) -> Array | None:
    """Returns the weight of the node that computes the same from an input divided by `scale`.

    Args:
        item: The node.
        scale: A number for each channel of the input, or one for all.
    """
    factor = np.asarray(scale, np.float64)
    weight = item.weight.astype(np.float64)
    if factor.size == 1:
        return rounded(weight * factor, item.weight, item.weight)
    if operator_of(item.node) == "Conv":
        rows = np.repeat(factor.reshape(item.groups, -1), len(weight) // item.groups, axis=0)
        wide = weight * rows.reshape(*weight.shape[:2], *[1] * (weight.ndim - 2))
    else:
        shape = [1] * weight.ndim
        shape[item.input_axis] = -1
        wide = weight * factor.reshape(shape)
    return rounded(wide, item.weight, item.weight)


def output_shifted(item: Weighted, shift: Array) -> Array | None:
    """Returns the bias of the node whose output is greater by `shift`.

    Args:
        item: The node, no MatMul.
        shift: A number for each channel of the output, or one for all.
    """
    beta = float(attribute_of(item.node, "beta", 1.0))  # a Gemm without C may have one, too
    if not beta:
        return None
    own = np.zeros(1) if item.bias is None else item.bias.astype(np.float64)
    bias = own + np.asarray(shift, np.float64) / beta
    if item.is_convolution:
        bias = np.broadcast_to(bias, (item.output_channels,))
    return rounded(bias, item.weight)


def input_shifted(item: Weighted, shift: Array) -> Array | None:
    """Returns the bias of the node that computes the same from an input less `shift`.

    None where borders of zeros take no part in the shift.

    Args:
        item: The node, no MatMul.
        shift: A number for each channel of the input, or one for all.
    """
    node = item.node
    weight = item.weight.astype(np.float64)
    numbers = np.broadcast_to(np.asarray(shift, np.float64), (item.input_channels,))
    if operator_of(node) == "Gemm":
        if attribute_of(node, "transA", 0):
            return None
        alpha = float(attribute_of(node, "alpha", 1.0))
        return output_shifted(item, alpha * np.tensordot(numbers, weight, (0, item.input_axis)))
    has_pads = any(attribute_of(node, "pads", []))
    automatic = attribute_of(node, "auto_pad", b"NOTSET")
    if operator_of(node) != "Conv" or has_pads or automatic not in (b"NOTSET", b"VALID"):
        return None
    rows = np.repeat(numbers.reshape(item.groups, -1), len(weight) // item.groups, axis=0)
    sums = weight.reshape(*weight.shape[:2], -1).sum(axis=2)
    return output_shifted(item, (rows * sums).sum(axis=1))
