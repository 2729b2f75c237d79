"""Products with weights of zeros, and what follows from constants alone.

Training may leave whole blocks of a network without effect. What they give is known for every input
and not only for the samples that were seen.
"""

import numpy as np
import onnx
from onnx import numpy_helper

from autotune.facts.graphs import operator_of

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
