"""The ranges of activations, by the values of the parameter."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import distance, write

from autotune.facts.feeds import Feed
from autotune.graph import calibration, int8
from autotune.graph.parameters import OPTIONS

pytestmark = pytest.mark.filterwarnings("ignore")

_STEPS = 255


def _ranges(path: Path, values: np.ndarray) -> dict[str, tuple[float, float]]:
    """Returns the range of the input of a model that passes it through Relu, by each method."""
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], "relu")],
        "relu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [len(values)])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [len(values)])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    feeds: list[Feed] = [{"x": values.astype(np.float32)}]
    ranges = {}
    for source in ("minmax", "histogram"):
        for name, tensors in calibration.activation_ranges(path, feeds, source).items():
            _, low, high = tensors["x"]
            ranges[name] = float(np.min(low)), float(np.max(high))
    return ranges


def _error(values: np.ndarray, bounds: tuple[float, float]) -> float:
    """Returns the squared error of values that are rounded to eight bits within these bounds."""
    low, high = min(bounds[0], 0.0), max(bounds[1], 0.0)
    step = (high - low) / _STEPS
    zero = np.round(-low / step)
    rounded = (np.clip(np.round(values / step) + zero, 0, _STEPS) - zero) * step
    return float(((values - rounded) ** 2).sum())


def test_every_value_of_the_parameter_has_a_source(tmp_path: Path) -> None:
    """What a space may offer can be computed, and the other way round."""
    assert (
        set(OPTIONS["calibration"].domain.choices)
        == _ranges(tmp_path / "relu.onnx", np.arange(1000)).keys()
    )


def test_the_percentile_cuts_what_lies_far_out(tmp_path: Path) -> None:
    """With long tails it cuts one value of a hundred thousand, and minmax cuts none."""
    values = np.random.default_rng(0).standard_t(3, 200_000)
    ranges = _ranges(tmp_path / "relu.onnx", values)
    assert ranges["minmax"] == pytest.approx((values.min(), values.max()), rel=1e-6)
    share = np.mean(np.abs(values) <= ranges["percentile"][1])
    assert 0.9999 < share < 1


@pytest.mark.parametrize("seed", range(3))
def test_least_squares_loses_least(tmp_path: Path, seed: int) -> None:
    """No other method rounds the calibration samples themselves with a smaller squared error."""
    values = np.random.default_rng(seed).standard_t(2 + seed, 50_000)
    ranges = _ranges(tmp_path / "relu.onnx", values)
    errors = {name: _error(values, bounds) for name, bounds in ranges.items()}
    assert errors["least_squares"] <= 1.02 * min(errors.values())
    assert errors["least_squares"] < errors["minmax"]


def test_least_squares_keeps_a_range_without_tails(tmp_path: Path) -> None:
    """Values that lie evenly are not cut, and a range of one sign keeps its zero."""
    values = np.linspace(0, 6, 10_000)
    low, high = _ranges(tmp_path / "relu.onnx", values)["least_squares"]
    assert low == 0
    assert high == pytest.approx(6, rel=0.02)


def test_values_of_one_source_are_measured_together(tmp_path: Path) -> None:
    """The histogram gives all percentiles and the least squares at once, for the same tensors."""
    source, feeds = write("cnn", tmp_path)
    ranges = calibration.activation_ranges(source, feeds, "histogram")
    assert ranges.keys() == set(OPTIONS["calibration"].domain.choices) - {"minmax"}
    assert len({frozenset(tensors) for tensors in ranges.values()}) == 1


def test_a_mask_of_minus_infinity_ends_no_calibration(tmp_path: Path) -> None:
    """Its sum has no finite range, by every method, and all other tensors have theirs."""
    mask = np.where(np.tri(4, dtype=bool), 0.0, -np.inf).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["r"], "product"),
            helper.make_node("Add", ["r", "mask"], ["masked"], "mask"),
            helper.make_node("Softmax", ["masked"], ["y"], "softmax"),
        ],
        "masked",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 4])],
        [numpy_helper.from_array(a, n) for n, a in (("mask", mask), ("w", np.eye(4, dtype="f4")))],
        value_info=[
            helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4, 4]) for n in ("r", "masked")
        ],
    )
    path = tmp_path / "masked.onnx"
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    chance = np.random.default_rng(0)
    feeds: list[Feed] = [{"x": chance.random((1, 4, 4)).astype(np.float32)} for _ in range(3)]
    for source in ("minmax", "histogram"):
        for ranges in calibration.activation_ranges(path, feeds, source).values():
            assert not np.isfinite(ranges["masked"][1])
            assert all(np.isfinite(ranges[name][1:]).all() for name in ("x", "r", "y"))
    for method in ("minmax", "percentile"):
        int8.static(path, tmp_path / "int8.onnx", feeds, calibration=method)
        assert distance(path, tmp_path / "int8.onnx", feeds) < 0.05


def test_shapes_that_depend_on_values_are_calibrated(tmp_path: Path) -> None:
    """As many values as are not zero: each sample has its own shape inside."""
    graph = helper.make_graph(
        [
            helper.make_node("NonZero", ["x"], ["places"], "places"),
            helper.make_node("Transpose", ["places"], ["rows"], "rows"),
            helper.make_node("GatherND", ["x", "rows"], ["values"], "values"),
            helper.make_node("Relu", ["values"], ["y"], "relu"),
        ],
        "inner shapes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        value_info=[helper.make_tensor_value_info("values", TensorProto.FLOAT, ["n"])],
    )
    path = tmp_path / "inner.onnx"
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    feeds: list[Feed] = [
        {"x": np.where(np.arange(8) < count, 1.5, 0.0).astype(np.float32)} for count in (2, 5, 8)
    ]
    for source in ("minmax", "histogram"):
        for ranges in calibration.activation_ranges(path, feeds, source).values():
            assert np.max(ranges["y"][2]) == pytest.approx(1.5, rel=0.01)


def test_no_method_is_another_one_by_a_second_name(tmp_path: Path) -> None:
    """All of them cut a few outliers otherwise; the extremes cut nothing."""
    ranges = _ranges(tmp_path / "relu.onnx", np.random.default_rng(0).standard_t(3, 300_000))
    highest = {name: high for name, (_, high) in ranges.items()}
    assert len(set(highest.values())) == len(highest)
    assert max(highest, key=lambda name: highest[name]) == "minmax"


def test_exact_zeros_cost_least_squares_nothing(tmp_path: Path) -> None:
    """Zero is a rounded value of every range: many of them are no reason for finer steps."""
    values = np.random.default_rng(0).standard_t(4, 20_000)
    alone = _ranges(tmp_path / "relu.onnx", values)["least_squares"]
    with_zeros = np.concatenate([values, np.zeros(30 * len(values))])
    ranges = _ranges(tmp_path / "relu.onnx", with_zeros)
    assert ranges["least_squares"] == pytest.approx(alone)
    errors = {name: _error(with_zeros, bounds) for name, bounds in ranges.items()}
    assert errors["least_squares"] <= 1.02 * min(errors.values())
