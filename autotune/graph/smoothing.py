"""Functions that keep a model's answers and make it lose less by quantisation.

Smoothing moves outliers from the input of matrix products into their weights, where each channel
has room for them (Xiao et al., SmoothQuant, 2022). Equalisation gives the channels between two
convolutions ranges of one size (Nagel et al., Data-Free Quantization, 2019). Both are exact before
quantisation but for rounding.
"""

from collections.abc import Mapping

import numpy as np
import onnx

from autotune.graph.channels import Channels
from autotune.graph.wiring import Array, Constant, Wiring

# A factor beyond these would only move the outliers to the other side.
_LARGEST_FACTOR = 1e4
_SWEEPS = 20
_CLOSE = 0.01


MARK = "smoothing"
"""The documentation of the nodes that smoothing adds."""


def smooth(model: onnx.ModelProto, inputs: Mapping[str, Channels], alpha: float) -> None:
    """Moves outliers of activations into the weights of matrix products.

    All products that share an input share its factor, which is for channel j the largest activation
    to the power of `alpha` over the largest weight to the power of 1 - `alpha`. The input is
    divided by it for free where a normalisation or a product before it takes the factor, and by a
    node of its own elsewhere.

    Args:
        model: The float model, its nodes named; changed in place.
        inputs: Figures of the products' inputs.
        alpha: How much of an outlier goes into the weights, from 0 to 1.
    """
    wiring = Wiring(model)
    groups: dict[str, list[Constant]] = {}
    for node in model.graph.node:
        axis = wiring.input_axis(node) if node.op_type in {"MatMul", "Gemm"} else None
        if axis is not None and node.input[0] in inputs:
            groups.setdefault(node.input[0], []).append(Constant(node, 1, axis))
    for tensor, products in groups.items():
        weights = _largest_weights(wiring, products)
        factor = _power(inputs[tensor].largest, alpha) / _power(weights, 1 - alpha)
        factor = _limited(factor, (inputs[tensor].largest > 0) & (weights > 0))
        for product in products:
            wiring.scale(product, factor)
        alone = len(wiring.takers(tensor)) == len(products) and not wiring.is_shared(tensor)
        before = wiring.scalable(tensor, len(factor), -1) if alone else None
        if before is None:
            nodes = [product.node for product in products]
            wiring.insert_product(tensor, 1 / factor, nodes).doc_string = MARK
        for constant in before or ():
            wiring.scale(constant, 1 / factor)
    wiring.drop_unused()


def equalise(model: onnx.ModelProto) -> None:
    """Gives the channels between convolutions ranges of one size, by the weights on both sides.

    A tensor takes part if only convolutions take it and only convolutions, ReLU or LeakyReLU are
    before it. Its factor for a channel is the root of the ratio of the two largest weights.

    Args:
        model: The float model, its nodes named; changed in place.
    """
    wiring = Wiring(model)
    pairs: list[tuple[list[Constant], list[Constant]]] = []
    for tensor in dict.fromkeys(node.input[0] for node in model.graph.node if node.input):
        takers = wiring.takers(tensor)
        if wiring.is_shared(tensor) or any(node.op_type != "Conv" for node in takers):
            continue
        axes = [wiring.input_axis(node) for node in takers]
        after = [
            Constant(n, 1, axis) for n, axis in zip(takers, axes, strict=True) if axis is not None
        ]
        if len(after) < len(takers):
            continue
        before = wiring.scalable(tensor, len(_largest_weights(wiring, after)), 1)
        if before:
            pairs.append((before, after))
    for _ in range(_SWEEPS):
        moved = 0.0
        for before, after in pairs:
            first, second = _largest_weights(wiring, before[:1]), _largest_weights(wiring, after)
            usable = (first > 0) & (second > 0)
            factor = _limited(_power(first, 0.5) / _power(second, 0.5), usable)
            for constant in before:
                wiring.scale(constant, 1 / factor)
            for constant in after:
                wiring.scale(constant, factor)
            moved = max(moved, float(np.abs(np.log(factor)).max()))
        if moved < _CLOSE:
            break
    wiring.drop_unused()


def _largest_weights(wiring: Wiring, constants: list[Constant]) -> Array:
    """Returns the largest weight of each channel over all these constants."""
    sizes = []
    for node, index, axis in constants:
        values = wiring.constant(node.input[index])
        flat = np.moveaxis(np.abs(np.asarray(values, np.float64)), axis, 0)
        sizes.append(flat.reshape(flat.shape[0], -1).max(axis=1))
    return np.asarray(np.max(sizes, axis=0))


def _power(sizes: Array, exponent: float) -> Array:
    return np.asarray(np.where(sizes > 0, sizes, 1.0) ** exponent)


def _limited(factor: Array, usable: Array) -> Array:
    """Returns factors without extremes; channels that have no size on one side keep theirs."""
    factor = np.clip(factor, 1 / _LARGEST_FACTOR, _LARGEST_FACTOR)
    return np.asarray(np.where(usable, factor, 1.0))
