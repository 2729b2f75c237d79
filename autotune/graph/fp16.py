"""Half precision: for all nodes, or for all that halves can hold."""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from autotune.facts.feeds import Feed
from autotune.facts.graphs import operator_of
from autotune.graph import sensitivity
from autotune.graph.distance import exact_outputs, largest_distance
from autotune.graph.entries import StepRefusedError
from autotune.graph.intermediates import Intermediates
from autotune.graph.model_file import remove_unneeded, save
from autotune.graph.silence import silent_tools

# More samples would only take time: a value that overflows does so in nearly all of them.
_SAMPLES = 2


# Before opset 19 their scales are of 32 bits.
_ROUNDING = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")


def half(source: Path, target: Path) -> None:
    """Writes the model in half precision; its inputs and outputs keep their types."""
    _convert(onnx.load(source), target, [])


def mixed(
    source: Path,
    target: Path,
    samples: Sequence[Feed],
    *,
    shared: Intermediates | None = None,
    max_error: float = 1e-3,
) -> None:
    """Writes the model in half precision but for as few sensitive nodes as the error allows.

    Bisection finds how many nodes stay in fp32, in the order of :func:`rank`.

    Args:
        shared: Nothing of it is of use.

    Raises:
        StepRefusedError: even with every node in fp32 the error is above `max_error`.
    """
    del shared
    model = onnx.load(source)
    sensitivity.name_nodes(model)
    samples = samples[:_SAMPLES]
    expected = exact_outputs(source, samples)
    order = rank(model, samples)

    def error_with(count: int) -> float:
        _convert(onnx.load(source), target, order[:count])
        return largest_distance(expected, target, samples)

    few, many = 0, len(order)
    while few < many:
        middle = (few + many) // 2
        if error_with(middle) <= max_error:
            many = middle
        else:
            few = middle + 1
    if error_with(many) > max_error:
        raise StepRefusedError(f"no mixture of precisions keeps the error below {max_error:g}")


def _convert(model: onnx.ModelProto, target: Path, in_fp32: Sequence[str]) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    sensitivity.name_nodes(model)
    own = {node.name for node in model.graph.node}
    in_fp32 = [*in_fp32, *(n.name for n in model.graph.node if operator_of(n) in _ROUNDING)]
    with silent_tools():
        converted = convert_float_to_float16(
            model, keep_io_types=True, node_block_list=list(in_fp32), disable_shape_infer=False
        )
    _drop_round_trips(converted.graph, own)
    save(converted, target)


def _drop_round_trips(graph: onnx.GraphProto, own: Collection[str]) -> None:
    """Makes a node in fp32 take what another one in fp32 makes.

    The tool casts the output of each such node to halves, where it may overflow, and back.

    Args:
        graph: Changed in place.
        own: Names of the nodes that the tool did not add.
    """
    added = {node.output[0]: node for node in graph.node if node.name not in own}
    direct = {
        name: added[back.input[0]].input[0]
        for name, back in added.items()
        if operator_of(back) == "Cast" and back.input[0] in added
        if operator_of(added[back.input[0]]) == "Cast" and back.attribute[0].i == TensorProto.FLOAT
    }
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = direct.get(name, name)
    remove_unneeded(graph)


def rank(model: onnx.ModelProto, samples: Sequence[Feed]) -> list[str]:
    """Returns the names of all nodes, first those whose values halves hold worst.

    A node's score is the largest relative error that its inputs and outputs have as halves, which
    is infinite where a value overflows. Of equal nodes the last one comes first.

    Args:
        model: The float model, its nodes named; weights in memory.
    """
    names = dict.fromkeys(name for node in model.graph.node for name in node.output if name)
    fed = {item.name for item in model.graph.input}
    errors: dict[str, float] = {}
    for name, values in sensitivity.tensors(model, [*fed, *names], samples):
        errors[name] = max(errors.get(name, 0.0), _error_of_halves(values))

    def score(node: onnx.NodeProto) -> float:
        return max((errors.get(name, 0.0) for name in (*node.input, *node.output)), default=0.0)

    scores = {node.name: score(node) for node in reversed(model.graph.node)}
    return sorted(scores, key=lambda name: -scores[name])


def _error_of_halves(values: sensitivity.Array) -> float:
    """Returns the relative L2 error of values as halves; infinite where one of them overflows."""
    if getattr(values, "dtype", None) != np.float32:  # a sequence has none
        return 0.0
    finite = values[np.isfinite(values)].astype(np.float64)
    size = float(np.linalg.norm(finite))
    with np.errstate(over="ignore"):
        gap = float(np.linalg.norm(finite - finite.astype(np.float16)))
    return gap / size if size else 0.0
