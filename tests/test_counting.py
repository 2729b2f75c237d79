"""The work of a run, counted by hand."""

import numpy as np
import pytest
from factories import onnx_model
from onnx import TensorProto, helper

from autotune.facts.counting import count, item_bits


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("node", "x", "weights", "operations"),
    [
        ("MatMul (x, w)", (2, 4, 5), {"w": (5, 6)}, 2 * 2 * 4 * 5 * 6),
        ("Gemm (x, w)", (4, 5), {"w": (5, 6)}, 2 * 4 * 5 * 6),
        ("Gemm <transA = 1, transB = 1> (x, w)", (5, 4), {"w": (6, 5)}, 2 * 4 * 5 * 6),
        ("Conv (x, w)", (1, 8, 10, 10), {"w": (16, 8, 3, 3)}, 2 * 16 * 8 * 8 * 8 * 9),
        ("Conv <group = 8> (x, w)", (1, 8, 10, 10), {"w": (8, 1, 3, 3)}, 2 * 8 * 8 * 8 * 9),
        ("ConvTranspose (x, w)", (1, 8, 10, 10), {"w": (8, 4, 2, 2)}, 2 * 8 * 100 * 4 * 4),
        (
            "LSTM <hidden_size = 32> (x, w, r)",
            (7, 1, 16),
            {"w": (1, 4 * 32, 16), "r": (1, 4 * 32, 32)},
            2 * 7 * 4 * 32 * (16 + 32),
        ),
        ("Relu (x)", (4, 5), {}, 0),
    ],
)
def test_operations_of_a_node(
    node: str, x: tuple[int, ...], weights: dict[str, tuple[int, ...]], operations: int
) -> None:
    """A product counts two operations for each multiplication; other nodes count none."""
    constants = {name: _zeros(*shape) for name, shape in weights.items()}
    made = onnx_model(f"y = {node}", constants, x=f"float[{','.join(map(str, x))}] x")
    work = count(made, {"x": x})
    assert work.operations == operations
    assert work.by_operator == ({node.split()[0]: operations} if operations else {})
    assert work.is_complete


def test_open_dimensions_take_the_given_sizes() -> None:
    made = onnx_model(
        "y = MatMul (x, w) z = Relu (y)", {"w": _zeros(5, 6)}, x="float[N,5] x", y="float[?] z"
    )
    work = count(made, {"x": (4, 5)})
    assert work.float_operations == 2 * 4 * 5 * 6
    assert work.weight_bytes == 4 * 30
    assert work.boundary_bytes == 4 * (20 + 24)


def test_table_counts_the_rows_that_are_read() -> None:
    """Of an embedding of 1000 rows a run reads as many as there are indices."""
    body = "i = Cast <to = 7> (x) y = Gather (table, i)"
    made = onnx_model(body, {"table": _zeros(1000, 8)}, x="float[7] x")
    assert count(made, {"x": (7,)}).weight_bytes == 4 * 7 * 8


def test_larger_branch_of_an_if_counts() -> None:
    """Without a run nobody knows the condition, so the dearer branch is taken."""
    branches = (
        "then_branch = t () => (float[] p) { p = Relu (x) }, "
        "else_branch = e () => (float[] q) { q = MatMul (x, w) }"
    )
    body = f"c = Constant <value = bool {{1}}> () y = If (c) <{branches}>"
    made = onnx_model(body, {"w": _zeros(5, 5)}, x="float[4,5] x")
    work = count(made, {"x": (4, 5)})
    assert work.operations == 2 * 4 * 5 * 5
    assert work.weight_bytes >= 4 * 5 * 5, "the branch reads a weight of the graph around it"


def test_quantised_product_counts_as_int8() -> None:
    """A product of two dequantised factors is eight-bit work; its weights have a byte each."""
    made = onnx_model(
        "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) "
        "dw = DequantizeLinear (w, s, wz) y = MatMul (d, dw) r = MatMul (y, v)",
        {
            "s": 0.1,
            "z": np.array(0, np.uint8),
            "wz": np.array(0, np.int8),
            "w": np.zeros((5, 6), np.int8),
            "v": _zeros(6, 2),
        },
        x="float[4,5] x",
        y="float[?] r",
    )
    work = count(made, {"x": (4, 5)})
    assert work.int8_operations == 2 * 4 * 5 * 6
    assert work.float_operations == 2 * 4 * 6 * 2
    assert work.weight_bytes == 30 + 4 + 1 + 1 + 4 * 12


@pytest.mark.parametrize("product", ['Einsum <equation = "ij,jk->ik">', "MatMul"])
def test_products_that_are_not_counted_are_reported(product: str) -> None:
    body = f"n = NonZero (x) f = Cast <to = 1> (n) y = {product} (w, f)"
    work = count(onnx_model(body, {"w": _zeros(3, 1)}, x="float[4] x"), {"x": (4,)})
    assert work.unknown == 1
    assert not work.is_complete


def test_local_functions_are_counted_inside() -> None:
    body = [helper.make_node("MatMul", ["a", "b"], ["c"])]
    opsets = [helper.make_opsetid("", 17)]
    made = onnx_model("y = own.Product (x, w)", {"w": _zeros(5, 6)}, x="float[4,5] x")
    made.functions.append(helper.make_function("own", "Product", ["a", "b"], ["c"], body, opsets))
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
    assert item_bits(element) == bits
