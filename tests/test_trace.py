"""What the trace of ONNX Runtime's profiler says."""

from typing import Any

import pytest

from autotune.inspection.profile import CASTS, REORDERS
from autotune.inspection.trace import summarise


def _run(start: float, duration: float) -> dict[str, Any]:
    return {"cat": "Session", "name": "model_run", "ts": start, "dur": duration, "tid": 1}


def _node(name: str, operator: str, start: float, duration: float, **others: Any) -> dict[str, Any]:
    arguments = {"op_name": operator, "provider": "CPUExecutionProvider", **others}
    return {
        "cat": "Node",
        "name": f"{name}_kernel_time",
        "ts": start,
        "dur": duration,
        "tid": 1,
        "args": arguments,
    }


def _trace(*runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the events of runs that begin every 1000 microseconds."""
    events = []
    for i, nodes in enumerate(runs):
        events.append(_run(1000 * i, 500))
        events += [{**node, "ts": 1000 * i + node["ts"]} for node in nodes]
    return events


def test_cold_run_is_left_out() -> None:
    cold = [_node("a", "Conv", 0, 400)]
    profile = summarise(
        _trace(cold, [_node("a", "Conv", 0, 100)], [_node("a", "Conv", 0, 300)]), 7.0
    )
    assert profile.runs == 2
    assert profile.run_ms == 7.0
    assert profile.operators[0].time_ms == pytest.approx(0.2)
    assert profile.operators[0].nodes == 1


def test_interrupted_run_does_not_count() -> None:
    runs = [
        [_node("a", "Conv", 0, time), _node("b", "Add", 450, 10)] for time in (90, 100, 440, 110)
    ]
    profile = summarise(_trace(*runs), 1.0)
    assert profile.operators[0].time_ms == pytest.approx(0.11)
    assert profile.operators[0].share == pytest.approx(110 / 120)


def test_repeated_node_counts_as_often_as_it_runs() -> None:
    nodes = [_node("a", "Add", 10 * i, 5) for i in range(4)]
    row = summarise(_trace(nodes, nodes), 1.0).operators[0]
    assert row.nodes == 4
    assert row.time_ms == pytest.approx(0.02)


def test_node_with_a_subgraph_counts_its_own_time() -> None:
    nodes = [_node("if", "If", 0, 100), _node("conv", "Conv", 10, 50), _node("add", "Add", 65, 30)]
    profile = summarise(_trace(nodes, nodes), 1.0)
    times = {row.name: row.time_ms for row in profile.slowest}
    assert times == {
        "conv": pytest.approx(0.05),
        "add": pytest.approx(0.03),
        "if": pytest.approx(0.02),
    }
    assert sum(row.share for row in profile.operators) == pytest.approx(1)


def test_overheads_are_summed_by_what_they_do() -> None:
    nodes = [
        _node("in", "ReorderInput", 0, 10),
        _node("conv", "Conv", 10, 70),
        _node("out", "ReorderOutput", 80, 20),
    ]
    profile = summarise(_trace(nodes, nodes), 1.0)
    assert profile.overhead(REORDERS).share == pytest.approx(0.3)
    assert profile.overhead(REORDERS).nodes == 2
    assert profile.overhead(CASTS).time_ms == 0
    assert len(profile.overheads) == 1


def test_provider_changes_count_within_a_run() -> None:
    names = ["CUDAExecutionProvider", "CPUExecutionProvider", "CPUExecutionProvider"]
    nodes = [_node(str(i), "Add", 10 * i, 5, provider=name) for i, name in enumerate(names)]
    profile = summarise(_trace(nodes, nodes, nodes), 1.0)
    assert profile.provider_changes == 1
    assert {row.name for row in profile.providers} == set(names)


def _with_arena(in_use: int, delta: int, peak: int) -> list[dict[str, Any]]:
    """Returns a run of one node, with the counters of the arena in MiB."""
    counters = {
        "mem_bytes_in_use": str(in_use << 20),
        "mem_in_use_delta": str(delta << 20),
        "mem_in_use_peak": str(peak << 20),
        "mem_arena_held": str(64 << 20),
    }
    return [_node("a", "Conv", 0, 10, **counters)]


def test_memory_by_the_arena_s_counters() -> None:
    profile = summarise(_trace(_with_arena(12, 2, 12), _with_arena(14, 4, 25)), 1.0)
    assert (profile.weights_mib, profile.activations_mib, profile.arena_mib) == (10, 15, 64)


def test_peak_of_loading_is_no_activation() -> None:
    nodes = _with_arena(12, 2, 50)
    assert summarise(_trace(nodes, nodes), 1.0).activations_mib == 2


def test_without_an_arena_there_are_no_counters() -> None:
    nodes = [_node("a", "Conv", 0, 10)]
    profile = summarise(_trace(nodes, nodes), 1.0)
    assert (profile.weights_mib, profile.activations_mib, profile.arena_mib) == (None, None, None)


def test_trace_of_one_run_is_refused() -> None:
    with pytest.raises(ValueError, match="fewer than two runs"):
        summarise(_trace([_node("a", "Conv", 0, 10)]), 1.0)
