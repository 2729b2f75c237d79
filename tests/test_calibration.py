"""The ranges of activations, by the values of the parameter."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from small_models import write

from autotune.facts.feeds import Feed
from autotune.graph import calibration
from autotune.graph.precision_options import OPTIONS

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
    for source in dict.fromkeys(calibration.SOURCES.values()):
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


def test_every_value_of_the_parameter_has_a_source() -> None:
    """What a space may offer can be computed, and the other way round."""
    assert set(OPTIONS["calibration"].domain.choices) == calibration.SOURCES.keys()


def test_a_lower_percentile_has_a_narrower_range(tmp_path: Path) -> None:
    """With long tails each percentile cuts more than the one above it, and minmax cuts nothing."""
    values = np.random.default_rng(0).standard_t(3, 200_000)
    ranges = _ranges(tmp_path / "relu.onnx", values)
    names = ("percentile_99.9", "percentile_99.99", "percentile", "minmax")
    widths = [ranges[name][1] - ranges[name][0] for name in names]
    assert widths == sorted(widths)
    assert len(set(widths)) == len(widths)
    assert ranges["minmax"] == pytest.approx((values.min(), values.max()), rel=1e-6)
    share = np.mean(np.abs(values) <= ranges["percentile_99.9"][1])
    assert share == pytest.approx(0.999, abs=5e-4)


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


@pytest.mark.process
def test_values_of_one_source_are_measured_together(tmp_path: Path) -> None:
    """The histogram gives all percentiles and the least squares at once, for the same tensors."""
    source, feeds = write("cnn", tmp_path)
    ranges = calibration.activation_ranges(source, feeds, "histogram")
    assert ranges.keys() == {n for n, s in calibration.SOURCES.items() if s == "histogram"}
    assert len({frozenset(tensors) for tensors in ranges.values()}) == 1
