"""The work of whole models."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from autotune.facts.counting import Execution, count
from autotune.facts.shapes import Extent


def _model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[Any]],
    output: str,
    weights: dict[str, np.ndarray],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def test_open_dimensions_take_the_given_sizes() -> None:
    """Operations, weights, boundary and traffic of two nodes, by hand."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    work = count(_model(nodes, {"x": ["batch", 5]}, "z", {"w": _zeros(5, 6)}), {"x": (4, 5)})
    assert work.float_operations == 2 * 4 * 5 * 6 + 24
    assert work.by_operator == {"MatMul": 240, "Relu": 24}
    assert work.weight_bytes == 4 * 30
    assert work.boundary_bytes == 4 * (20 + 24)
    assert work.traffic_bytes == 4 * (20 + 30 + 24) + 4 * (24 + 24)
    assert work.is_complete


def test_view_moves_nothing() -> None:
    """A reshape costs neither operations nor traffic."""
    nodes = [helper.make_node("Flatten", ["x"], ["y"])]
    work = count(_model(nodes, {"x": [2, 3, 4]}, "y", {}), {"x": (2, 3, 4)})
    assert (work.operations, work.traffic_bytes) == (0, 0)


def test_table_counts_the_rows_that_are_read() -> None:
    """Of an embedding of 1000 rows a run reads as many as there are indices."""
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "i"], ["y"]),
    ]
    work = count(_model(nodes, {"x": [7]}, "y", {"table": _zeros(1000, 8)}), {"x": (7,)})
    assert work.weight_bytes == 4 * 7 * 8


def test_larger_branch_of_an_if_counts() -> None:
    """Without a run nobody knows the condition, so the dearer branch is taken."""

    def branch(name: str, operator: str, *inputs: str) -> onnx.GraphProto:
        output = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)]
        return helper.make_graph([helper.make_node(operator, inputs, [name])], name, [], output)

    node = helper.make_node(
        "If",
        ["c"],
        ["y"],
        then_branch=branch("t", "Relu", "x"),
        else_branch=branch("e", "MatMul", "x", "w"),
    )
    constant = helper.make_node(
        "Constant", [], ["c"], value=numpy_helper.from_array(np.array(True))
    )
    made = _model([constant, node], {"x": [4, 5]}, "y", {"w": _zeros(5, 5)})
    assert count(made, {"x": (4, 5)}).operations == 2 * 4 * 5 * 5


def test_quantised_product_counts_as_int8() -> None:
    """A product of two dequantised factors is eight-bit work; its weights have a byte each."""
    scale = np.array(0.1, np.float32)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s", "wz"], ["dw"]),
        helper.make_node("MatMul", ["d", "dw"], ["y"]),
        helper.make_node("Relu", ["y"], ["r"]),
    ]
    weights: dict[str, np.ndarray] = {
        "s": scale,
        "z": np.array(0, np.uint8),
        "wz": np.array(0, np.int8),
        "w": np.zeros((5, 6), np.int8),
    }
    work = count(_model(nodes, {"x": [4, 5]}, "r", weights), {"x": (4, 5)})
    assert work.int8_operations == 2 * 4 * 5 * 6
    assert work.float_operations == 24
    assert work.weight_bytes == 30 + 4 + 1 + 1


def test_unknown_shapes_are_reported() -> None:
    """A shape that depends on values leaves its nodes uncounted, and says so."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["n"]),
        helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Relu", ["f"], ["y"]),
    ]
    work = count(_model(nodes, {"x": [4]}, "y", {}), {"x": (4,)})
    assert work.unknown == 1
    assert not work.is_complete


def test_executions_give_shapes_and_repetitions() -> None:
    """What a run showed replaces inference: nodes that it did not execute cost nothing."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["n"], name="nonzero"),
        helper.make_node("Cast", ["n"], ["f"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Relu", ["f"], ["y"], name="relu"),
        helper.make_node("Relu", ["y"], ["z"], name="never"),
    ]
    seen = Extent(shape=(1, 3), item_bits=32)
    indices = Extent(shape=(1, 3), item_bits=64)
    executions = {
        "nonzero": Execution(
            inputs=(Extent(shape=(4,), item_bits=32),), outputs=(indices,), times=1
        ),
        "cast": Execution(inputs=(indices,), outputs=(seen,), times=1),
        "relu": Execution(inputs=(seen,), outputs=(seen,), times=5),
    }
    work = count(_model(nodes, {"x": [4]}, "z", {}), {"x": (4,)}, executions)
    assert work.by_operator == {"Relu": 5 * 3}
    assert work.is_complete


def test_local_functions_are_counted_inside() -> None:
    """A call of a model's own function costs what its body costs."""
    body = [helper.make_node("MatMul", ["a", "b"], ["c"])]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "Product", ["a", "b"], ["c"], body, opsets)
    nodes = [helper.make_node("Product", ["x", "w"], ["y"], domain="own")]
    made = _model(nodes, {"x": [4, 5]}, "y", {"w": _zeros(5, 6)})
    made.functions.append(function)
    made.opset_import.append(helper.make_opsetid("own", 1))
    assert count(made, {"x": (4, 5)}).by_operator == {"MatMul": 240}
