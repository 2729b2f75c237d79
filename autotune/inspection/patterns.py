"""What the elementwise operators and reductions of a run are, and which rule of algebra takes them.

A rule of the pre-pass ``algebra`` pays where such operators take time. So this names the patterns
that take most of it, and which of them no rule takes: those are the next rules to write.
"""

from dataclasses import dataclass
from pathlib import Path

from autotune.deploy.records import MeasuredAmount, Text, Whole
from autotune.facts.workload import Workload
from autotune.inspection.asking import ask

_CHILD = "autotune.inspection.patterns_child"


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """Subgraphs of at most six elementwise operators and reductions that have one form.

    Attributes:
        expression: The form: the nodes from the last to the first, with letters for the tensors
            that they take, and ``constant`` for constants of several numbers.
        times: How many such subgraphs there are.
        nodes: How many nodes each of them has.
        time_ms: Time of all of them in a run.
        share: The same as a share of the time of all nodes.
        rules: The rules of algebra that change some of them.
    """

    expression: Text
    times: Whole
    nodes: Whole
    time_ms: MeasuredAmount
    share: MeasuredAmount
    rules: tuple[Text, ...]


@dataclass(frozen=True, kw_only=True)
class Elementwise:
    """The elementwise operators and reductions of the graph that ONNX Runtime makes of a model.

    Attributes:
        share: Their share of the time of all nodes.
        patterns: The patterns, the longest time first; at most :data:`MOST_PATTERNS`.
    """

    share: MeasuredAmount
    patterns: tuple[Pattern, ...]


MOST_PATTERNS = 10
"""How many patterns are named."""


def elementwise_time(model: Path, workload: Workload) -> Elementwise:
    """Returns what the elementwise operators of a run are, from a process of its own.

    Raises:
        CannotMeasureError: the optimised graph cannot be written or run; the message says why.
    """
    return ask(_CHILD, {"do": "patterns"}, model, workload.timing, Elementwise)
