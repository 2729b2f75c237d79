"""Half precision: for all nodes, or for all that halves can hold."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

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
    max_error: float = 1e-2,
) -> None:
    """Writes the model in half precision but for as few sensitive nodes as the error allows.

    Rounding to halves alone costs a deep model an error of some 1e-3; a value that overflows costs
    far more. Where all nodes in halves keep the error, the model is that of :func:`half`. Elsewhere
    bisection finds how many nodes stay in fp32, in the order of :func:`rank`.

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
    tensors = sensitivity.float_tensors(model)

    def error_with(in_fp32: Sequence[str]) -> float:
        save(_with_halves(model, tensors, in_fp32), target)
        return largest_distance(expected, target, samples)

    in_fp32: Sequence[str] = []
    if error_with(in_fp32) > max_error:
        order = rank(model, errors_of_halves(model, tensors, samples))
        few, many = 1, len(order)
        while few < many:
            middle = (few + many) // 2
            if error_with(order[:middle]) <= max_error:
                many = middle
            else:
                few = middle + 1
        in_fp32 = order[:many]
    _convert(model, target, in_fp32)
    if largest_distance(expected, target, samples) > max_error:
        raise StepRefusedError(f"no mixture of precisions keeps the error below {max_error:g}")


def _with_halves(
    model: onnx.ModelProto, tensors: Collection[str], in_fp32: Sequence[str]
) -> onnx.ModelProto:
    """Returns a model in fp32 whose values are rounded to halves where a device computes in halves.

    ONNX Runtime's CPU provider runs nodes in half precision in fp32, and rounds nothing between
    two of them: a value that overflows on a device would not show.

    Args:
        model: The float model, its nodes named.
        tensors: The names of its float tensors but for the constant ones.
        in_fp32: The names of the nodes that stay in fp32.
    """
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST

    rounded = onnx.ModelProto()
    rounded.CopyFrom(model)
    constants = {i.name for i in model.graph.initializer if i.data_type == TensorProto.FLOAT}
    unrounded = {*in_fp32}
    nodes: list[onnx.NodeProto] = []
    halves: dict[str, str] = {}

    def round_to_halves(name: str, result: str) -> None:
        half_name = f"{result}_in_halves"
        nodes.append(helper.make_node("Cast", [name], [half_name], to=TensorProto.FLOAT16))
        nodes.append(helper.make_node("Cast", [half_name], [result], to=TensorProto.FLOAT))

    for node in rounded.graph.node:
        stays = operator_of(node) in (*_ROUNDING, *DEFAULT_OP_BLOCK_LIST)
        if stays or node.name in unrounded:
            nodes.append(node)
            continue
        for i, name in enumerate(node.input):
            if name in constants or name in tensors:
                if name not in halves:
                    halves[name] = f"{name}_rounded"
                    round_to_halves(name, halves[name])
                node.input[i] = halves[name]
        nodes.append(node)
        for i, name in enumerate(node.output):
            if name in tensors:
                node.output[i] = f"{name}_exact"
                round_to_halves(node.output[i], name)
                halves[name] = name
    del rounded.graph.node[:]
    rounded.graph.node.extend(nodes)
    return rounded


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


def rank(model: onnx.ModelProto, errors: Mapping[str, float]) -> list[str]:
    """Returns the names of all nodes, first those whose inputs and outputs halves hold worst.

    Of equal nodes the last one comes first.

    Args:
        model: The float model, its nodes named.
        errors: The relative error of each float tensor as halves; infinite where a value overflows.
    """

    def score(node: onnx.NodeProto) -> float:
        return max((errors.get(name, 0.0) for name in (*node.input, *node.output)), default=0.0)

    scores = {node.name: score(node) for node in reversed(model.graph.node)}
    return sorted(scores, key=lambda name: -scores[name])


def errors_of_halves(
    model: onnx.ModelProto, tensors: Sequence[str], samples: Sequence[Feed]
) -> dict[str, float]:
    """Returns the largest relative error of each of these float tensors as halves, by its name.

    Args:
        model: The float model, its nodes named; weights in memory.
    """
    errors: dict[str, float] = {}
    for name, values in sensitivity.tensors(model, tensors, samples):
        errors[name] = max(errors.get(name, 0.0), _error_of_halves(values))
    return errors


def _error_of_halves(values: sensitivity.Array) -> float:
    """Returns the relative L2 error of values as halves; infinite where one of them overflows."""
    finite = values[np.isfinite(values)].astype(np.float64)
    size = float(np.linalg.norm(finite))
    with np.errstate(over="ignore"):
        gap = float(np.linalg.norm(finite - finite.astype(np.float16)))
    return gap / size if size else 0.0
