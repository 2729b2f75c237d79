"""The work of a run, counted by hand."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.facts.counting import count, item_bits
from autotune.facts.work import Work


def _model(
    nodes: list[onnx.NodeProto], inputs: dict[str, list[Any]], weights: dict[str, np.ndarray]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def _work_of(operator: str, x: tuple[int, ...], *weights: np.ndarray, **attributes: Any) -> Work:
    names = [f"w{i}" for i in range(len(weights))]
    node = helper.make_node(operator, ["x", *names], ["y"], **attributes)
    model = _model([node], {"x": list(x)}, dict(zip(names, weights, strict=True)))
    return count(model, {"x": x})


@pytest.mark.parametrize(
    ("operator", "x", "weights", "attributes", "operations"),
    [
        ("MatMul", (2, 4, 5), [_zeros(5, 6)], {}, 2 * 2 * 4 * 5 * 6),
        ("Gemm", (4, 5), [_zeros(5, 6)], {}, 2 * 4 * 5 * 6),
        ("Gemm", (5, 4), [_zeros(6, 5)], {"transA": 1, "transB": 1}, 2 * 4 * 5 * 6),
        ("Conv", (1, 8, 10, 10), [_zeros(16, 8, 3, 3)], {}, 2 * 16 * 8 * 8 * 8 * 9),
        ("Conv", (1, 8, 10, 10), [_zeros(8, 1, 3, 3)], {"group": 8}, 2 * 8 * 8 * 8 * 9),
        ("ConvTranspose", (1, 8, 10, 10), [_zeros(8, 4, 2, 2)], {}, 2 * 8 * 100 * 4 * 4),
        (
            "LSTM",
            (7, 1, 16),
            [_zeros(1, 4 * 32, 16), _zeros(1, 4 * 32, 32)],
            {"hidden_size": 32},
            2 * 7 * 4 * 32 * (16 + 32),
        ),
        ("Relu", (4, 5), [], {}, 0),
    ],
)
def test_operations_of_a_node(
    operator: str,
    x: tuple[int, ...],
    weights: list[np.ndarray],
    attributes: dict[str, Any],
    operations: int,
) -> None:
    """A product counts two operations for each multiplication; other nodes count none."""
    work = _work_of(operator, x, *weights, **attributes)
    assert work.operations == operations
    assert work.by_operator == ({operator: operations} if operations else {})
    assert work.is_complete


def test_open_dimensions_take_the_given_sizes() -> None:
    """Operations, weights and boundary of two nodes."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    work = count(_model(nodes, {"x": ["batch", 5]}, {"w": _zeros(5, 6)}), {"x": (4, 5)})
    assert work.float_operations == 2 * 4 * 5 * 6
    assert work.weight_bytes == 4 * 30
    assert work.boundary_bytes == 4 * (20 + 24)


def test_table_counts_the_rows_that_are_read() -> None:
    """Of an embedding of 1000 rows a run reads as many as there are indices."""
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "i"], ["y"]),
    ]
    work = count(_model(nodes, {"x": [7]}, {"table": _zeros(1000, 8)}), {"x": (7,)})
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
    made = _model([constant, node], {"x": [4, 5]}, {"w": _zeros(5, 5)})
    assert count(made, {"x": (4, 5)}).operations == 2 * 4 * 5 * 5


def test_quantised_product_counts_as_int8() -> None:
    """A product of two dequantised factors is eight-bit work; its weights have a byte each."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s", "wz"], ["dw"]),
        helper.make_node("MatMul", ["d", "dw"], ["y"]),
        helper.make_node("MatMul", ["y", "v"], ["r"]),
    ]
    weights: dict[str, np.ndarray] = {
        "s": np.array(0.1, np.float32),
        "z": np.array(0, np.uint8),
        "wz": np.array(0, np.int8),
        "w": np.zeros((5, 6), np.int8),
        "v": _zeros(6, 2),
    }
    work = count(_model(nodes, {"x": [4, 5]}, weights), {"x": (4, 5)})
    assert work.int8_operations == 2 * 4 * 5 * 6
    assert work.float_operations == 2 * 4 * 6 * 2
    assert work.weight_bytes == 30 + 4 + 1 + 1 + 4 * 12


@pytest.mark.parametrize("operator", ["Einsum", "MatMul"])
def test_products_that_are_not_counted_are_reported(operator: str) -> None:
    """Those of shapes that depend on values, and those without a formula."""
    attributes = {"equation": "ij,jk->ik"} if operator == "Einsum" else {}
    nodes = [
        helper.make_node("NonZero", ["x"], ["n"]),
        helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        helper.make_node(operator, ["w", "f"], ["y"], **attributes),
    ]
    work = count(_model(nodes, {"x": [4]}, {"w": _zeros(3, 1)}), {"x": (4,)})
    assert work.unknown == 1
    assert not work.is_complete


def test_local_functions_are_counted_inside() -> None:
    """A call of a model's own function costs what its body costs."""
    body = [helper.make_node("MatMul", ["a", "b"], ["c"])]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "Product", ["a", "b"], ["c"], body, opsets)
    nodes = [helper.make_node("Product", ["x", "w"], ["y"], domain="own")]
    made = _model(nodes, {"x": [4, 5]}, {"w": _zeros(5, 6)})
    made.functions.append(function)
    made.opset_import.append(helper.make_opsetid("own", 1))
    assert count(made, {"x": (4, 5)}).operations == 2 * 4 * 5 * 6


@pytest.mark.parametrize(
    ("element", "bits"),
    [
        (TensorProto.FLOAT, 32),
        (TensorProto.INT4, 4),
        (TensorProto.BOOL, 8),
        (TensorProto.STRING, 0),
    ],
)
def test_bits_of_an_element(element: int, bits: int) -> None:
    """Types of half a byte too."""
    assert item_bits(element) == bits
