"""What a rule is."""

from collections.abc import Callable
from dataclasses import dataclass

import onnx

from autotune.graph.algebra.scope import Scope


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One piece of algebra.

    Attributes:
        operators: Types of the nodes at which it starts: the last nodes of what it replaces.
        apply: Changes the graph around such a node and returns True, or returns False.
    """

    operators: frozenset[str]
    apply: Callable[[Scope, onnx.NodeProto], bool]

    @property
    def name(self) -> str:
        """The name of its function."""
        return self.apply.__name__


def rule(apply: Callable[[Scope, onnx.NodeProto], bool], operators: str) -> Rule:
    """Returns the rule of a function for nodes of these types, with spaces between them."""
    return Rule(operators=frozenset(operators.split()), apply=apply)
