"""Which nodes are best left in float, by how far each alone moves the model's outputs.

A copy of the model has a switch at each node that can be quantised. Where the switch names a node,
that node takes its input and its weight rounded to eight bits, and all others stay exact. One
session serves all nodes, and no weight is stored twice. A score is the squared relative error of
the worst output over the node's operations, as :mod:`autotune.graph.sensitivity` has it for the
node's own output.

The work has a limit: of a large model, nodes that come late by their own outputs keep that order.
"""

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from autotune.facts.feeds import Feed
from autotune.graph import sensitivity
from autotune.graph.quantisation import output_distance
from autotune.graph.sensitivity import Array, Target

# A ranking takes no more runs, and no more multiplications of the products in them together. That
# is a few seconds on two cores.
_MOST_RUNS = 256
_MOST_OPERATIONS = 1e11
# So many nodes are looked at with one sample, however large the model is.
_FEWEST_NODES = 8
# How much of an error reaches the outputs differs between samples. Of a large model one shows the
# order of the first nodes well enough, and for a small one more cost nothing.
_MOST_SAMPLES = 16
_SWITCH = "autotune_switch"
_NOTHING = -1
# A tensor of one value alone has no range.
_LEAST_STEP = 1e-30


def rank(
    model: onnx.ModelProto,
    samples: Sequence[Feed],
    types: Sequence[str],
    by_nodes: Callable[[], Sequence[str]],
) -> list[str]:
    """Returns the names of the nodes that can be quantised, those best left in float first.

    Args:
        model: The float model, its nodes named; weights in memory.
        samples: Calibration samples.
        types: Types of nodes that are ranked.
        by_nodes: Returns the names of the same nodes in the order of
            :func:`autotune.graph.sensitivity.rank`; called where there are too many to look at all,
            and where none changes an output.
    """
    targets = sensitivity.targets(model, types)
    if not targets or not samples:
        return list(by_nodes())
    switched = _Switched(model, targets)
    numbers = {target.node.name: i for i, target in enumerate(targets)}
    operations = switched.operations(samples[0])
    sample_count, node_count = _affordable(len(targets), len(samples), sum(operations))
    order = list(numbers) if node_count == len(targets) else list(by_nodes())
    errors = dict.fromkeys(order[:node_count], 0.0)
    for feed in samples[:sample_count]:
        exact = switched.run(feed, _NOTHING)
        for name in errors:
            errors[name] += output_distance(exact, switched.run(feed, numbers[name])) ** 2
    if not any(errors.values()):  # such as classes alone, which no single node changes
        return list(by_nodes())

    def score(name: str) -> float:
        return errors[name] / max(float(operations[numbers[name]]), 1.0)

    return [*sorted(errors, key=score, reverse=True), *order[node_count:]]


