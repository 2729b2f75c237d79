"""The work of a run of a model: operations and memory traffic, counted from shapes."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx

from autotune.facts.operations import (
    INT8,
    VIEWS,
    Shape,
    ShapedNode,
    UnknownShapeError,
    operations,
)
from autotune.facts.shapes import Extent, extents, with_shapes
from autotune.facts.work import Work

# They pass on what others compute; the nodes inside them are counted.
_CONTROL = frozenset({"If", "Loop", "Scan", "Constant", "Shape", "Size"})
# Products that ONNX Runtime computes in eight bits where both factors are dequantised.
_PRODUCTS = frozenset({"Conv", "MatMul", "Gemm", "ConvTranspose"})


@dataclass(frozen=True, kw_only=True)
class Execution:
    """How ONNX Runtime's profiler saw a node in one run.

    Attributes:
        inputs: Extents of its inputs, those left out that the node does not have.
        outputs: Extents of its outputs, in the same way.
        times: How often the run executed it.
    """

    inputs: tuple[Extent, ...]
    outputs: tuple[Extent, ...]
    times: int


def count(
    model: onnx.ModelProto,
    inputs: Mapping[str, Shape],
    executions: Mapping[str, Execution] | None = None,
) -> Work:
    """Returns the work of one run.

    Of the two branches of an ``If`` the one with more operations counts, the body of a ``Scan`` for
    each step, and the body of a ``Loop`` once. Where `executions` are given, each node counts as
    often as it was executed.

    Args:
        model: The model, which is changed.
        inputs: Shape of each input that is fed.
        executions: What the profiler saw of each node, by its name, in a run of the unoptimised
            model; None where it was not run.
    """
    model = with_shapes(model, inputs)
    counter = _Counter(executions)
    tally = counter.graph(model.graph, {})
    scope = extents(model.graph)
    boundary = [*inputs, *(item.name for item in model.graph.output)]
    seen = counter.seen if executions else {}
    return Work(
        float_operations=tally.operations - tally.int8_operations,
        int8_operations=tally.int8_operations,
        weight_bytes=sum(tally.weights.values()),
        boundary_bytes=sum(_bytes(seen.get(name, scope.get(name))) for name in boundary),
        traffic_bytes=tally.traffic_bytes,
        by_operator=dict(tally.by_operator.most_common()),
        nodes=tally.nodes,
        unknown=tally.unknown,
    )


class _Tally:
    """Sums over nodes."""

    def __init__(self) -> None:
        self.operations = 0
        self.int8_operations = 0
        self.traffic_bytes = 0
        self.nodes = 0
        self.unknown = 0
        self.weights: dict[str, int] = {}
        self.by_operator: Counter[str] = Counter()

    def add(self, other: "_Tally", times: int = 1) -> None:
        """Adds another one; its weights are read once, however often it is repeated."""
        self.operations += times * other.operations
        self.int8_operations += times * other.int8_operations
        self.traffic_bytes += times * other.traffic_bytes
        self.nodes += other.nodes
        self.unknown += other.unknown
        for name, size in other.weights.items():
            self.weights[name] = max(size, self.weights.get(name, 0))
        for name, number in other.by_operator.items():
            self.by_operator[name] += times * number


class _Counter:
    """Counts graphs, from the outermost inwards."""

    def __init__(self, executions: Mapping[str, Execution] | None) -> None:
        self._executions = executions
        self.seen: dict[str, Extent] = {}

    def graph(self, graph: onnx.GraphProto, around: Mapping[str, Extent]) -> _Tally:
        """Returns the sums of a graph; `around` has the extents of the graphs around it."""
        scope = {**around, **extents(graph)}
        constants = {item.name for item in graph.initializer}
        constants |= {node.output[0] for node in graph.node if node.op_type == "Constant"}
        dequantised = {
            name
            for node in graph.node
            if node.op_type == "DequantizeLinear"
            for name in node.output
        }
        tally = _Tally()
        for node in graph.node:
            tally.add(self._node(node, scope, constants, dequantised))
            tally.add(self._inside(node, scope))
        return tally

    def _node(
        self,
        node: onnx.NodeProto,
        scope: Mapping[str, Extent],
        constants: set[str],
        dequantised: set[str],
    ) -> _Tally:
        """Returns the sums of a node without its subgraphs."""
        inputs, outputs, times = self._arrays(node, scope)
        tally = _Tally()
        if times == 0 or node.op_type == "Constant":
            return tally
        tally.nodes = 1
        shaped = ShapedNode(
            node,
            [None if item is None else item.shape for item in inputs],
            [None if item is None else item.shape for item in outputs],
        )
        try:
            tally.operations = operations(shaped) * times
        except (UnknownShapeError, ValueError, IndexError, TypeError, AttributeError):
            tally.unknown = 1
        if tally.operations:
            tally.by_operator[node.op_type] = tally.operations
        if node.op_type in INT8 or (
            node.op_type in _PRODUCTS and dequantised.issuperset(node.input[:2])
        ):
            tally.int8_operations = tally.operations
        if node.op_type not in VIEWS and node.op_type not in _CONTROL:
            tally.traffic_bytes = times * sum(map(_bytes, (*inputs, *outputs)))
        for name, extent in zip(node.input, inputs, strict=True):
            if name in constants:
                read = _bytes(extent)
                if node.op_type == "Gather" and name == node.input[0]:
                    read = min(read, _bytes(outputs[0]))
                tally.weights[name] = read
        return tally

    def _arrays(
        self, node: onnx.NodeProto, scope: Mapping[str, Extent]
    ) -> tuple[Sequence[Extent | None], Sequence[Extent | None], int]:
        """Returns the extents of inputs and outputs, and how often the node is executed."""
        execution = None if self._executions is None else self._executions.get(node.name)
        if self._executions is not None and execution is None:
            return (), (), 0
        if execution is None:
            return [scope.get(n) for n in node.input], [scope.get(n) for n in node.output], 1
        inputs, outputs = (
            _placed(node.input, execution.inputs),
            _placed(node.output, execution.outputs),
        )
        for name, extent in (
            *zip(node.input, inputs, strict=True),
            *zip(node.output, outputs, strict=True),
        ):
            if name and extent is not None:
                self.seen[name] = extent
        return inputs, outputs, execution.times

    def _inside(self, node: onnx.NodeProto, scope: Mapping[str, Extent]) -> _Tally:
        """Returns the sums of a node's subgraphs."""
        bodies = [
            self.graph(inner, scope)
            for attribute in node.attribute
            for inner in ([attribute.g] if attribute.HasField("g") else [*attribute.graphs])
        ]
        tally = _Tally()
        if node.op_type == "If" and self._executions is None:
            bodies = [max(bodies, key=lambda body: body.operations)]
        for body in bodies:
            tally.add(body, 1 if self._executions is not None else _repetitions(node, scope))
        return tally


def _repetitions(node: onnx.NodeProto, scope: Mapping[str, Extent]) -> int:
    """Returns how often a subgraph runs, as far as shapes tell."""
    if node.op_type != "Scan" or not node.input:
        return 1
    scanned = scope.get(node.input[-1])
    return scanned.shape[0] if scanned is not None and scanned.shape else 1


def _placed(names: Sequence[str], seen: Sequence[Extent]) -> list[Extent | None]:
    """Returns an extent for each name; the profiler leaves out arguments that a node lacks."""
    rest = iter(seen)
    return [next(rest, None) if name else None for name in names]


def _bytes(extent: Extent | None) -> int:
    if extent is None or extent.shape is None:
        return 0
    return math.prod(extent.shape) * extent.item_bits // 8
