"""Packed products of one input as one product: gate and up, or queries, keys and values.

``MatMulNBits`` computes each output from one row of its weight alone, so two weights one after the
other give the outputs of both, one after the other, by the same sums. The input is rounded once,
and the threads meet once.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from autotune.facts.graphs import RUNTIME_DOMAIN, operator_of
from autotune.graph.entries import StepRefusedError
from autotune.graph.model_file import refill, remove_unneeded, save

_SIZES_ARE_INPUTS = 13  # of Split, from this opset on


def join(source: Path, target: Path) -> None:
    """Writes the model with its packed products of one input joined.

    Raises:
        StepRefusedError: no two of them share an input.
    """
    model = onnx.load(source)
    graph = model.graph
    opset = next(item.version for item in model.opset_import if item.domain == "")
    groups = list(_groups(graph)) if opset >= _SIZES_ARE_INPUTS else []
    if not groups:
        raise StepRefusedError("no packed products of one form share an input")
    tensors = {item.name: item for item in graph.initializer}
    replaced: dict[str, Sequence[onnx.NodeProto]] = {}
    for nodes in groups:
        replaced |= {node.output[0]: () for node in nodes}
        replaced[nodes[0].output[0]] = _joined(graph, nodes, tensors)
    kept = [each for node in graph.node for each in replaced.get(_output(node), (node,))]
    refill(graph.node, kept)
    remove_unneeded(graph)
    save(model, target)


def _groups(graph: onnx.GraphProto) -> Iterator[list[onnx.NodeProto]]:
    """Yields the packed products of one input that have the same form."""
    constants = {item.name for item in graph.initializer}
    uses: dict[object, list[onnx.NodeProto]] = {}
    for node in graph.node:
        weights = list(node.input[1:])
        is_packed = operator_of(node) == f"{RUNTIME_DOMAIN}.MatMulNBits"
        if is_packed and len(weights) <= 3 and constants.issuperset(weights):
            form = {item.name: helper.get_attribute_value(item) for item in node.attribute}
            form.pop("N")
            uses.setdefault((node.input[0], len(weights), *sorted(form.items())), []).append(node)
    yield from (nodes for nodes in uses.values() if len(nodes) > 1)


def _joined(
    graph: onnx.GraphProto,
    nodes: Sequence[onnx.NodeProto],
    tensors: dict[str, onnx.TensorProto],
) -> list[onnx.NodeProto]:
    """Returns one product and what splits its output; adds their constants to the graph."""
    whole = f"{nodes[0].output[0]}_joined"
    inputs = [nodes[0].input[0]]
    for place in range(1, len(nodes[0].input)):
        parts = [numpy_helper.to_array(tensors[node.input[place]]) for node in nodes]
        inputs.append(f"{whole}_{place}")
        graph.initializer.append(numpy_helper.from_array(np.concatenate(parts), inputs[-1]))
    product = onnx.NodeProto()
    product.CopyFrom(nodes[0])
    product.name = f"{nodes[0].name}_joined"
    product.input[:] = inputs
    product.output[:] = [whole]
    sizes = [item.i for node in nodes for item in node.attribute if item.name == "N"]
    next(item for item in product.attribute if item.name == "N").i = sum(sizes)
    graph.initializer.append(numpy_helper.from_array(np.array(sizes), f"{whole}_sizes"))
    outputs = [node.output[0] for node in nodes]
    split = helper.make_node(
        "Split", [whole, f"{whole}_sizes"], outputs, f"{product.name}_split", axis=-1
    )
    return [product, split]


def _output(node: onnx.NodeProto) -> str:
    return node.output[0] if node.output else ""
