"""Products with weights of zeros, and what follows from constants alone.

Training may leave whole blocks of a network without effect. What they give is known for every input
and not only for the samples that were seen.
"""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from autotune.facts.graphs import operator_of
from autotune.graph.model_file import refill, remove_unneeded

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})
_RANDOM = frozenset(
    "RandomNormal RandomUniform RandomNormalLike RandomUniformLike Multinomial Bernoulli".split()
)


def proven_constants(graph: onnx.GraphProto) -> set[str]:
    """Returns the tensors of the main graph that have one value for every finite input.

    Those are the constants, products with weights of zeros, and what is computed of such alone.
    """
    fed = {item.name for item in graph.input}
    constants = {item.name: item for item in graph.initializer if item.name not in fed}
    zeros = {name for name, item in constants.items() if _is_zero(item)}
    proven = set(constants)
    for node in graph.node:
        has_body = any(item.HasField("g") or item.graphs for item in node.attribute)
        if has_body or operator_of(node) in _RANDOM:
            continue
        names = [name for name in node.input if name]
        if _is_dead(node, zeros):
            names = names[2:]  # a bias is left
        if node.input and proven.issuperset(names):
            proven.update(name for name in node.output if name)
    return proven


def _is_dead(node: onnx.NodeProto, zeros: set[str]) -> bool:
    """Returns whether a node multiplies by zeros alone."""
    if operator_of(node) == "Mul":
        return not zeros.isdisjoint(node.input)
    return operator_of(node) in _PRODUCTS and node.input[1] in zeros


def _is_zero(item: onnx.TensorProto) -> bool:
    if item.data_type not in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16):
        return False
    return not np.any(numpy_helper.to_array(item))


def fold_dead_products(model: onnx.ModelProto) -> None:
    """Removes products with weights of zeros where a sum alone takes them; changed in place.

    A bias that is left goes into the sum. Nodes that only the product took are removed as well.
    """
    graph = model.graph
    fed = {item.name for item in graph.input}
    constants = {item.name: item for item in graph.initializer if item.name not in fed}
    zeros = {name for name, item in constants.items() if _is_zero(item)}
    sizes = _sizes(graph)
    products = [node for node in graph.node if operator_of(node) in _PRODUCTS]
    dead = {node.output[0]: node for node in products if _is_dead(node, zeros)}
    changed = False
    for node in graph.node:
        if operator_of(node) != "Add":
            continue
        places = [i for i in (0, 1) if node.input[i] in dead]
        if not places or node.input[1 - places[0]] in dead:
            continue
        product, other = dead[node.input[places[0]]], node.input[1 - places[0]]
        shape = sizes.get(product.output[0])
        # a product that is larger than the other summand gives the sum its size
        if shape is None or None in shape or sizes.get(other) != shape:
            continue
        bias = product.input[2] if len(product.input) > 2 else ""
        if not bias or bias in zeros:
            node.CopyFrom(helper.make_node("Identity", [other], [node.output[0]], node.name))
            changed = True
        elif bias in constants and operator_of(product) in ("Conv", "ConvTranspose"):
            values = numpy_helper.to_array(constants[bias])
            name = f"{product.output[0]}_autotune_bias"
            row = values.reshape(1, -1, *[1] * (len(shape) - 2))
            graph.initializer.append(numpy_helper.from_array(row, name))
            node.input[places[0]] = name
            changed = True
    if changed:
        _bypass_identities(graph)
        remove_unneeded(graph)


def _sizes(graph: onnx.GraphProto) -> Mapping[str, tuple[int | str | None, ...]]:
    """Returns the known sizes of tensors, open ones by name."""
    return {
        item.name: tuple(
            size.dim_value if size.HasField("dim_value") else (size.dim_param or None)
            for size in item.type.tensor_type.shape.dim
        )
        for item in (*graph.input, *graph.value_info, *graph.output)
        if item.type.tensor_type.HasField("shape")
    }


def _bypass_identities(graph: onnx.GraphProto) -> None:
    """Removes copies in the main graph, but for those that are outputs."""
    outputs = {item.name for item in graph.output}
    sources: dict[str, str] = {}
    kept = []
    for node in graph.node:
        node.input[:] = [sources.get(name, name) for name in node.input]
        if operator_of(node) == "Identity" and node.output[0] not in outputs:
            sources[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    refill(graph.node, kept)
