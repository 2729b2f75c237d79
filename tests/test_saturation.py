"""Quantised products that overflow in 16 bits."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.inspection.saturation import saturation


def _model(nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 4])
    weights = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    return helper.make_model(helper.make_graph(nodes, "made", [x], [y], weights))


def _qdq(weight: np.ndarray, zero: np.ndarray) -> onnx.ModelProto:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "s"], ["dw"]),
        helper.make_node("MatMul", ["d", "dw"], ["y"]),
    ]
    return _model(nodes, {"s": np.array(0.1, np.float32), "z": zero, "w": weight})


LARGE = np.array([[127, -100], [3, 4]], np.int8)
SMALL = np.array([[64, -64], [3, 4]], np.int8)
UNSIGNED = np.array(0, np.uint8)


def test_large_signed_weights_with_unsigned_activations(tmp_path: Path) -> None:
    """Two of four weights are beyond 64."""
    result = saturation(_qdq(LARGE, UNSIGNED), tmp_path)
    assert (result.products, result.large_share) == (1, 0.5)


@pytest.mark.parametrize(
    ("weight", "zero"),
    [(SMALL, UNSIGNED), (LARGE, np.array(0, np.int8)), (LARGE.astype(np.uint8), UNSIGNED)],
    ids=["reduced range", "signed activations", "unsigned weights"],
)
def test_what_cannot_overflow(tmp_path: Path, weight: np.ndarray, zero: np.ndarray) -> None:
    """A reduced range, or factors of one kind."""
    assert saturation(_qdq(weight, zero), tmp_path).products == 0


def test_integer_products(tmp_path: Path) -> None:
    """Dynamic quantisation makes unsigned activations, whose zero point is no constant."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
    ]
    assert saturation(_model(nodes, {"w": LARGE}), tmp_path).products == 1


def test_float_model_has_no_such_products(tmp_path: Path) -> None:
    """A plain MatMul is none."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    assert saturation(_model(nodes, {"w": LARGE.astype(np.float32)}), tmp_path).products == 0
