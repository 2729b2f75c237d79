"""How large the inputs of products are, for each channel: the largest size and the mean."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from autotune.facts.feeds import Feed
from autotune.graph import sensitivity
from autotune.graph.wiring import Wiring

Array = NDArray[Any]


class Channels(NamedTuple):
    """Figures of a tensor, one for each channel.

    Attributes:
        largest: The largest absolute value.
        mean: The mean.
    """

    largest: Array
    mean: Array


def channel_axis(node: onnx.NodeProto) -> int:
    """Returns the axis of the channels in the first input and the output of a product."""
    return 1 if node.op_type == "Conv" else -1


def product_inputs(wiring: Wiring, model: onnx.ModelProto) -> dict[str, int]:
    """Returns the tensors that products with constant weights take, each with its channel axis.

    A tensor that a convolution takes by one axis, and a matrix product by another, is left out.
    """
    axes: dict[str, set[int]] = {}
    for node in model.graph.node:
        if wiring.input_axis(node) is not None and wiring.constant(node.input[0]) is None:
            axes.setdefault(node.input[0], set()).add(channel_axis(node))
    return {name: own.pop() for name, own in axes.items() if len(own) == 1}


def measure(model: onnx.ModelProto, samples: Sequence[Feed]) -> dict[str, list[list[float]]]:
    """Returns the largest values and the means of the inputs of all products, as JSON values.

    Args:
        model: The model, its nodes named.
        samples: Calibration samples.
    """
    axes = product_inputs(Wiring(model), model)
    largest: dict[str, Array] = {}
    means: dict[str, list[Array]] = {}
    for name, array in sensitivity.tensors(model, list(axes), samples):
        flat = np.moveaxis(np.asarray(array, np.float64), axes[name], 0)
        flat = flat.reshape(flat.shape[0], -1)
        if not flat.size:
            continue
        size = np.abs(flat).max(axis=1)
        largest[name] = np.maximum(largest[name], size) if name in largest else size
        means.setdefault(name, []).append(flat.mean(axis=1))
    return {
        name: [largest[name].tolist(), np.mean(means[name], axis=0).tolist()] for name in largest
    }


def from_json(data: Mapping[str, Sequence[Sequence[float]]]) -> dict[str, Channels]:
    """Returns what :func:`measure` returned, as arrays."""
    return {name: Channels(*(np.asarray(part) for part in parts)) for name, parts in data.items()}
