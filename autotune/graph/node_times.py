"""How long each node of two models takes, as ONNX Runtime executes them.

Both models are run in turns under the profiler, so that what slows the machine down slows both. A
node counts with its shortest time: what a neighbour adds to some of the runs is no part of it.
"""

import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from math import prod
from pathlib import Path
from typing import Any

import onnx

from autotune.facts.feeds import Feed
from autotune.facts.graphs import all_graphs, operator_of

REORDERS = ("com.microsoft.nchwc.ReorderInput", "com.microsoft.nchwc.ReorderOutput")
"""Operators that change the layout of a tensor."""

MOVES = frozenset({"QuantizeLinear", "DequantizeLinear", "Transpose", *REORDERS})
"""Operators that only bring numbers into another type or layout."""

_ENDING = "_kernel_time"
# Four models were divided in the same way by 25 runs in 0.4 s as by 200 in 1.5 s.
_SECONDS = 0.5
_FEWEST_RUNS, _MOST_RUNS = 8, 50
# Other names than those of tensors that are made ready for the tools.
_MARK = "autotune_node_{}_"
_MARKED = re.compile(r"autotune_node_(\d+)_")


@dataclass(frozen=True, kw_only=True)
class Executed:
    """A node of the graph that ONNX Runtime made of a model.

    Attributes:
        operator: What it is.
        source: The number of the model's node that it computes; None for a node that only moves
            numbers, or one that ONNX Runtime added.
        inputs: Its inputs, by name.
        outputs: Its outputs, by name.
        time_us: Its shortest time.
        elements: How many numbers it writes.
        in_eight_bits: Whether an input has eight bits.
    """

    operator: str
    source: int | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    time_us: float
    elements: int
    in_eight_bits: bool


def marked(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Returns a copy whose nodes and their outputs have the number of the node in their names.

    ONNX Runtime derives the names of the nodes that it fuses from those. Graphs inside nodes take
    tensors of the main graph by their new names.

    Returns:
        The copy, and the new names of tensors by their old ones.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    renamed: dict[str, str] = {}
    for i, node in enumerate(copy.graph.node):
        node.name = _MARK.format(i)
        for j, name in enumerate(node.output):
            if name:
                renamed[name] = f"{_MARK.format(i)}{j}"
    for graph in all_graphs(copy.graph):
        for node in graph.node:
            node.input[:] = [renamed.get(name, name) for name in node.input]
            node.output[:] = [renamed.get(name, name) for name in node.output]
        for item in (*graph.input, *graph.output, *graph.value_info):
            item.name = renamed.get(item.name, item.name)
    return copy, renamed


def execute(models: Sequence[Path], samples: Sequence[Feed]) -> list[list[Executed]]:
    """Returns the executed nodes of each model, in their order.

    Args:
        models: Files of models with :func:`marked` names.
    """
    with tempfile.TemporaryDirectory(dir=models[0].parent) as folder:
        places = [Path(folder) / f"{i}.onnx" for i in range(len(models))]
        sessions = [_session(*pair) for pair in zip(models, places, strict=True)]
        end = time.perf_counter() + _SECONDS
        for run in count():
            if run >= _MOST_RUNS or (run >= _FEWEST_RUNS and time.perf_counter() > end):
                break
            for session in sessions:
                session.run(None, dict(samples[run % len(samples)]))
        return [
            _executed(onnx.load(place), Path(session.end_profiling()))
            for place, session in zip(places, sessions, strict=True)
        ]


def _session(model: Path, optimised: Path) -> Any:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.enable_profiling = True
    # where neighbours are busy a second thread waits for a core, and no time is a node's own
    settings.intra_op_num_threads = 1
    settings.profile_file_prefix = str(optimised.with_suffix(""))
    settings.optimized_model_filepath = str(optimised)
    return onnxruntime.InferenceSession(
        model, settings, providers=["CPUExecutionProvider"], enable_fallback=0
    )


def _executed(optimised: onnx.ModelProto, trace: Path) -> list[Executed]:
    times: dict[str, list[float]] = defaultdict(list)
    arguments: dict[str, Mapping[str, Any]] = {}
    for event in json.loads(trace.read_text(encoding="utf-8", errors="replace")):
        if event.get("cat") == "Node" and event["name"].endswith(_ENDING):
            name = event["name"].removesuffix(_ENDING)
            times[name].append(float(event["dur"]))
            arguments[name] = event["args"]
    return [
        Executed(
            operator=operator_of(node),
            source=None if operator_of(node) in MOVES else _source(node),
            inputs=tuple(node.input),
            outputs=tuple(node.output),
            time_us=min(times[node.name]),
            elements=sum(
                prod(shape)
                for item in arguments[node.name].get("output_type_shape", ())
                for shape in item.values()
            ),
            in_eight_bits=any(
                kind in {"uint8", "int8"}
                for item in arguments[node.name].get("input_type_shape", ())
                for kind in item
            ),
        )
        for node in optimised.graph.node
        if node.name in times
    ]


def _source(node: onnx.NodeProto) -> int | None:
    match = _MARKED.search(" ".join([*node.output, node.name]))
    return int(match[1]) if match else None
