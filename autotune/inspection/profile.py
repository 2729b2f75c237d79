"""Where the time of a run goes, by ONNX Runtime's own profiler.

The profiler slows a run down, by a lot where a run takes microseconds. So it has a process of its
own, and the latency beside its shares is measured without it.
"""

from dataclasses import dataclass
from pathlib import Path

from autotune.deploy.records import MeasuredAmount, Text, Whole
from autotune.deploy.session import SessionConfig
from autotune.facts.workload import Workload
from autotune.inspection.asking import ask

_CHILD = "autotune.inspection.profile_child"


@dataclass(frozen=True, kw_only=True)
class TimeShare:
    """The time of some nodes in a run.

    Attributes:
        name: The operator type, or the name of one node, or what the nodes have in common.
        operator: The operator type of one node; empty where there are several.
        nodes: How many times a run executes them.
        time_ms: Their time in a run, without that of the subgraphs inside them.
        share: The same as a share of the time of all nodes.
    """

    name: Text
    operator: Text
    nodes: MeasuredAmount
    time_ms: MeasuredAmount
    share: MeasuredAmount


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Where the time and the memory of a run go.

    Attributes:
        run_ms: Median time of a run without the profiler.
        profiled_ms: Median time of a run with it.
        runs: Runs with the profiler that count.
        slowest: The nodes that take longest, at most :data:`MOST_NODES` of them.
        overheads: The time of nodes that compute nothing: layout reorders, transposes, casts,
            quantising and dequantising, copies between devices. Those that a run does not have are
            left out.
        providers: The execution providers that ran them, with their time.
        provider_changes: How often a run passes from one provider to another.
        weights_mib: What the arena held before the first node: weights, mostly. None without an
            arena.
        activations_mib: The most that activations took beside that.
        arena_mib: What the arena had reserved at last; pages that were never written take no
            memory.
    """

    run_ms: MeasuredAmount
    profiled_ms: MeasuredAmount
    runs: Whole
    operators: tuple[TimeShare, ...]
    slowest: tuple[TimeShare, ...]
    overheads: tuple[TimeShare, ...]
    executed: MeasuredAmount
    providers: tuple[TimeShare, ...]
    provider_changes: MeasuredAmount
    weights_mib: MeasuredAmount | None
    activations_mib: MeasuredAmount | None
    arena_mib: MeasuredAmount | None

    def overhead(self, name: str) -> TimeShare:
        """Returns one of the overheads of :data:`OVERHEADS`; with no time if a run has none."""
        for overhead in self.overheads:
            if overhead.name == name:
                return overhead
        return TimeShare(name=name, operator="", nodes=0, time_ms=0, share=0)


MOST_NODES = 20
"""How many single nodes a profile names."""

REORDERS = "layout reorders"
CASTS = "casts"

OVERHEADS = {
    REORDERS: frozenset({"ReorderInput", "ReorderOutput"}),
    "transposes": frozenset({"Transpose"}),
    CASTS: frozenset({"Cast"}),
    "quantising and dequantising": frozenset(
        {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"}
    ),
    "copies between devices": frozenset({"MemcpyFromHost", "MemcpyToHost"}),
}
"""Operators that move or convert numbers and compute none, by what they do."""


def profile_session(model: Path, session: SessionConfig, workload: Workload) -> Profile:
    """Returns where the time of a run goes, from a process of its own.

    Args:
        workload: Its inputs; the timing samples are run in turn.

    Raises:
        CannotMeasureError: ONNX Runtime cannot open or run the model so; the message says why.
    """
    request = {"do": "profile", "session": session.to_json()}
    return ask(_CHILD, request, model, workload.timing, Profile, limit_s=900.0)
