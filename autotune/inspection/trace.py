"""The trace that ONNX Runtime's profiler writes: a list of events in Chrome's trace format.

An event has the category ``Session`` or ``Node``, a start ``ts`` and a duration ``dur`` in
microseconds and the thread ``tid``. Events of a subgraph lie inside the event of the node that has
it. The numbers of an event's ``args`` are strings.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

from autotune.inspection.profile import MOST_NODES, OVERHEADS, Profile, TimeShare

Event = Mapping[str, Any]


class _Node(NamedTuple):
    """What tells a node from the others of a trace."""

    name: str
    operator: str
    provider: str


_NODE_ENDING = "_kernel_time"
_MIB = 1 << 20


def summarise(events: Sequence[Event], run_ms: float) -> Profile:
    """Returns what the trace of several runs says; the first run is left out, because it is cold.

    Raises:
        ValueError: the trace has fewer than two runs.
    """
    runs = sorted((e for e in events if e["name"] == "model_run"), key=_start)[1:]
    if not runs:
        raise ValueError("the profiler's trace has fewer than two runs")
    nodes = node_events(events)
    warm = [event for event in nodes if event["ts"] >= runs[0]["ts"]]
    table = _Table(warm, _own_times(warm), len(runs))
    return Profile(
        run_ms=run_ms,
        profiled_ms=median(run["dur"] for run in runs) / 1e3,
        runs=len(runs),
        operators=table.by(lambda node: (node.operator, "")),
        slowest=table.by(lambda node: (node.name, node.operator))[:MOST_NODES],
        overheads=tuple(
            row
            for name, operators in OVERHEADS.items()
            if (row := table.of(name, operators)) is not None
        ),
        executed=len(warm) / len(runs),
        providers=table.by(lambda node: (node.provider, "")),
        provider_changes=_provider_changes(warm, runs) / len(runs),
        **_memory(nodes),
    )


def node_events(events: Iterable[Event]) -> list[Event]:
    """Returns the events of executed nodes in the order in which they began."""
    nodes = (e for e in events if e.get("cat") == "Node" and e["name"].endswith(_NODE_ENDING))
    return sorted(nodes, key=_start)


def node_name(event: Event) -> str:
    """Returns the name of the event's node."""
    name: str = event["name"].removesuffix(_NODE_ENDING)
    return name


class _Table:
    """Times of nodes over several runs.

    A node counts with its median time: a run that was interrupted has a node of many times that.
    """

    def __init__(self, events: Sequence[Event], own_us: Sequence[float], runs: int) -> None:
        times: dict[_Node, list[float]] = defaultdict(list)
        for event, time_us in zip(events, own_us, strict=True):
            arguments = event["args"]
            node = _Node(node_name(event), arguments["op_name"], arguments.get("provider", ""))
            times[node].append(time_us)
        self._counts = {node: len(each) / runs for node, each in times.items()}
        self._times_us = {node: self._counts[node] * median(each) for node, each in times.items()}
        self._total_us = sum(self._times_us.values()) or 1.0

    def by(self, key: Callable[[_Node], tuple[str, str]]) -> tuple[TimeShare, ...]:
        """Returns a row for each name and operator that `key` gives, the longest first."""
        groups: dict[tuple[str, str], list[_Node]] = defaultdict(list)
        for node in self._times_us:
            groups[key(node)].append(node)
        rows = [self._row(*names, nodes) for names, nodes in groups.items()]
        return tuple(sorted(rows, key=lambda row: -row.time_ms))

    def of(self, name: str, operators: Container[str]) -> TimeShare | None:
        """Returns one row for all nodes of these operator types; None where there are none."""
        nodes = [node for node in self._times_us if node.operator in operators]
        return self._row(name, "", nodes) if nodes else None

    def _row(self, name: str, operator: str, nodes: Sequence[_Node]) -> TimeShare:
        time_us = sum(self._times_us[node] for node in nodes)
        return TimeShare(
            name=name,
            operator=operator,
            nodes=sum(self._counts[node] for node in nodes),
            time_ms=time_us / 1e3,
            share=time_us / self._total_us,
        )


def _start(event: Event) -> float:
    return float(event["ts"])


def _own_times(events: Sequence[Event]) -> list[float]:
    """Returns the time of each event in microseconds without that of the events inside it."""
    own_us = [float(event["dur"]) for event in events]
    around: dict[Any, list[int]] = defaultdict(list)
    for i in sorted(range(len(events)), key=lambda i: _order(events[i])):
        thread = around[events[i]["tid"]]
        while thread and _end(events[thread[-1]]) < _end(events[i]):
            thread.pop()
        if thread:
            own_us[thread[-1]] -= float(events[i]["dur"])
        thread.append(i)
    return [max(0.0, time_us) for time_us in own_us]


def _order(event: Event) -> tuple[float, float]:
    # of two events that start together the longer one holds the other
    return _start(event), -float(event["dur"])


def _end(event: Event) -> float:
    return _start(event) + float(event["dur"])


def _provider_changes(events: Sequence[Event], runs: Sequence[Event]) -> int:
    """Returns how often one provider follows another; the passage to the next run is none."""
    names = [event["args"].get("provider", "") for event in events]
    changes = sum(int(before != after) for before, after in pairwise(names))
    between = len(runs) - 1 if names and names[0] != names[-1] else 0
    return changes - between


def _memory(events: Sequence[Event]) -> dict[str, float | None]:
    """Returns the memory of the arena by its counters, which exist only where there is an arena."""
    counted = [event["args"] for event in events if "mem_bytes_in_use" in event["args"]]
    if not counted:
        return {"weights_mib": None, "activations_mib": None, "arena_mib": None}
    first = counted[0]
    before = int(first["mem_bytes_in_use"]) - int(first["mem_in_use_delta"])
    # the peak since the start: that of loading may be higher than that of any run
    peak = int(counted[-1]["mem_in_use_peak"])
    if peak == int(first["mem_in_use_peak"]):
        peak = max(int(arguments["mem_bytes_in_use"]) for arguments in counted)
    return {
        "weights_mib": max(0, before) / _MIB,
        "activations_mib": max(0, peak - before) / _MIB,
        "arena_mib": int(counted[-1]["mem_arena_held"]) / _MIB,
    }
