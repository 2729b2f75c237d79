"""What eight bits cost in accuracy, for each unit of nodes that they make faster.

A copy of the float model has a switch at each tensor and each weight that eight bits round. Where a
unit's switches are on, its tensors are rounded to their calibrated ranges and its weights to a step
for each channel, and all others stay exact. Independent errors add up as squares, so the error of a
division of the graph is predicted from those of its units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from autotune.facts.feeds import Feed
from autotune.facts.graphs import operator_of
from autotune.graph import sensitivity
from autotune.graph.calibration import Ranges, quantisable_types
from autotune.graph.distance import open_exactly, output_distance
from autotune.graph.entries import StepRefusedError

_SWITCH = "autotune_switch"
# A scale reaches from 0 to 255, and a weight of eight bits from -127 to 127.
_LEVELS = 255
# All runs together would take the float model so long; unoptimised, they take two to three times as
# long.
_MOST_US = 4e6
_MOST_SAMPLES = 4
# What a bound of the operator takes is not rounded before: the range of a product ends there.
_BOUNDS = frozenset({"Relu", "Clip"})


def squared_errors(
    model: onnx.ModelProto,
    samples: Sequence[Feed],
    ranges: Ranges,
    units: Sequence[Sequence[int]],
    run_us: float,
) -> list[float]:
    """Returns the squared relative error of the outputs for each unit that is rounded alone.

    There are none for the units behind those that the limit of the work lets look at.

    Args:
        model: The float model, its nodes named.
        ranges: Those of the tensors.
        units: The nodes of each unit, by their numbers; the most important unit first.
        run_us: How long one run of the model takes.

    Raises:
        StepRefusedError: the outputs have no element.
    """
    runs = int(_MOST_US / max(run_us, 1.0))
    looked_at = units[: max(runs, 1)]
    count = max(1, min(_MOST_SAMPLES, len(samples), runs // max(len(looked_at), 1)))
    switched = _Switched(model, ranges, looked_at)
    errors = np.zeros(len(looked_at))
    is_compared = False
    for feed in samples[:count]:
        exact = switched.run(feed, None)
        for i in range(len(looked_at)):
            distance = output_distance(exact, switched.run(feed, i))
            is_compared |= distance is not None
            errors[i] += (distance or 0.0) ** 2 / count
    if not is_compared:
        raise StepRefusedError("nodes cannot be ranked by outputs without an element")
    return [float(error) for error in errors]


class _Rounding(NamedTuple):
    """How eight bits round a tensor or a weight.

    Attributes:
        step: Between its rounded values, or one for each channel.
        zero: What zero becomes, of the type that it is rounded to.
        axis: That of the channels.
    """

    step: NDArray[np.float32]
    zero: NDArray[np.generic]
    axis: int = 0


class _Switched:
    """A model with a switch at all that the units round."""

    def __init__(
        self, model: onnx.ModelProto, ranges: Ranges, units: Sequence[Sequence[int]]
    ) -> None:
        switched = onnx.ModelProto()
        switched.CopyFrom(model)
        graph = switched.graph
        self._outputs = [item.name for item in graph.output]
        roundings = _of_tensors(graph, ranges) | _of_weights(model)
        self._own: list[list[int]] = []
        places: dict[str, int] = {}
        for unit in units:
            nodes = [graph.node[i] for i in unit]
            names = dict.fromkeys(name for node in nodes for name in (*node.input, *node.output))
            own = [name for name in names if name in roundings]
            self._own.append([places.setdefault(name, len(places)) for name in own])
        self._count = len(places) + 1
        _add_switches(graph, {name: roundings[name] for name in places})
        self._session = open_exactly(switched.SerializeToString())

    def run(self, feed: Feed, unit: int | None) -> Sequence[NDArray[np.generic]]:
        """Returns the outputs where the unit of this number is rounded, or nothing."""
        on = np.zeros(self._count, bool)
        if unit is not None:
            on[self._own[unit]] = True
        outputs: Sequence[NDArray[np.generic]] = self._session.run(
            self._outputs, {**feed, _SWITCH: on}
        )
        return outputs


def _of_weights(model: onnx.ModelProto) -> dict[str, _Rounding]:
    """Returns how the weights of products are rounded, by name."""
    roundings = {}
    for target in sensitivity.targets(model, sensitivity.QUANTISABLE):
        step = target.steps()
        zero = np.zeros_like(step, np.int8)
        roundings[target.node.input[1]] = _Rounding(step, zero, target.channel_axis or 0)
    return roundings


def _of_tensors(graph: onnx.GraphProto, ranges: Ranges) -> dict[str, _Rounding]:
    """Returns how the tensors that nodes of eight bits take or write are rounded, by name."""
    kinds = frozenset(quantisable_types())
    near: set[str] = {item.name for item in graph.input}
    takers: dict[str, set[str]] = {}
    for node in graph.node:
        near |= {*node.input, *node.output} if operator_of(node) in kinds else set()
        for name in node.input:
            takers.setdefault(name, set()).add(operator_of(node))
    near -= {item.name for item in (*graph.output, *graph.initializer)}
    near -= {name for name, own in takers.items() if own <= _BOUNDS}
    roundings = {}
    for name in near & ranges.keys():
        kind, low, high = ranges[name]
        least, most = min(float(np.min(low)), 0.0), max(float(np.max(high)), 0.0)
        if kind != "float32" or not least < most or not np.isfinite([least, most]).all():
            continue
        step = (most - least) / _LEVELS
        roundings[name] = _Rounding(np.array(step, "f4"), np.array(round(-least / step), "u1"))
    return roundings


def _add_switches(graph: onnx.GraphProto, roundings: Mapping[str, _Rounding]) -> None:
    """Gives the nodes of the main graph these tensors rounded, each where its switch is on."""
    size = len(roundings) + 1
    graph.input.append(helper.make_tensor_value_info(_SWITCH, TensorProto.BOOL, [size]))
    made = {name: f"{_SWITCH}_{i}" for i, name in enumerate(roundings)}
    nodes: list[list[onnx.NodeProto]] = []
    for name, (step, zero, axis) in roundings.items():
        stem = made[name]
        arrays = {"step": step, "zero": zero, "place": np.array(len(nodes), np.int64)}
        for key, array in arrays.items():
            graph.initializer.append(numpy_helper.from_array(array, f"{stem}_{key}"))
        nodes.append(_switch(name, stem, axis))
    for node in graph.node:
        node.input[:] = [made.get(name, name) for name in node.input]
    written = {name: i for i, node in enumerate(graph.node) for name in node.output}
    # behind what writes the tensor; inputs and constants come first
    nodes_behind: dict[int, list[onnx.NodeProto]] = {}
    for name, switch in zip(roundings, nodes, strict=True):
        nodes_behind.setdefault(written.get(name, -1), []).extend(switch)
    old = list(graph.node)
    ordered = nodes_behind.get(-1, [])
    for i, node in enumerate(old):
        ordered += [node, *nodes_behind.get(i, [])]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered]
    del graph.node[:]
    graph.node.extend(copies)


def _switch(name: str, stem: str, axis: int) -> list[onnx.NodeProto]:
    """Returns the nodes that make the tensor `stem` of the tensor `name`, rounded or not."""
    how = [f"{stem}_step", f"{stem}_zero"]
    rounded = [
        helper.make_node("QuantizeLinear", [name, *how], [f"{stem}_q"], axis=axis),
        helper.make_node("DequantizeLinear", [f"{stem}_q", *how], [f"{stem}_r"], axis=axis),
    ]
    exact = [helper.make_node("Identity", [name], [f"{stem}_e"])]
    return [
        helper.make_node("Gather", [_SWITCH, f"{stem}_place"], [f"{stem}_on"]),
        helper.make_node(
            "If",
            [f"{stem}_on"],
            [stem],
            then_branch=sensitivity.branch(rounded),
            else_branch=sensitivity.branch(exact),
        ),
    ]
