"""Powers and quotients by a number, as operators that take a fraction of the time."""

import onnx

from autotune.facts.graphs import operator_of
from autotune.graph.algebra.expressions import with_number
from autotune.graph.algebra.rule import rule
from autotune.graph.algebra.scope import Scope


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


RULES = (rule(square, "Pow"),)
"""The rules for powers and quotients."""
