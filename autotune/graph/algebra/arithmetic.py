"""Powers and quotients by a number, as operators that take a fraction of the time."""

import math

import numpy as np
import onnx

from autotune.graph.algebra.expressions import linear, polynomial, with_number
from autotune.graph.algebra.rule import rule
from autotune.graph.algebra.scope import Scope


def square_root(scope: Scope, node: onnx.NodeProto) -> bool:
    """Makes ``x ** 0.5`` a square root where x cannot be negative.

    Both round once. Of minus infinity, and of minus zero, which a sum of squares is not, they would
    differ.
    """
    parts = with_number(scope, node)
    if parts is None or parts[1:] != (0.5, 1) or not _is_positive(scope, parts[0]):
        return False
    scope.replace(node, scope.make("Sqrt", [parts[0]], node.output[0]))
    return True


def _is_positive(scope: Scope, name: str) -> bool:
    """Returns whether a tensor is a mean or sum of squares, or one with a positive number added."""
    total = linear(scope, name)
    node = scope.producer(total.base, "ReduceMean", "ReduceSum", "ReduceSumSquare", "Abs", "Exp")
    if node is None or total.scale <= 0 or total.offset < 0:
        return False
    if node.op_type in ("ReduceMean", "ReduceSum"):
        inner = scope.producer(node.input[0], "Mul", "Pow")
        base = inner.input[0] if inner else ""
        return bool(base) and polynomial(scope, node.input[0], base) == {2: 1.0}
    return True


def square(scope: Scope, node: onnx.NodeProto) -> bool:
    """Makes ``x ** 2`` the product of x and x, which is what ONNX Runtime computes, more slowly.

    A square whose mean is taken stays: fusions of normalisations look for it.
    """
    parts = with_number(scope, node)
    consumers = scope.consumers(node.output[0])
    if parts is None or parts[1:] != (2.0, 1) or not scope.is_float32(parts[0]):
        return False
    if any(item.op_type == "ReduceMean" for item in consumers):
        return False
    scope.replace(node, scope.make("Mul", [parts[0], parts[0]], node.output[0]))
    return True


def quotient(scope: Scope, node: onnx.NodeProto) -> bool:
    """Makes a quotient by a power of two a product with its reciprocal: no rounding changes.

    The scale of attention stays: fusions look for the quotient.
    """
    parts = with_number(scope, node)
    if parts is None or parts[2] != 1 or math.frexp(abs(parts[1]))[0] != 0.5:
        return False
    tensor, number, _ = parts
    nodes = [scope.producer(tensor), *scope.consumers(node.output[0])]
    if any(item is not None and item.op_type == "MatMul" for item in nodes):
        return False
    values = scope.floats(node.input[1])
    if values is None or not np.isfinite(np.array(1 / number, values.dtype)):
        return False
    reciprocal = scope.constant((1 / values).astype(values.dtype), f"{node.output[0]}/reciprocal")
    scope.replace(node, scope.make("Mul", [tensor, reciprocal], node.output[0]))
    return True


RULES = (
    rule(square_root, "Pow"),
    rule(square, "Pow"),
    rule(quotient, "Div"),
)
"""The rules for powers and quotients."""
