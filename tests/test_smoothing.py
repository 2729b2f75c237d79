"""Smoothing keeps the answers, and quantisation loses less after them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from factories import normal, onnx_model
from small_models import BUILDERS, distance, write

from autotune.facts.feeds import Feed
from autotune.graph import int8, sensitivity, smoothing
from autotune.graph.intermediates import Intermediates

pytestmark = pytest.mark.filterwarnings("ignore")

_WIDTH = 32
# One channel in so many is so many times as large as the others.
_RARE, _LARGE = 16, 50.0
_SCALE = np.where(np.arange(_WIDTH) % _RARE == 0, _LARGE, 1).astype(np.float32)
_SQUARE = normal(0, _WIDTH, _WIDTH) / 6
_CONSTANTS: dict[str, Any] = {
    "scale": _SCALE,
    "bias": normal(1, _WIDTH) / 6,
    "w": normal(22, _WIDTH, 8) / 6,
    "v": normal(23, _WIDTH, 8) / 6,
    "narrow": normal(4, 8, _WIDTH) / 6,
    "square": _SQUARE,
    "wide": _SQUARE * _SCALE,
    "turned": (_SQUARE * _SCALE).T.copy(),
    "half": 0.5,
}
_NORMALISED = "n = LayerNormalization (x, scale, bias)"
_CASES = {
    "after a normalisation": (
        f"{_NORMALISED} p = MatMul (n, w) q = MatMul (n, v) y = Add (p, q)",
        0,
    ),
    "after a normalisation in pieces": (
        "s = Mul (x, scale) n = Add (bias, s) y = MatMul (n, w)",
        0,
    ),
    "after a product": (
        "p = MatMul (x, wide) s = Add (p, bias) r = Relu (s) y = MatMul (r, w)",
        1,
    ),
    "after a gemm": (
        "p = Gemm <transB = 1, alpha = 0.5> (x, turned, bias) y = Gemm <transB = 1> (p, narrow)",
        1,
    ),
    "beside a residual": (f"{_NORMALISED} p = MatMul (n, square) y = Add (n, p)", 1),
    "after a bend": ("s = Mul (x, scale) e = Elu (s) y = MatMul (e, w)", 1),
    "of an input": ("y = MatMul (x, w)", 1),
}
"""Ways in which products get their input, and how many nodes smoothing has to add."""


def _write(path: Path, body: str, *rows: int) -> list[Feed]:
    """Writes a model whose input has so many rows of vectors; returns samples for it."""
    shape = (*rows, _WIDTH)
    x = f"float[{','.join(map(str, shape))}] x"
    model = onnx_model(body, _CONSTANTS, x=x)
    sensitivity.name_nodes(model)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return [{"x": normal(seed, *shape)} for seed in range(4)]


@pytest.mark.parametrize("alpha", [0.5, 0.85])
@pytest.mark.parametrize("case", _CASES)
def test_smoothing_keeps_the_answers(tmp_path: Path, case: str, alpha: float) -> None:
    """The factor goes into constants where that is exact, and into a node of its own elsewhere."""
    body, count = _CASES[case]
    source, target = tmp_path / "source.onnx", tmp_path / "smooth.onnx"
    feeds = _write(source, body, 6)
    model = onnx.load(source)
    smoothing.smooth(model, smoothing.largest_inputs(model, feeds), alpha)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, target)
    assert distance(source, target, feeds) < 1e-5
    added = [node for node in model.graph.node if node.doc_string == smoothing.MARK]
    assert len(added) == count
    names = {name for node in model.graph.node for name in node.input}
    assert {item.name for item in model.graph.initializer} <= names


@pytest.mark.parametrize("kind", BUILDERS)
def test_smoothing_keeps_the_answers_of_whole_models(tmp_path: Path, kind: str) -> None:
    source, feeds = write(kind, tmp_path)
    model = onnx.load(source)
    sensitivity.name_nodes(model)
    smoothing.smooth(model, smoothing.largest_inputs(model, feeds), 0.7)
    onnx.save(model, tmp_path / "smooth.onnx")
    assert distance(source, tmp_path / "smooth.onnx", feeds) < 1e-4


@pytest.mark.parametrize("precision", [int8.dynamic, int8.static])
def test_outliers_cost_less_once_they_are_smooth(
    tmp_path: Path, precision: Callable[..., None]
) -> None:
    """With one channel in sixteen fifty times as large the error falls by a third."""
    source, target = tmp_path / "source.onnx", tmp_path / "target.onnx"
    feeds = _write(source, _CASES["after a normalisation"][0], 6)
    shared = Intermediates()
    errors = {}
    for alpha in ("off", "0.5"):
        precision(source, target, feeds, shared=shared, smoothing=alpha, reduce_range=True)
        errors[alpha] = distance(source, target, feeds)
    assert errors["0.5"] < errors["off"] / 1.5


def test_what_smoothing_added_is_not_rounded(tmp_path: Path) -> None:
    """A product of its own takes the outliers in float; rounding them first would undo it."""
    source, target = tmp_path / "source.onnx", tmp_path / "target.onnx"
    feeds = _write(source, _CASES["after a bend"][0], 6)
    int8.static(source, target, feeds, smoothing="0.5")
    model = onnx.load(target)
    producers = {name: node for node in model.graph.node for name in node.output}
    (added,) = [node for node in model.graph.node if node.doc_string == smoothing.MARK]
    assert producers[added.input[0]].op_type != "DequantizeLinear"


def test_what_others_take_rounded_is_smoothed_as_it_was(tmp_path: Path) -> None:
    """A residual addition takes the tensor in eight bits; the product of smoothing does not."""
    source, target = tmp_path / "source.onnx", tmp_path / "target.onnx"
    feeds = _write(source, _CASES["beside a residual"][0], 1, 6)
    int8.static(source, target, feeds, smoothing="0.5")
    model = onnx.load(target)
    producers = {name: node for node in model.graph.node for name in node.output}
    added = [node for node in model.graph.node if node.doc_string == smoothing.MARK]
    assert added
    assert any(node.op_type == "DequantizeLinear" for node in model.graph.node)
    assert all(producers[node.input[0]].op_type != "DequantizeLinear" for node in added)


def test_what_only_smoothing_takes_is_not_rounded_at_all(tmp_path: Path) -> None:
    """No pair of rounding and back is left that nobody takes: ONNX Runtime would run it."""
    source, target = tmp_path / "source.onnx", tmp_path / "target.onnx"
    feeds = _write(source, "e = Elu (x) s = Mul (e, half) y = MatMul (s, w)", 1, 6)
    int8.static(source, target, feeds, smoothing="0.5")
    model = onnx.load(target)
    assert any(node.doc_string == smoothing.MARK for node in model.graph.node)
    taken = {name for node in model.graph.node for name in node.input} | {"y"}
    assert all(not taken.isdisjoint(node.output) for node in model.graph.node)
    assert distance(source, target, feeds) < 0.1


def test_alpha_says_how_much_of_an_outlier_goes_into_the_weights(tmp_path: Path) -> None:
    feeds = _write(tmp_path / "source.onnx", _CASES["of an input"][0], 6)
    model = onnx.load(tmp_path / "source.onnx")
    smoothing.smooth(model, smoothing.largest_inputs(model, feeds), 1.0)
    (sizes,) = smoothing.largest_inputs(model, feeds).values()
    assert list(sizes) == pytest.approx([1.0] * _WIDTH)