def _affordable(nodes: int, samples: int, operations: float) -> tuple[int, int]:
    """Returns how many samples and how many nodes the limits allow.

    Args:
        nodes: How many there are.
        samples: How many there are.
        operations: Multiplications of one run.
    """
    runs = int(min(_MOST_RUNS, _MOST_OPERATIONS / max(operations, 1.0)))
    taken = max(1, min(samples, _MOST_SAMPLES, runs // (nodes + 1)))
    return taken, min(nodes, max(_FEWEST_NODES, runs // taken - 1))


class _Switched:
    """A model with a switch at each of these nodes.

    Args:
        model: The float model.
        targets: The nodes, by the numbers that the switch takes.
    """

    def __init__(self, model: onnx.ModelProto, targets: Sequence[Target]) -> None:
        switched = onnx.ModelProto()
        switched.CopyFrom(model)
        graph = switched.graph
        self._outputs = [item.name for item in graph.output]
        self._sizes = [f"{_SWITCH}_size_{i}" for i in range(len(targets))]
        self._products = [target.weight.size / max(target.channels, 1) for target in targets]
        graph.input.append(helper.make_tensor_value_info(_SWITCH, TensorProto.INT64, []))
        numbers = {target.node.name: i for i, target in enumerate(targets)}
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            if node.name in numbers:
                i = numbers[node.name]
                graph.initializer.extend(_constants(i, targets[i].weight))
                nodes += _with_switch(node, i)
                nodes.append(helper.make_node("Size", [node.output[0]], [self._sizes[i]]))
            else:
                nodes.append(node)
        del graph.node[:]
        graph.node.extend(nodes)
        graph.output.extend(
            helper.make_tensor_value_info(name, TensorProto.INT64, []) for name in self._sizes
        )
        self._session = sensitivity.open_exactly(switched.SerializeToString())

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


def _constants(i: int, weight: Array) -> list[onnx.TensorProto]:
    """Returns what the switch of a node needs: its number, and the steps of its weight."""
    return [
        numpy_helper.from_array(np.array(i, np.int64), f"{_SWITCH}_number_{i}"),
        numpy_helper.from_array(sensitivity.weight_steps(weight), f"{_SWITCH}_step_{i}"),
    ]


def _with_switch(node: onnx.NodeProto, i: int) -> list[onnx.NodeProto]:
    """Returns what takes the place of a node: itself, rounded where the switch has its number."""
    exact, coarse = onnx.NodeProto(), onnx.NodeProto()
    exact.CopyFrom(node)
    coarse.CopyFrom(node)
    stem = f"{_SWITCH}_{i}"
    exact.output[0], coarse.output[0] = f"{stem}_exact", f"{stem}_coarse"
    coarse.input[0], coarse.input[1] = f"{stem}_input", f"{stem}_weight"
    rounding = [
        *_rounded(node.input[0], coarse.input[0], stem),
        *_to_steps(node.input[1], f"{_SWITCH}_step_{i}", coarse.input[1], f"{stem}_w"),
    ]
    return [
        helper.make_node("Equal", [_SWITCH, f"{_SWITCH}_number_{i}"], [f"{stem}_on"]),
        helper.make_node(
            "If",
            [f"{stem}_on"],
            [node.output[0]],
            name=node.name,
            then_branch=_branch([*rounding, coarse]),
            else_branch=_branch([exact]),
        ),
    ]


def _branch(nodes: Sequence[onnx.NodeProto]) -> onnx.GraphProto:
    output = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    return helper.make_graph(list(nodes), nodes[-1].output[0], [], [output])


def _rounded(tensor: str, output: str, stem: str) -> list[onnx.NodeProto]:
    """Returns nodes that round a tensor to 256 steps between its extremes, zero among them.

    Every opset has these operators.
    """
    zero, steps, least = f"{stem}_zero", f"{stem}_steps", f"{stem}_least"
    low, high, step, shifted = (f"{stem}_{name}" for name in ("low", "high", "step", "shifted"))
    return [
        *(_number(name, value) for name, value in ((zero, 0), (steps, 255), (least, _LEAST_STEP))),
        helper.make_node("ReduceMin", [tensor], [f"{low}_est"], keepdims=0),
        helper.make_node("ReduceMax", [tensor], [f"{high}_est"], keepdims=0),
        helper.make_node("Min", [f"{low}_est", zero], [low]),
        helper.make_node("Max", [f"{high}_est", zero], [high]),
        helper.make_node("Sub", [high, low], [f"{stem}_range"]),
        helper.make_node("Div", [f"{stem}_range", steps], [f"{step}_or_none"]),
        helper.make_node("Max", [f"{step}_or_none", least], [step]),
        helper.make_node("Sub", [tensor, low], [shifted]),
        *_to_steps(shifted, step, f"{shifted}_back", f"{stem}_x"),
        helper.make_node("Add", [f"{shifted}_back", low], [output]),
    ]


def _to_steps(tensor: str, step: str, output: str, stem: str) -> list[onnx.NodeProto]:
    """Returns nodes that round a tensor to whole steps."""
    return [
        _number(f"{stem}_half", 0.5),
        helper.make_node("Div", [tensor, step], [f"{stem}_ratio"]),
        helper.make_node("Add", [f"{stem}_ratio", f"{stem}_half"], [f"{stem}_above"]),
        helper.make_node("Floor", [f"{stem}_above"], [f"{stem}_count"]),
        helper.make_node("Mul", [f"{stem}_count", step], [output]),
    ]


def _number(name: str, value: float) -> onnx.NodeProto:
    tensor = helper.make_tensor(name, TensorProto.FLOAT, [], [value])
    return helper.make_node("Constant", [], [name], value=tensor)
