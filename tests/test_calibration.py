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


def _ranges(path: Path, values: np.ndarray) -> dict[str, tuple[float, float]]:
    """Returns the range of the input of a model that passes it through Relu, by each method."""
    save_onnx(path, "y = Relu (x)", x=f"float[{len(values)}] x")
    feeds: list[Feed] = [{"x": values.astype(np.float32)}]
    ranges = {}
    for name in ("minmax", "percentile"):
        _, low, high = calibration.activation_ranges(path, feeds, name)["x"]
        ranges[name] = float(np.min(low)), float(np.max(high))
    return ranges


def _save_with_shapes(path: Path, body: str, constants: dict[str, Any], **options: Any) -> Path:
    """Writes a model with the shapes that inference finds, as calibration gets it."""
    onnx.save(onnx.shape_inference.infer_shapes(onnx_model(body, constants, **options)), path)
    return path


def test_the_percentile_cuts_what_lies_far_out(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_t(3, 200_000)
    ranges = _ranges(tmp_path / "relu.onnx", values)
    assert ranges["minmax"] == pytest.approx((values.min(), values.max()), rel=1e-6)
    share = np.mean(np.abs(values) <= ranges["percentile"][1])
    assert 0.9999 < share < 1


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
    for method in ("minmax", "percentile"):
        ranges = calibration.activation_ranges(path, feeds, method)
        assert not np.isfinite(ranges["masked"][1])
        assert all(np.isfinite(ranges[name][1:]).all() for name in ("x", "r", "y"))
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
    for method in ("minmax", "percentile"):
        ranges = calibration.activation_ranges(path, feeds, method)
        assert np.max(ranges["y"][2]) == pytest.approx(1.5, rel=0.01)


def test_the_tool_gets_no_type_that_it_would_wrap_in_vain() -> None:
    types = calibration.quantisable_types()
    assert {"Conv", "Relu", "Concat"} <= set(types)
    assert {"ConvTranspose", "LayerNormalization", "Pad"}.isdisjoint(types)
