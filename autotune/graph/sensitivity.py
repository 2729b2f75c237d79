"""Which nodes are best left in float: those whose error is largest for their cost.

One instrumented run of the float model gives the input of every node that can be quantised. Each
node is then run by itself, once as it is and once with its input and weight rounded to eight bits:
the relative error of its output, squared (independent errors add up so) and over its operations,
is how much accuracy leaving it in float gains for its cost. Ranked by errors alone, the one heavy
convolution of a model comes first, and leaving that in float loses all of the speed.

That takes a second or two. The ranking does not see how much of a node's error reaches the model's
outputs; that of :mod:`autotune.graph.output_sensitivity` does, for more runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from autotune.facts.feeds import Feed

Array = NDArray[Any]

QUANTISABLE = ("Conv", "MatMul", "Gemm")
"""Types of nodes whose weight and input are worth eight bits."""

# Few samples show which ranges are wide; more of them only take memory.
_SAMPLES = 4
# Inputs of so many nodes are in memory at once.
_GROUP = 24


@dataclass(frozen=True, kw_only=True)
class Target:
    """A node that can be quantised.

    Attributes:
        node: The node.
        constants: All its inputs but the first one, by name.
    """

    node: onnx.NodeProto
    constants: dict[str, Array]

    @property
    def weight(self) -> Array:
        """Its weight."""
        return self.constants[self.node.input[1]]

    @property
    def channels(self) -> int:
        """How many output channels it has."""
        shape = self.weight.shape
        return int(shape[0] if len(shape) > 2 else shape[-1])


def name_nodes(model: onnx.ModelProto) -> None:
    """Gives each node of the main graph that has no name of its own one."""
    taken: set[str] = set()
    for i, node in enumerate(model.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_{i}"
            while node.name in taken:
                node.name += "_"
        taken.add(node.name)


def quantisable(model: onnx.ModelProto, types: Sequence[str] = QUANTISABLE) -> list[str]:
    """Returns the names of the nodes of these types that have a constant weight, in order."""
    return [target.node.name for target in targets(model, types)]


def rank(
    model: onnx.ModelProto, samples: Sequence[Feed], types: Sequence[str] = QUANTISABLE
) -> list[str]:
    """Returns the names of the nodes that can be quantised, those best left in float first.

    Args:
        model: The float model, its nodes named; weights in memory.
        samples: Calibration samples.
        types: Types of nodes that are ranked.
    """
    scores: dict[str, float] = {}
    takers: dict[str, list[Target]] = {}
    for target in targets(model, types):
        takers.setdefault(target.node.input[0], []).append(target)
    for tensor, array in tensors(model, list(takers), samples[:_SAMPLES]):
        for target in takers[tensor]:
            name = target.node.name
            scores[name] = scores.get(name, 0.0) + _score(model, target, array)
    return sorted(scores, key=lambda name: (-scores[name], name))


def targets(model: onnx.ModelProto, types: Sequence[str]) -> list[Target]:
    """Returns the nodes of these types that have a constant weight, in order."""
    weights = {item.name: item for item in model.graph.initializer}
    quantisable_nodes: list[Target] = []
    for node in model.graph.node:
        if node.op_type not in types or len(node.input) < 2 or node.input[1] not in weights:
            continue
        if weights[node.input[1]].data_type != onnx.TensorProto.FLOAT:
            continue
        names = [name for name in node.input[1:] if name]
        if all(name in weights for name in names):
            constants = {name: numpy_helper.to_array(weights[name]) for name in names}
            quantisable_nodes.append(Target(node=node, constants=constants))
    return quantisable_nodes


def tensors(
    model: onnx.ModelProto, names: Sequence[str], samples: Sequence[Feed]
) -> Iterator[tuple[str, Array]]:
    """Yields tensors of the main graph by name, for each sample.

    Args:
        model: The float model; weights in memory.
        names: Names of tensors; one that the samples do not feed is left out.
        samples: Inputs of the model.
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


def _score(model: onnx.ModelProto, target: Target, x: Array) -> float:
    """Returns the squared relative error that eight bits cause, over the node's operations."""
    weight = target.node.input[1]
    rounded = {**target.constants, weight: _round_weight(target.weight)}
    exact = _run(model, target.node, x, target.constants)
    coarse = _run(model, target.node, _round(x), rounded)
    size = float(np.linalg.norm(exact))
    error = float(np.linalg.norm(exact - coarse)) / size if size else 0.0
    # each output element takes as many products as the weight has for its channel
    operations = exact.size * target.weight.size / max(target.channels, 1)
    return error**2 / max(float(operations), 1.0)


def _run(
    model: onnx.ModelProto, node: onnx.NodeProto, x: Array, constants: dict[str, Array]
) -> NDArray[np.float32]:
    """Returns the output of the node by itself."""
    graph = helper.make_graph(
        [node],
        "node",
        [helper.make_tensor_value_info(node.input[0], onnx.TensorProto.FLOAT, None)],
        [onnx.ValueInfoProto(name=node.output[0])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    alone = helper.make_model(
        graph, opset_imports=list(model.opset_import), ir_version=model.ir_version
    )
    output: NDArray[np.float32] = open_exactly(alone.SerializeToString()).run(
        None, {node.input[0]: x}
    )[0]
    return output


def open_exactly(model: str | bytes) -> onnxruntime.InferenceSession:
    """Returns a session on the file or the serialised model that computes it as it stands."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model, settings, providers=["CPUExecutionProvider"], enable_fallback=0
    )


def _round(x: Array) -> Array:
    """Returns `x` rounded to 256 steps between its extremes, zero among them."""
    low, high = min(float(x.min(initial=0.0)), 0.0), max(float(x.max(initial=0.0)), 0.0)
    step = (high - low) / 255 or 1.0
    values = np.asarray(x, np.float32)
    return np.asarray(np.round((values - low) / step) * step + low, np.float32)


def weight_steps(weight: Array) -> NDArray[np.float32]:
    """Returns the step between eight-bit values of a weight, for each output channel its own.

    That is the first axis of a convolution's weight and the last one of a matrix.
    """
    axes = tuple(range(1, weight.ndim)) if weight.ndim > 2 else (0,)
    largest = np.abs(weight).max(axis=axes, keepdims=True)
    return np.asarray(np.where(largest > 0, largest / 127, 1.0), np.float32)


def _round_weight(weight: Array) -> Array:
    """Returns the weight rounded to 254 steps around zero."""
    step = weight_steps(weight)
    return np.asarray(np.round(weight / step) * step, np.float32)
