"""Embedding and last product take one packed table, however the exporter tied them."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from factories import normal, save_onnx

from autotune.facts.tied import Tied, tied_table
from autotune.graph import weight_only
from autotune.graph.entries import StepRefusedError

_WORDS, _WIDTH = 40, 72  # the last block is not full
_TABLE = normal(0, _WORDS, _WIDTH)
_FORMS = {
    "turned for the rows": (
        "t = Transpose <perm = [1, 0]> (w) rows = Gather (t, ids) logits = MatMul (rows, w)",
        {"w": _TABLE.T.copy()},
    ),
    "turned for the product": (
        "t = Transpose (e) rows = Gather (e, ids) logits = MatMul (rows, t)",
        {"e": _TABLE},
    ),
    "Gemm": (
        "rows = Gather (e, ids) s = Squeeze (rows) logits = Gemm <transB = 1> (s, e, b)",
        {"e": _TABLE, "b": normal(1, _WORDS)},
    ),
    "two copies": (
        "rows = Gather (e, ids) logits = MatMul (rows, w)",
        {"e": _TABLE, "w": _TABLE.T.copy()},
    ),
}


def _write(path: Path, form: str) -> Path:
    body, weights = _FORMS[form]
    save_onnx(path, body, weights, x="int64[1,n] ids", y="float[?] rows, float[?] logits")
    return path


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("streamed", [False, True])
def test_rows_are_those_that_the_product_multiplies(
    bits: int,
    zero_points: bool,
    form: str,
    streamed: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The logits are the products of the rows, and the table is stored once."""
    for name in ("_STREAMED_BYTES", "_FOLDED_BYTES") if streamed else ():
        monkeypatch.setattr(weight_only, name, 0)
    source = _write(tmp_path / "model.onnx", form)
    target = tmp_path / "out" / "model.onnx"
    target.parent.mkdir()
    weight_only.quantise(
        source, target, [], bits=bits, block_size=32, accuracy_level=0,
        zero_points=zero_points, embeddings="shared",
    )  # fmt: skip
    written = onnx.load(target).graph
    sizes = [np.prod(item.dims) for item in written.initializer if item.name]
    assert sum(size >= _WORDS * _WIDTH / 2 for size in sizes) == 1
    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    rows, logits = session.run(None, {"ids": np.arange(_WORDS)[None]})
    assert rows.shape == (1, _WORDS, _WIDTH)
    bias = _FORMS[form][1].get("b", 0)
    np.testing.assert_allclose(
        logits.reshape(_WORDS, _WORDS), rows[0] @ rows[0].T + bias, rtol=1e-4, atol=1e-4
    )
    steps = 2 ** (bits - 1) - 1
    assert 0 < np.abs(rows[0] - _TABLE).max() < 1.2 * np.abs(_TABLE).max() / steps


@pytest.mark.parametrize("form", _FORMS)
def test_a_table_that_differs_is_not_shared(form: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "model.onnx", form)
    model = onnx.load(path)
    assert tied_table(model, tmp_path) == Tied("rows", "logits")
    other = onnx.numpy_helper.from_array(normal(5, _WORDS, _WIDTH), "other")
    model.graph.initializer.append(other)
    next(node for node in model.graph.node if node.op_type == "Gather").input[0] = "other"
    assert tied_table(model, tmp_path) is None
    onnx.save(model, path)
    with pytest.raises(StepRefusedError, match="share no table"):
        weight_only.quantise(path, tmp_path / "out.onnx", [], embeddings="shared")


def test_a_last_product_in_float_shares_nothing(tmp_path: Path) -> None:
    """Its table is not packed."""
    source = _write(tmp_path / "model.onnx", "two copies")
    model = onnx.load(source)
    model.graph.node.insert(1, onnx.helper.make_node("MatMul", ["rows", "v"], ["more"], "first"))
    model.graph.node[2].input[0] = "more"
    model.graph.initializer.append(onnx.numpy_helper.from_array(normal(2, _WIDTH, _WIDTH), "v"))
    onnx.save(model, source)
    with pytest.raises(StepRefusedError, match="stays in float"):
        weight_only.quantise(
            source, tmp_path / "out.onnx", [], last_product="float", embeddings="shared"
        )
