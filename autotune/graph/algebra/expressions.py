"""Reads what a tensor is in terms of another one: a linear form, a product, bounds, a polynomial.

Numbers are taken as they are stored, and computed with in 64 bits. An operation is resolved only
where its constant has one element and gives the result no axis.
"""

import math
from typing import NamedTuple

import numpy as np
import onnx

from autotune.facts.graphs import attribute_of, operator_of
from autotune.graph.algebra.scope import Array, Scope

_MOST_STEPS = 32
_HIGHEST_DEGREE = 4
# What a Clip without a bound has as its bound: it makes infinities finite.
_LARGEST_FLOAT = 3.4028234663852886e38
# Beside such summands floats of these types have few bits left behind the point.
_ROUNDING = {"float16": 2.0**8, "float32": 2.0**13, "float64": 2.0**42}


class Linear(NamedTuple):
    """``scale * base + offset``."""

    base: str
    scale: float
    offset: float


class Product(NamedTuple):
    """A number times tensors, of which a tensor can be there twice."""

    number: float
    factors: tuple[str, ...]


class Bounded(NamedTuple):
    """``min(max(base, low), high)``."""

    base: str
    low: float
    high: float


def with_number(scope: Scope, node: onnx.NodeProto) -> tuple[str, float, int] | None:
    """Returns the tensor and the number that an operation of two inputs takes.

    The third value is the place of the number. None where there is no number, or two, and for a sum
    that rounds.
    """
    if len(node.input) != 2 or _rounds(scope, node):
        return None
    first, second = node.input
    for place, (tensor, number) in enumerate([(second, first), (first, second)]):
        value = scope.number(number, beside=tensor)
        if value is not None and scope.array(tensor) is None:
            return tensor, value, place
    return None


def rounds(values: Array | None) -> bool:
    """Returns whether a summand is so large that what it is added to loses its digits.

    Adding and subtracting 1.5 * 2^23 is a way to round a float of 32 bits to whole numbers.
    """
    if values is None or values.dtype.name not in _ROUNDING:
        return False
    finite = np.where(np.isfinite(values), values, 0)  # infinity is a mask
    return bool(np.any(np.abs(finite) >= _ROUNDING[values.dtype.name]))


def _rounds(scope: Scope, node: onnx.NodeProto) -> bool:
    is_sum = operator_of(node) in ("Add", "Sub")
    return is_sum and any(rounds(scope.floats(name)) for name in node.input)


def linear(scope: Scope, name: str) -> Linear:
    """Returns a tensor as a linear form of another one.

    That one is no linear form itself, or is computed in any case because others take it too.
    """
    scale, offset = 1.0, 0.0
    for step in range(_MOST_STEPS):
        if step and not scope.is_private(name):
            break
        node = scope.producer(name, "Add", "Sub", "Mul", "Div", "Neg")
        if node is None:
            break
        if operator_of(node) == "Neg":
            name, scale = node.input[0], -scale
            continue
        parts = with_number(scope, node)
        if parts is None:
            break
        tensor, number, place = parts
        if operator_of(node) == "Mul":
            scale *= number
        elif operator_of(node) == "Add":
            offset += scale * number
        elif operator_of(node) == "Div" and place == 1 and number:
            scale /= number
        elif operator_of(node) == "Sub":
            offset += scale * (number if place == 0 else -number)
            scale = -scale if place == 0 else scale
        else:
            break
        name = tensor
    return Linear(name, scale, offset)


def product(scope: Scope, node: onnx.NodeProto) -> Product:
    """Returns the output of a Mul or Div as a product.

    Only factors that nothing else takes are resolved.
    """
    number, factors = 1.0, []
    pending: list[onnx.NodeProto | str] = [node]
    steps = 0
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            inner = scope.producer(item, "Mul", "Div") if scope.is_private(item) else None
            if inner is None or steps == _MOST_STEPS:
                factors.append(item)
                continue
            item = inner
        steps += 1
        parts = with_number(scope, item)
        if operator_of(item) == "Mul" and parts:
            number *= parts[1]
            pending.append(parts[0])
        elif operator_of(item) == "Mul":
            pending += [*item.input]
        elif parts and parts[2] == 1 and parts[1]:
            number /= parts[1]
            pending.append(parts[0])
        else:
            factors.append(item.output[0])
    return Product(number, tuple(factors))


