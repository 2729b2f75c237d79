"""Which nodes are best left in float: those whose error is largest for their cost.

Each node's weight and input are rounded to eight bits alone, and its score is a squared relative
error (independent errors add up so) over the node's multiplications: how much accuracy leaving it
in float gains for its cost. Ranked by errors alone, the one heavy convolution of a model comes
first, and leaving that in float loses all of the speed.

The error is that of the model's outputs. A copy of the model has a switch at each node that can be
quantised: where the switch names a node, that node takes its input and its weight rounded, and all
others stay exact. One session serves all nodes, and no weight is stored twice. The work has a
limit: of a large model, the nodes with the fewest multiplications are looked at, which cost least
in float.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from autotune.facts.feeds import Feed
from autotune.facts.graphs import all_nodes, operator_name, operator_of
from autotune.graph.distance import open_exactly, output_distance
from autotune.graph.entries import StepRefusedError

Array = NDArray[Any]

QUANTISABLE = ("Conv", "MatMul", "Gemm")
"""Types of nodes whose weight and input are worth fewer bits."""

# Inputs of so many nodes are in memory at once.
_GROUP = 24
# A ranking by outputs takes no more runs, and no more multiplications of the products in them
# together. That is a few seconds on two cores; with twice as many int8 was no nearer on the whole.
_MOST_RUNS = 128
_MOST_OPERATIONS = 1e11
# So many nodes are looked at with one sample, however large the model is.
_FEWEST_NODES = 8
# How much of an error reaches the outputs differs between samples. Of a large model one shows the
# order of the first nodes well enough, and for a small one more cost nothing.
_MOST_SAMPLES = 16
_SWITCH = "autotune_switch"
# Between zero and the largest weight of eight bits.
_STEPS = 127
_NOTHING = -1


@dataclass(frozen=True, kw_only=True)
class QuantisableNode:
    """A node that can be quantised, and its constant weight."""

    node: onnx.NodeProto
    weight: Array

    @property
    def channel_axis(self) -> int | None:
        """The axis of the output channels in its weight; None for a stack or a vector.

        ONNX Runtime gives such a weight one scale.
        """
        if operator_of(self.node) == "Conv":
            return 0
        if self.weight.ndim != 2:
            return None
        is_transposed = any(item.name == "transB" and item.i for item in self.node.attribute)
        return 0 if is_transposed else 1

    @property
    def products(self) -> int:
        """How many multiplications each element of its output takes."""
        shape = self.weight.shape
        if self.channel_axis is None:
            return int(shape[-2] if len(shape) > 1 else shape[0])
        return int(self.weight.size // max(shape[self.channel_axis], 1))

    def steps(self) -> NDArray[np.float32]:
        """Returns the steps between its rounded values: one for each output channel, or one."""
        sizes = np.abs(self.weight)
        largest = sizes.max(axis=tuple(i for i in range(sizes.ndim) if i != self.channel_axis))
        return np.asarray(np.where(largest > 0, largest / _STEPS, 1), "f4")


def name_nodes(model: onnx.ModelProto) -> None:
    """Gives each node that has no name of its own one, those in branches and bodies too."""
    taken: set[str] = set()
    for i, node in enumerate(all_nodes(model.graph)):
        if not node.name or node.name in taken:
            node.name = f"{operator_name(node)}_{i}"
            while node.name in taken:
                node.name += "_"
        taken.add(node.name)


def quantisable(model: onnx.ModelProto, types: Sequence[str] = QUANTISABLE) -> list[str]:
    """Returns the names of the nodes of these types that have a constant weight, in order."""
    return [target.node.name for target in targets(model, types)]


def digest(model: onnx.ModelProto) -> str:
    """Returns a digest of the nodes that can be quantised: their types and weights, in order."""
    text = hashlib.sha256()
    for target in targets(model, QUANTISABLE):
        text.update(f"{operator_of(target.node)} {target.weight.shape} ".encode())
        text.update(np.ascontiguousarray(target.weight).data)
    return text.hexdigest()[:16]


def targets(model: onnx.ModelProto, types: Sequence[str]) -> list[QuantisableNode]:
    """Returns the nodes of these types that have a constant weight, in order."""
    weights = {item.name: item for item in model.graph.initializer}
    quantisable_nodes: list[QuantisableNode] = []
    for node in model.graph.node:
        if operator_of(node) not in types or len(node.input) < 2 or node.input[1] not in weights:
            continue
        if weights[node.input[1]].data_type != onnx.TensorProto.FLOAT:
            continue
        if all(name in weights for name in node.input[1:] if name):
            weight = numpy_helper.to_array(weights[node.input[1]])
            quantisable_nodes.append(QuantisableNode(node=node, weight=weight))
    return quantisable_nodes


def ranked(model: onnx.ModelProto, samples: Sequence[Feed]) -> list[str]:
    """Returns the names of the nodes that can be quantised, those best left in float first.

    Those that were not looked at come last, the ones with the fewest multiplications first.

    Raises:
        StepRefusedError: the outputs have no element.
    """
    nodes = targets(model, QUANTISABLE)
    if not nodes or not samples:
        return []
    switched = _Switched(model, nodes)
    numbers = {target.node.name: i for i, target in enumerate(nodes)}
    operations = switched.operations(samples[0])
    sample_count, node_count = _affordable(len(nodes), len(samples), sum(operations))
    order = sorted(numbers, key=lambda name: operations[numbers[name]])
    errors = dict.fromkeys(order[:node_count], 0.0)
    is_compared = False
    for feed in samples[:sample_count]:
        exact = switched.run(feed, _NOTHING)
        for name in errors:
            distance = output_distance(exact, switched.run(feed, numbers[name]))
            is_compared |= distance is not None
            errors[name] += (distance or 0.0) ** 2
    if not is_compared:
        raise StepRefusedError("nodes cannot be ranked by outputs without an element")
    scores = {name: error / max(operations[numbers[name]], 1.0) for name, error in errors.items()}
    return [*sorted(errors, key=lambda name: -scores[name]), *order[node_count:]]


def tensors(
    model: onnx.ModelProto, names: Sequence[str], samples: Sequence[Feed]
) -> Iterator[tuple[str, Array]]:
    """Yields tensors of the main graph by name, for each sample.

    Args:
        model: The float model; weights in memory.
        names: Names of tensors; one that the samples do not feed is left out.
    """
    fed = {item.name for item in model.graph.input}
    for start in range(0, len(names), _GROUP):
        group = names[start : start + _GROUP]
        computed = [name for name in group if name not in fed]
        session = open_exactly(_with_outputs(model, computed)) if computed else None
        for feed in samples:
            yield from ((name, np.asarray(feed[name])) for name in group if name in feed)
            if session is not None:
                yield from zip(computed, session.run(computed, dict(feed)), strict=True)


def float_tensors(model: onnx.ModelProto) -> list[str]:
    """Returns the names of the main graph's tensors in fp32, but for the constant ones."""
    names = dict.fromkeys(name for node in model.graph.node for name in node.output if name)
    session = open_exactly(_with_outputs(model, list(names)))
    every = (*session.get_inputs(), *session.get_outputs())
    return [tensor.name for tensor in every if tensor.type == "tensor(float)"]


