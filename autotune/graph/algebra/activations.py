"""Activations that exporters write out, as the operators that runtimes have kernels for."""

import math
from collections.abc import Mapping

import numpy as np
import onnx

from autotune.facts.graphs import RUNTIME_DOMAIN, operator_of
from autotune.graph.algebra.expressions import (
    bounded,
    is_close,
    linear,
    polynomial,
    product,
)
from autotune.graph.algebra.scope import Scope

# Two units in the last place of a 32-bit float at 1.
_TWO_ULP = 2.0**-22
# The coefficients of powers of x in the arguments of GELU's erf and tanh.
_ERF_GELU = {1: math.sqrt(0.5)}
_TANH_GELU = {1: math.sqrt(2 / math.pi), 3: 0.044715 * math.sqrt(2 / math.pi)}


def hard_sigmoid(scope: Scope, node: onnx.NodeProto) -> bool:
    """Makes ``k clip(a x + b, 0, h)`` with ``k h = 1``, and products with it, a HardSigmoid.

    ``clip(a x + b, 0, h) / h = clip((a / h) x + b / h, 0, 1)``, which is HardSigmoid(x) with alpha
    a / h and beta b / h. Where the clip is not at a bound, both sides round a value below 1 at most
    four times, so they differ by at most 2^-22; a product with x differs by that times x. NaN gives
    NaN on both sides. The product of x and its hard sigmoid, a hard swish, may be finite where
    ``x clip(x + 3, 0, 6)`` overflowed before it was divided.
    """
    number, factors = 1.0, tuple(node.output)
    if operator_of(node) in ("Mul", "Div"):
        number, factors = product(scope, node)
    for place, factor in enumerate(factors):
        bounds = bounded(scope, factor)
        if bounds is None or bounds.low != 0 or not 0 < bounds.high < math.inf:
            continue
        if factor != node.output[0] and not scope.is_private(factor):
            continue
        base, scale, offset = linear(scope, bounds.base)
        if base == bounds.base or not scale or not scope.is_float32(base):
            continue
        if not is_close(number * bounds.high, 1.0, _TWO_ULP):
            continue
        others = factors[:place] + factors[place + 1 :]
        sigmoid = scope.make(
            "HardSigmoid",
            [base],
            "" if others else node.output[0],
            alpha=scale / bounds.high,
            beta=offset / bounds.high,
        )
        scope.replace(node, sigmoid, *_multiplied(scope, sigmoid.output[0], others, node.output[0]))
        return True
    return False


def _multiplied(
    scope: Scope, tensor: str, factors: tuple[str, ...], output: str
) -> list[onnx.NodeProto]:
    """Returns the nodes that multiply a tensor by others; the last one writes `output`."""
    nodes: list[onnx.NodeProto] = []
    for i, factor in enumerate(factors):
        is_last = i == len(factors) - 1
        nodes.append(scope.make("Mul", [factor, tensor], output if is_last else ""))
        tensor = nodes[-1].output[0]
    return nodes


def clip(scope: Scope, node: onnx.NodeProto) -> bool:
    """Makes bounds one after another, or written with Min and Max, one Relu or Clip.

    A number that is clipped to (a, b) and then to (c, d) is clipped to a and b clipped to (c, d):
    no rounding. All of these operators return NaN for NaN.
    """
    bounds = bounded(scope, node.output[0])
    if bounds is None or not scope.is_float32(bounds.base):
        return False
    if operator_of(node) in ("Clip", "Relu") and bounds.base == node.input[0]:
        return False
    if bounds.low == 0 and bounds.high == math.inf:
        scope.replace(node, scope.make("Relu", [bounds.base], node.output[0]))
        return True
    if not math.isfinite(bounds.low) or not math.isfinite(bounds.high):
        return False
    if scope.opset < 11:
        made = scope.make("Clip", [bounds.base], node.output[0], min=bounds.low, max=bounds.high)
    else:
        limits = [
            scope.constant(np.array(value, np.float32), f"{node.output[0]}/bound")
            for value in bounds[1:]
        ]
        made = scope.make("Clip", [bounds.base, *limits], node.output[0])
    scope.replace(node, made)
    return True


def gelu(scope: Scope, node: onnx.NodeProto) -> bool:
    """Makes every spelling of GELU one operator: ONNX's own from opset 20 on, else ONNX Runtime's.

    ``k x (s erf(x / √2) + s)`` with ``k s = 1/2``, and the same with
    ``tanh(√(2/π) (x + 0.044715 x³))``, however products and powers are ordered. Numbers may differ
    from these by 1e-6 of their size, which is how exporters round them. Each side rounds at most
    ten times, and a gate of at most 1 is multiplied by x: they differ by at most 1e-6 times x.
    """
    number, factors = product(scope, node)
    if len(factors) != 2:
        return False
    for base, gate in (factors, factors[::-1]):
        tensor, scale, offset = linear(scope, gate)
        function = scope.producer(tensor, "Erf", "Tanh")
        # ONNX Runtime's operators take no number without axes
        if function is None or not scope.is_float32(base) or not scope.rank(base):
            continue
        if not (is_close(scale, offset) and is_close(number * scale, 0.5)):
            continue
        is_erf = operator_of(function) == "Erf"
        if _has_powers(scope, function.input[0], base, _ERF_GELU if is_erf else _TANH_GELU):
            if scope.opset >= 20:
                form = "none" if is_erf else "tanh"
                made = scope.make("Gelu", [base], node.output[0], approximate=form)
            else:
                made = scope.make("Gelu" if is_erf else "FastGelu", [base], node.output[0])
                made.domain = RUNTIME_DOMAIN
            scope.replace(node, made)
            return True
    return False


def _has_powers(scope: Scope, name: str, base: str, expected: Mapping[int, float]) -> bool:
    """Returns whether a tensor is a polynomial of `base` with these coefficients."""
    powers = polynomial(scope, name, base) or {}
    powers = {power: value for power, value in powers.items() if value}
    return powers.keys() == expected.keys() and all(
        is_close(powers[power], value) for power, value in expected.items()
    )
