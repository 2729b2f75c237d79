"""Models whose weights are where exporters put them, each equal to one with initializers."""

from collections.abc import Callable

import numpy as np
import onnx
from factories import normal, onnx_model
from onnx import TensorProto, helper, numpy_helper


def in_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    hidden = _copy(model)
    constants = [
        helper.make_node("Constant", [], [item.name], value=item)
        for item in hidden.graph.initializer
    ]
    rest = list(hidden.graph.node)
    del hidden.graph.initializer[:]
    del hidden.graph.node[:]
    hidden.graph.node.extend([*constants, *rest])
    return hidden


def as_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with every initializer as the default value of an input."""
    hidden = _copy(model)
    for item in hidden.graph.initializer:
        value = helper.make_tensor_value_info(item.name, item.data_type, item.dims)
        hidden.graph.input.append(value)
    return hidden


def as_old_inputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the same in the version of the format that knew no other initializers."""
    hidden = as_inputs(model)
    hidden.ir_version = 3
    return hidden


def behind_casts(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with the weights of its matrix products in fp16, with a cast each."""
    hidden = _copy(model)
    weights = {node.input[1] for node in hidden.graph.node if node.op_type in {"MatMul", "Gemm"}}
    casts = []
    for item in hidden.graph.initializer:
        if item.name in weights and len(item.dims) == 2:
            casts.append(
                helper.make_node("Cast", [f"{item.name}_half"], [item.name], to=TensorProto.FLOAT)
            )
            half = numpy_helper.to_array(item).astype(np.float16)
            item.CopyFrom(numpy_helper.from_array(half, f"{item.name}_half"))
    rest = list(hidden.graph.node)
    del hidden.graph.node[:]
    hidden.graph.node.extend([*casts, *rest])
    return hidden


PLACES: dict[str, Callable[[onnx.ModelProto], onnx.ModelProto]] = {
    "Constant nodes": in_constants,
    "inputs": as_inputs,
    "inputs of an old model": as_old_inputs,
}
"""Places that keep the numbers of the weights."""


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def branching() -> onnx.ModelProto:
    """Returns a model with one product in each branch of an If, its weight in a Constant node.

    Inputs are ``x`` float32 [4, 32] and ``flag``, output is ``z`` float32 [4, 16].
    """
    bodies = [
        f"b{seed} () => (float[4,16] y{seed}) {{ "
        + _with_constants(f"y{seed} = MatMul (x, w)", w=normal(seed, 32, 16) / 6)
        + " }"
        for seed in (1, 2)
    ]
    node = f"z = If (flag) <then_branch = {bodies[0]}, else_branch = {bodies[1]}>"
    return onnx_model(node, x="float[4,32] x, bool flag", y="float[4,16] z")


def looping() -> onnx.ModelProto:
    """Returns a model with a product in the body of a Loop, its weight in a Constant node.

    Input is ``x`` float32 [4, 16], output ``z`` of the same shape.
    """
    nodes = "product = MatMul (before, w) after = Tanh (product) still = Identity (goes_on)"
    body = (
        "body (int64 i, bool goes_on, float[4,16] before) => (bool still, float[4,16] after) "
        f"{{ {_with_constants(nodes, w=normal(3, 16, 16) / 4)} }}"
    )
    return onnx_model(
        f'z = Loop <body = {body}> (rounds, "", x)',
        {"rounds": np.array(3, np.int64)},
        x="float[4,16] x",
        y="float[4,16] z",
    )


def tied() -> onnx.ModelProto:
    """Returns a model whose embeddings are the transposed weight of its last product too.

    One more weight is taken by two products. Input is ``ids`` int64 [3], output ``y`` [3, 20].
    """
    return onnx_model(
        "x = Gather (embeddings, ids) first = MatMul (x, shared) bent = Tanh (first) "
        "second = MatMul (bent, shared) turned = Transpose <perm = [1, 0]> (embeddings) "
        "y = MatMul (second, turned)",
        {"embeddings": normal(4, 20, 16) / 4, "shared": normal(5, 16, 16) / 4},
        x="int64[3] ids",
        y="float[3,20] y",
    )


def _with_constants(body: str, **weights: np.ndarray) -> str:
    """Returns the nodes of a branch or loop behind Constant nodes that hold their weights."""
    texts = [
        f"{name} = Constant <value = float[{','.join(map(str, array.shape))}] "
        f"{{{', '.join(f'{value:.8f}' for value in array.ravel())}}}> ()"
        for name, array in weights.items()
    ]
    return " ".join([*texts, body])
