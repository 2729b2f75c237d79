"""The ranges of activations, by the values of the parameter."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from factories import normal, onnx_model, save_onnx
from small_models import distance

from autotune.facts.feeds import Feed
from autotune.graph import calibration, int8

pytestmark = pytest.mark.filterwarnings("ignore")

_STEPS = 255


def _ranges(path: Path, values: np.ndarray) -> dict[str, tuple[float, float]]:
    """Returns the range of the input of a model that passes it through Relu, by each method."""
    save_onnx(path, "y = Relu (x)", x=f"float[{len(values)}] x")
    feeds: list[Feed] = [{"x": values.astype(np.float32)}]
    ranges = {}
    for source in ("minmax", "histogram"):
        for name, tensors in calibration.activation_ranges(path, feeds, source).items():
            _, low, high = tensors["x"]
            ranges[name] = float(np.min(low)), float(np.max(high))
    return ranges


def _save_with_shapes(path: Path, body: str, constants: dict[str, Any], **options: Any) -> Path:
    """Writes a model with the shapes that inference finds, as calibration gets it."""
    onnx.save(onnx.shape_inference.infer_shapes(onnx_model(body, constants, **options)), path)
    return path


def _error(values: np.ndarray, bounds: tuple[float, float]) -> float:
    """Returns the squared error of values that are rounded to eight bits within these bounds."""
    low, high = min(bounds[0], 0.0), max(bounds[1], 0.0)
    step = (high - low) / _STEPS
    zero = np.round(-low / step)
    rounded = (np.clip(np.round(values / step) + zero, 0, _STEPS) - zero) * step
    return float(((values - rounded) ** 2).sum())


def test_the_percentile_cuts_what_lies_far_out(tmp_path: Path) -> None:
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
    values = np.linspace(0, 6, 10_000)
    low, high = _ranges(tmp_path / "relu.onnx", values)["least_squares"]
    assert low == 0
    assert high == pytest.approx(6, rel=0.02)


def test_a_mask_of_minus_infinity_ends_no_calibration(tmp_path: Path) -> None:
    """Its sum has no finite range, by every method, and all other tensors have theirs."""
    path = _save_with_shapes(
        tmp_path / "masked.onnx",
        "r = MatMul (x, w) masked = Add (r, mask) y = Softmax (masked)",
        {
            "w": np.eye(4, dtype="f4"),
            "mask": np.where(np.tri(4, dtype=bool), 0.0, -np.inf).astype("f4"),
        },
        x="float[1,4,4] x",
        y="float[1,4,4] y",
    )
    feeds: list[Feed] = [{"x": np.abs(normal(seed, 1, 4, 4)) / 3} for seed in range(3)]
    for source in ("minmax", "histogram"):
        for ranges in calibration.activation_ranges(path, feeds, source).values():
            assert not np.isfinite(ranges["masked"][1])
            assert all(np.isfinite(ranges[name][1:]).all() for name in ("x", "r", "y"))
    for method in ("minmax", "percentile"):
        int8.static(path, tmp_path / "int8.onnx", feeds, calibration=method)
        assert distance(path, tmp_path / "int8.onnx", feeds) < 0.05


def test_shapes_that_depend_on_values_are_calibrated(tmp_path: Path) -> None:
    """As many values as are not zero: each sample has its own shape inside."""
    path = _save_with_shapes(
        tmp_path / "inner.onnx",
        "places = NonZero (x) rows = Transpose (places) values = GatherND (x, rows) "
        "y = Relu (values)",
        {},
        x="float[8] x",
        y="float[n] y",
    )
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
