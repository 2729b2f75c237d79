"""Which nodes eight bits make slower: they stay in float where that is faster in all.

A node that is faster in float alone is not faster there among others in eight bits: on each edge
between the two, numbers are quantised or dequantised and change their layout. So each node has two
times, each edge has a price, and the cheapest division of the graph is its minimum cut.
"""

import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import onnx

from autotune.facts.feeds import Feed
from autotune.facts.graphs import operator_of, taken_by
from autotune.graph.calibration import quantisable_types
from autotune.graph.node_times import MOVES, REORDERS, Executed, execute, marked

Quantise = Callable[[onnx.ModelProto, Mapping[str, str], Path], None]
"""Writes a copy of a model in eight bits; it gets the copy, the new names of what was renamed in
it, and where to write."""

PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})

NEVER_US = 1e9
"""The time of a unit that cannot be computed so."""


# Kernels of eight bits have channels last, those of float have channels in blocks: a tensor passes
# through the model's own layout. With a price of 1, 1.5, 2 and 3 times what one change takes an
# EfficientNet-B0 took 0.91, 0.84, 0.80 and 0.81 of its float time.
_LAYOUTS = 2
# The search for the price of an error begins at this share of one that is surely enough, and ends
# within a percent of the lowest.
_LOWEST_PRICE = 1e-6
_HALVINGS = 10
# Smaller tensors show what a node costs in any case.
_MANY_ELEMENTS = 8192


class LinearTime(NamedTuple):
    """A time that grows with the elements of a tensor.

    Attributes:
        start_us: That of an empty tensor.
        element_us: What each element adds.
    """

    start_us: float
    element_us: float

    def __call__(self, elements: float) -> float:
        """Returns the time in microseconds for so many elements."""
        return self.start_us + self.element_us * elements


class Times(NamedTuple):
    """What a division of a graph is computed from.

    Attributes:
        units: Nodes that are computed together, by their numbers; each node is in one of them.
        float_us: The time of each unit in float.
        int8_us: The same in eight bits.
        edges: The elements of a tensor between two units, by their numbers.
        crossing: What it costs to bring a tensor from one to the other.
    """

    units: list[list[int]]
    float_us: list[float]
    int8_us: list[float]
    edges: dict[tuple[int, int], float]
    crossing: LinearTime


def measure(model: onnx.ModelProto, samples: Sequence[Feed], quantise: Quantise) -> Times:
    """Returns the times of a model's nodes in both forms on this machine."""
    copy, renamed = marked(model)
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / "float.onnx", Path(folder) / "int8.onnx"]
        onnx.save(copy, files[0])
        quantise(copy, renamed, files[1])
        in_float, in_int8 = execute(files, samples)
    return times_of(model, in_float, in_int8, quantisable_types())


def times_of(
    model: onnx.ModelProto,
    in_float: Sequence[Executed],
    in_int8: Sequence[Executed],
    quantised: Collection[str],
) -> Times:
    """Returns the times of a model's nodes.

    Args:
        in_int8: Those of the model with all nodes quantised.
        quantised: Types of nodes that the tool quantises.
    """
    nodes = list(model.graph.node)
    producers = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    taken = [taken_by(node) for node in nodes]
    unit_of, units = _units(nodes, producers, in_float)
    float_us, int8_us = [0.0] * len(units), [0.0] * len(units)
    has_kernel = [False] * len(units)
    elements: dict[int, int] = defaultdict(int)
    for executed, times in ((in_float, float_us), (in_int8, int8_us)):
        for item, place in zip(executed, _places(executed), strict=True):
            if place is None:
                continue
            unit = unit_of[place]
            times[unit] += item.time_us
            if item.source is not None:
                elements[item.source] = max(elements[item.source], item.elements)
                if executed is in_int8 and item.in_eight_bits:
                    has_kernel[unit] |= operator_of(nodes[place]) in quantised
    for unit, known in enumerate(has_kernel):
        if not known:
            int8_us[unit] = NEVER_US
    edges: dict[tuple[int, int], float] = defaultdict(float)
    for name, first in producers.items():
        takers = {unit_of[j] for j, names in enumerate(taken) if name in names}
        takers.discard(unit_of[first])
        for unit in takers:
            edges[unit_of[first], unit] += elements[first] / len(takers)
    return Times(units, float_us, int8_us, dict(edges), _crossing((*in_float, *in_int8)))


def _units(
    nodes: Sequence[onnx.NodeProto], producers: Mapping[str, int], executed: Sequence[Executed]
) -> tuple[dict[int, int], list[list[int]]]:
    """Returns the unit of each node, and the nodes of each: those that one float kernel computes.

    A kernel has the number of one of its nodes. Where that is its last one, the nodes before it
    belong to it, up to the product that a kernel begins with. All others without a kernel belong to
    what they take.
    """
    own = {item.source: item.operator for item in executed if item.source is not None}
    head = {i: i for i in own}
    for i in sorted(own):
        # a kernel of the node's own type computes nothing before it
        waiting = [] if operator_of(nodes[i]) in PRODUCTS | {own[i]} else [i]
        while waiting:
            for name in nodes[waiting.pop()].input:
                before = producers.get(name)
                if before is None or before in head:
                    continue
                head[before] = i
                if operator_of(nodes[before]) not in PRODUCTS:
                    waiting.append(before)
    for i, node in enumerate(nodes):
        if i not in head:
            before = max((producers[name] for name in node.input if name in producers), default=i)
            head[i] = head.get(before, i)
    numbers = {leader: unit for unit, leader in enumerate(dict.fromkeys(head.values()))}
    units: list[list[int]] = [[] for _ in numbers]
    for i in range(len(nodes)):
        units[numbers[head[i]]].append(i)
    return {i: numbers[leader] for i, leader in head.items()}, units


