"""What rounding to eight bits does to weights, and how it does less harm.

Clipping moves the largest weights so that the squared error of all is least. Correction adds to the
bias what rounded weights shift, by the mean of the input (Nagel et al., 2019, section 4.2). Both
change the float model a little; their error is that of the model that they give.
"""

from collections.abc import Collection, Mapping

import numpy as np
import onnx

from autotune.graph.channels import Channels
from autotune.graph.wiring import Array, Wiring

# Shares of the largest weight that are tried as the limit.
_LIMITS = np.linspace(1.0, 0.5, 26)
# Steps to each side of zero. Unsigned weights have their zero at 128, and one step less above it.
_STEPS, _STEPS_OF_REDUCED_RANGE, _STEPS_OF_UNSIGNED = 127.0, 64.0, 127.5
_MOST_OF_UNSIGNED = 127


def round_weight(
    weight: Array, axis: int | None, *, reduce_range: bool = False, unsigned: bool = False
) -> Array:
    """Returns the weight as ONNX Runtime rounds it to integers around zero.

    Args:
        weight: The weight.
        axis: The axis whose entries have a scale each; None for one scale.
        reduce_range: Whether seven bits are used instead of eight.
        unsigned: Whether the integers are unsigned, with zero at 128.
    """
    largest = _largest(weight, axis)
    return _rounded(weight, largest, reduce_range=reduce_range, unsigned=unsigned)


def _largest(weight: Array, axis: int | None) -> Array:
    others = (
        None if axis is None else tuple(i for i in range(weight.ndim) if i != axis % weight.ndim)
    )
    return np.asarray(np.abs(weight).max(axis=others, keepdims=True))


def _rounded(weight: Array, limit: Array, *, reduce_range: bool, unsigned: bool) -> Array:
    steps = _STEPS_OF_UNSIGNED if unsigned else _STEPS
    step = limit / (_STEPS_OF_REDUCED_RANGE if reduce_range else steps)
    step = np.where(step > 0, step, 1.0)
    counts = np.round(np.clip(weight, -limit, limit) / step)
    return np.asarray(np.minimum(counts, _MOST_OF_UNSIGNED) * step)


def clip(
    model: onnx.ModelProto,
    names: Collection[str],
    *,
    per_channel: bool,
    reduce_range: bool,
    unsigned: bool = False,
) -> None:
    """Clips the weights of products at the limits that round them with the least squared error.

    Args:
        model: The float model, its nodes named; changed in place.
        names: The nodes that will be quantised. Those that share a weight share the clipped one.
        per_channel: Whether each output channel has a limit of its own.
        reduce_range: Whether weights will have seven bits.
        unsigned: Whether weights will be unsigned.
    """
    wiring = Wiring(model)
    clipped: dict[tuple[str, int | None], str] = {}
    for node in model.graph.node:
        taken = wiring.input_axis(node) if node.name in names else None
        weight = wiring.constant(node.input[1]) if taken is not None else None
        if weight is None:
            continue
        axis = output_axis(node, taken or 0) if per_channel else None
        place = (node.input[1], axis)
        if place in clipped:
            node.input[1] = clipped[place]
            continue
        largest = _largest(weight, axis)
        others = tuple(i for i in range(weight.ndim) if largest.shape[i] == 1)
        errors = []
        for share in _LIMITS:
            limit = share * largest
            rounded = _rounded(weight, limit, reduce_range=reduce_range, unsigned=unsigned)
            errors.append(((rounded - weight) ** 2).sum(axis=others, keepdims=True))
        limit = _LIMITS[np.argmin(errors, axis=0)] * largest
        wiring.replace(node, 1, np.clip(weight, -limit, limit))
        clipped[place] = node.input[1]
    wiring.drop_unused()


def output_axis(node: onnx.NodeProto, taken: int) -> int:
    """Returns the axis of a product's output channels in its weight.

    Args:
        node: The product.
        taken: The axis that its first input is multiplied with.
    """
    return 0 if node.op_type == "Conv" else 1 - taken


def correct_bias(
    model: onnx.ModelProto,
    inputs: Mapping[str, Channels],
    names: Collection[str],
    *,
    per_channel: bool,
    reduce_range: bool,
    unsigned: bool = False,
) -> None:
    """Takes from the bias of products what the rounding of their weights adds on average.

    A product whose bias is neither its own nor that of an addition after it is left alone.

    Args:
        model: The float model, its nodes named; changed in place.
        inputs: Figures of the products' inputs.
        names: The nodes that will be quantised.
        per_channel: Whether each output channel of a weight has a scale of its own.
        reduce_range: Whether weights will have seven bits.
        unsigned: Whether weights will be unsigned.
    """
    wiring = Wiring(model)
    for node in model.graph.node:
        taken = wiring.input_axis(node)
        if taken is None or node.name not in names or node.input[0] not in inputs:
            continue
        weight = np.asarray(wiring.constant(node.input[1]), np.float64)
        axis = output_axis(node, taken)
        rounded = round_weight(
            weight, axis if per_channel else None, reduce_range=reduce_range, unsigned=unsigned
        )
        shift = _mean_output(node, rounded - weight, taken, inputs[node.input[0]].mean)
        place = _bias(wiring, node, len(shift))
        if place is not None:
            taker, index, values = place
            wiring.replace(taker, index, values - shift)
    wiring.drop_unused()


def _mean_output(node: onnx.NodeProto, weight: Array, taken: int, mean: Array) -> Array:
    """Returns the mean output of a product for inputs of this mean, far from the borders."""
    if node.op_type != "Conv":
        return np.asarray(np.tensordot(mean, weight, axes=(0, taken)))
    flat = weight.reshape(*weight.shape[:2], -1).sum(axis=2)
    return np.asarray(flat[:, 0] * mean if taken == 0 else flat @ mean)


def _bias(
    wiring: Wiring, node: onnx.NodeProto, channels: int
) -> tuple[onnx.NodeProto, int, Array] | None:
    """Returns the node that adds the bias of a product, the input that has it, and its values."""
    if any(item.name in {"alpha", "beta"} and item.f != 1 for item in node.attribute):
        return None
    if node.op_type in {"Conv", "Gemm"}:
        has_bias = len(node.input) > 2 and node.input[2]
        values = wiring.constant(node.input[2]) if has_bias else np.zeros(channels)
        return None if values is None else (node, 2, values)
    takers = wiring.takers(node.output[0])
    if len(takers) == 1 and takers[0].op_type == "Add" and not wiring.is_shared(node.output[0]):
        for i in (0, 1):
            values = wiring.constant(takers[0].input[i])
            if values is not None and values.ndim and values.shape[-1] == channels == values.size:
                return takers[0], i, values
    return None