def bounded(scope: Scope, name: str) -> Bounded | None:
    """Returns a tensor between bounds, however they are written; None where it has no bounds.

    A bound that is no constant, or greater than the other one, gives None. Bounds compose: a value
    that is bounded by (a, b), and then by (c, d), is bounded by both a and b clipped to (c, d).
    """
    bounds = None
    for _ in range(_MOST_STEPS):
        node = scope.producer(name, "Clip", "Relu", "Min", "Max")
        own = None if node is None else _own_bounds(scope, node)
        if own is None or (bounds and not scope.is_private(name)):
            break
        low, high = own.low, own.high
        if bounds:
            low, high = (min(max(value, bounds.low), bounds.high) for value in (low, high))
        bounds, name = Bounded(own.base, low, high), own.base
    return bounds


def _own_bounds(scope: Scope, node: onnx.NodeProto) -> Bounded | None:
    """Returns the bounds of one node."""
    base = node.input[0]
    low, high = -math.inf, math.inf
    if operator_of(node) == "Relu":
        low = 0.0
    elif operator_of(node) == "Clip":
        given = [-_LARGEST_FLOAT, _LARGEST_FLOAT]
        for i, name in enumerate(("min", "max")):
            if scope.opset < 11:
                given[i] = attribute_of(node, name, given[i])
            elif len(node.input) > i + 1 and node.input[i + 1]:
                number = scope.number(node.input[i + 1], beside=base)
                given[i] = math.nan if number is None else number
        low, high = given
    else:
        parts = with_number(scope, node)
        if parts is None:
            return None
        base, number, _ = parts
        low, high = (number, high) if operator_of(node) == "Max" else (low, number)
    return Bounded(base, low, high) if low <= high else None


def polynomial(scope: Scope, name: str, base: str, depth: int = 8) -> dict[int, float] | None:
    """Returns a tensor as a polynomial of `base`: the coefficient of each power.

    None where it is none, or of more than the fourth degree.
    """
    if name == base:
        return {1: 1.0}
    number = scope.number(name, beside=base)
    if number is not None:
        return {0: number}
    node = scope.producer(name, "Add", "Sub", "Mul", "Div", "Pow")
    if node is None or len(node.input) != 2 or not depth:
        return None
    first, second = (polynomial(scope, item, base, depth - 1) for item in node.input)
    if first is None or second is None or _rounds(scope, node):
        return None
    if operator_of(node) in ("Add", "Sub"):
        sign = 1 if operator_of(node) == "Add" else -1
        return {k: first.get(k, 0) + sign * second.get(k, 0) for k in first.keys() | second.keys()}
    if operator_of(node) == "Mul":
        return _times(first, second)
    if second.keys() != {0}:
        return None
    if operator_of(node) == "Div":
        return {k: value / second[0] for k, value in first.items()} if second[0] else None
    power = second[0]
    if power not in (1, 2, 3, 4):
        return None
    result: dict[int, float] | None = {0: 1.0}
    for _ in range(int(power)):
        result = None if result is None else _times(result, first)
    return result


def _times(first: dict[int, float], second: dict[int, float]) -> dict[int, float] | None:
    result: dict[int, float] = {}
    for i, x in first.items():
        for j, y in second.items():
            result[i + j] = result.get(i + j, 0.0) + x * y
    return result if max(result) <= _HIGHEST_DEGREE else None


def is_close(value: float, expected: float, tolerance: float = 1e-6) -> bool:
    """Returns whether a stored number is another one up to its rounding."""
    return math.isclose(value, expected, rel_tol=tolerance, abs_tol=0.0)