def _places(executed: Sequence[Executed]) -> Iterable[int | None]:
    """Gives the number of the node that each executed one counts for; moves for what they move."""
    sources: dict[str, int] = {}
    for item in executed:
        place = item.source
        if place is None:
            place = next((sources[name] for name in item.inputs if name in sources), None)
        if place is not None:
            sources |= dict.fromkeys(item.outputs, place)
        yield place


def _crossing(executed: Iterable[Executed]) -> LinearTime:
    """Returns what a tensor costs between float and eight bits: its type and its layout."""
    times: dict[str, float] = defaultdict(float)
    elements: dict[str, int] = defaultdict(int)
    least_us = [0.0]
    for item in executed:
        if item.operator not in MOVES:
            continue
        if item.elements < _MANY_ELEMENTS:
            least_us.append(item.time_us)
        else:
            times[item.operator] += item.time_us
            elements[item.operator] += item.elements
    rates = {name: times[name] / elements[name] for name in times}
    kind = max(rates.get("QuantizeLinear", 0.0), rates.get("DequantizeLinear", 0.0))
    layout = max(rates.get(name, 0.0) for name in REORDERS)
    return LinearTime(_LAYOUTS * median(least_us), _LAYOUTS * (kind + layout))


def fastest_in_int8(times: Times) -> set[int]:
    """Returns the units that are in eight bits where the whole takes least time."""
    return minimum_cut(times.float_us, times.int8_us, _prices(times))


def precise_in_int8(
    times: Times, fastest: Collection[int], errors: Mapping[int, float], left: float
) -> set[int]:
    """Returns the units that are in eight bits where only a share of the error may be left.

    An error has a price in time. With the price of one run for the error that may be left, what is
    in eight bits saves no more than a run and so has no larger error: that price is enough. The
    lowest one that is enough is found by halving.

    Args:
        fastest: What is in eight bits where the error has no price.
        errors: The squared error of each of these in eight bits; one without stays in float.
        left: The share of their error that may be left.
    """
    prices = _prices(times)

    def cut(price: float) -> set[int]:
        in_int8 = [
            own + price * errors[i] if i in errors else NEVER_US
            for i, own in enumerate(times.int8_us)
        ]
        return minimum_cut(times.float_us, in_int8, prices)

    allowed = left**2 * sum(errors[i] for i in fastest if i in errors)
    enough = sum(times.float_us) / allowed if allowed else 0.0
    found, too_low = cut(enough), enough * _LOWEST_PRICE
    for _ in range(_HALVINGS):
        price = math.sqrt(too_low * enough)
        tried = cut(price)
        if sum(errors[i] for i in tried) <= allowed:
            enough, found = price, tried
        else:
            too_low = price
    return found


def _prices(times: Times) -> dict[tuple[int, int], float]:
    return {pair: times.crossing(size) for pair, size in times.edges.items()}


def names_in_float(model: onnx.ModelProto, times: Times, in_int8: Collection[int]) -> list[str]:
    """Returns the names of the nodes whose units are not in eight bits, in order."""
    kept = [i for unit, members in enumerate(times.units) if unit not in in_int8 for i in members]
    return [model.graph.node[i].name for i in sorted(kept)]


def minimum_cut(
    first: Sequence[float], second: Sequence[float], edges: Mapping[tuple[int, int], float]
) -> set[int]:
    """Returns which nodes take the second of two labels where the sum of all costs is least.

    Args:
        first: The cost of each node with the first label.
        second: The same with the second one.
        edges: The cost of two nodes with different labels.
    """
    source, sink = len(first), len(first) + 1
    left: list[dict[int, float]] = [{} for _ in range(sink + 1)]

    def add(begin: int, end: int, capacity: float, back: float = 0.0) -> None:
        left[begin][end] = left[begin].get(end, 0.0) + capacity
        left[end][begin] = left[end].get(begin, 0.0) + back

    for i, (one, other) in enumerate(zip(first, second, strict=True)):
        add(source, i, max(0.0, one - other))
        add(i, sink, max(0.0, other - one))
    for (i, j), capacity in edges.items():
        add(i, j, capacity, capacity)
    while True:
        before = _reached(left, source, sink)
        if sink not in before:
            return {i for i in before if i < source}
        path = [sink]
        while path[-1] != source:
            path.append(before[path[-1]])
        steps = list(zip(path[1:], path, strict=False))
        flow = min(left[i][j] for i, j in steps)
        for i, j in steps:
            left[i][j] -= flow
            left[j][i] += flow


def _reached(left: Sequence[Mapping[int, float]], source: int, sink: int) -> dict[int, int]:
    """Returns the nodes that some capacity is left to, each with the one before it."""
    before = {source: source}
    waiting = [source]
    for i in waiting:
        for j, capacity in left[i].items():
            if capacity > 1e-6 and j not in before:
                before[j] = i
                waiting.append(j)
        if sink in before:
            break
    return before
