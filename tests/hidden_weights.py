"""Models whose weights are where exporters put them, each equal to one with initializers."""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def in_constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with every initializer in a Constant node."""
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
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 16])
    branches = [
        helper.make_graph(
            [_weight("w", 32, 16, seed), helper.make_node("MatMul", ["x", "w"], ["y"])],
            f"branch {seed}",
            [],
            [value],
        )
        for seed in (1, 2)
    ]
    choice = helper.make_node(
        "If", ["flag"], ["z"], then_branch=branches[0], else_branch=branches[1]
    )
    graph = helper.make_graph(
        [choice],
        "branching",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 32]),
            helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [4, 16])],
    )
    return _model(graph)


def looping() -> onnx.ModelProto:
    """Returns a model with a product in the body of a Loop, its weight in a Constant node.

    Input is ``x`` float32 [4, 16], output ``z`` of the same shape.
    """
    state = helper.make_tensor_value_info("before", TensorProto.FLOAT, [4, 16])
    after = helper.make_tensor_value_info("after", TensorProto.FLOAT, [4, 16])
    body = helper.make_graph(
        [
            _weight("w", 16, 16, 3),
            helper.make_node("MatMul", ["before", "w"], ["product"]),
            helper.make_node("Tanh", ["product"], ["after"]),
            helper.make_node("Identity", ["goes_on"], ["goes_on_still"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            state,
        ],
        [helper.make_tensor_value_info("goes_on_still", TensorProto.BOOL, []), after],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["rounds", "", "x"], ["z"], body=body)],
        "looping",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [4, 16])],
        [numpy_helper.from_array(np.array(3, np.int64), "rounds")],
    )
    return _model(graph)


def tied() -> onnx.ModelProto:
    """Returns a model whose embeddings are the transposed weight of its last product too.

    One more weight is taken by two products. Input is ``ids`` int64 [3], output ``y`` [3, 20].
    """
    chance = np.random.default_rng(4)
    arrays = {
        "embeddings": chance.standard_normal((20, 16)) / 4,
        "shared": chance.standard_normal((16, 16)) / 4,
    }
    nodes = [
        helper.make_node("Gather", ["embeddings", "ids"], ["x"]),
        helper.make_node("MatMul", ["x", "shared"], ["first"]),
        helper.make_node("Tanh", ["first"], ["bent"]),
        helper.make_node("MatMul", ["bent", "shared"], ["second"]),
        helper.make_node("Transpose", ["embeddings"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["second", "turned"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tied",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 20])],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()],
    )
    return _model(graph)


def _weight(name: str, rows: int, columns: int, seed: int) -> onnx.NodeProto:
    array = np.random.default_rng(seed).standard_normal((rows, columns)) / np.sqrt(rows)
    value = numpy_helper.from_array(array.astype(np.float32), name)
    return helper.make_node("Constant", [], [name], value=value)


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