def _with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> bytes:
    """Returns the serialised model with these tensors among its outputs."""
    outputs = {item.name for item in model.graph.output}
    instrumented = onnx.ModelProto()
    instrumented.CopyFrom(model)
    for name in names:
        if name not in outputs:
            instrumented.graph.output.append(onnx.ValueInfoProto(name=name))
    serialised: bytes = instrumented.SerializeToString()
    return serialised


def _affordable(nodes: int, samples: int, operations: float) -> tuple[int, int]:
    """Returns how many samples and how many nodes the limits allow."""
    runs = int(min(_MOST_RUNS, _MOST_OPERATIONS / max(operations, 1.0)))
    taken = max(1, min(samples, _MOST_SAMPLES, runs // (nodes + 1)))
    return taken, min(nodes, max(_FEWEST_NODES, runs // taken - 1))


class _Switched:
    """A model with a switch at each of these nodes.

    Args:
        nodes: The nodes, by the numbers that the switch takes.
    """

    def __init__(self, model: onnx.ModelProto, nodes: Sequence[QuantisableNode]) -> None:
        switched = onnx.ModelProto()
        switched.CopyFrom(model)
        graph = switched.graph
        self._outputs = [item.name for item in graph.output]
        self._sizes = [f"{_SWITCH}_size_{i}" for i in range(len(nodes))]
        self._products = [target.products for target in nodes]
        graph.input.append(helper.make_tensor_value_info(_SWITCH, TensorProto.INT64, []))
        numbers = {target.node.name: i for i, target in enumerate(nodes)}
        written: list[onnx.NodeProto] = []
        for node in graph.node:
            if node.name in numbers:
                i = numbers[node.name]
                graph.initializer.extend(_constants(i, nodes[i]))
                written += _with_switch(nodes[i], i)
                written.append(helper.make_node("Size", [node.output[0]], [self._sizes[i]]))
            else:
                written.append(node)
        del graph.node[:]
        graph.node.extend(written)
        graph.output.extend(
            helper.make_tensor_value_info(name, TensorProto.INT64, []) for name in self._sizes
        )
        self._session = open_exactly(switched.SerializeToString())

    def run(self, feed: Feed, switch: int) -> list[Array]:
        """Returns the model's outputs, with the node of this number rounded."""
        outputs: list[Array] = self._session.run(
            self._outputs, {**feed, _SWITCH: np.array(switch, np.int64)}
        )
        return outputs

    def operations(self, feed: Feed) -> NDArray[np.float64]:
        """Returns how many multiplications each node takes for this sample."""
        sizes = self._session.run(self._sizes, {**feed, _SWITCH: np.array(_NOTHING, np.int64)})
        return np.array(sizes, np.float64) * self._products


def _constants(i: int, target: QuantisableNode) -> list[onnx.TensorProto]:
    """Returns what the switch of a node needs: its number, and how its weight is rounded."""
    steps = target.steps()
    constants: dict[str, Array] = {
        "number": np.array(i, np.int64),
        "step": steps,
        "zero": np.zeros_like(steps, "i1"),
    }
    return [numpy_helper.from_array(a, f"{_SWITCH}_{name}_{i}") for name, a in constants.items()]


def _with_switch(target: QuantisableNode, i: int) -> list[onnx.NodeProto]:
    """Returns what takes the place of a node: itself, rounded where the switch has its number."""
    node, stem = target.node, f"{_SWITCH}_{i}"
    exact, coarse = onnx.NodeProto(), onnx.NodeProto()
    exact.CopyFrom(node)
    coarse.CopyFrom(node)
    exact.output[0], coarse.output[0] = f"{stem}_exact", f"{stem}_coarse"
    coarse.input[0], coarse.input[1] = f"{stem}_input", f"{stem}_weight"
    x = [f"{stem}_x", f"{stem}_x_step", f"{stem}_x_zero"]
    w, step = f"{stem}_w", [f"{_SWITCH}_step_{i}", f"{_SWITCH}_zero_{i}"]
    axis = target.channel_axis or 0
    rounded = [
        helper.make_node("DynamicQuantizeLinear", [node.input[0]], x),
        helper.make_node("DequantizeLinear", x, [coarse.input[0]]),
        helper.make_node("QuantizeLinear", [node.input[1], *step], [w], axis=axis),
        helper.make_node("DequantizeLinear", [w, *step], [coarse.input[1]], axis=axis),
    ]
    return [
        helper.make_node("Equal", [_SWITCH, f"{_SWITCH}_number_{i}"], [f"{stem}_on"]),
        helper.make_node(
            "If",
            [f"{stem}_on"],
            [node.output[0]],
            name=node.name,
            then_branch=branch([*rounded, coarse]),
            else_branch=branch([exact]),
        ),
    ]


def branch(nodes: Sequence[onnx.NodeProto]) -> onnx.GraphProto:
    """Returns the graph of a branch that gives what the last of these nodes writes."""
    output = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    return helper.make_graph(list(nodes), nodes[-1].output[0], [], [output])
