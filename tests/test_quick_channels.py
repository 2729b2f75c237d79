"""Weights whose channels are rounded quickly are those that ONNX Runtime's tools would round."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from small_models import BUILDERS

from autotune.facts.feeds import Feed
from autotune.graph import int8
from autotune.graph.quick_channels import quick_channels

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.process]


def _model(path: Path) -> list[Feed]:
    """Writes a network with a channel of zeros, one of tiny and one of large weights."""
    model = BUILDERS["cnn"]()
    for item in model.graph.initializer:
        weight = numpy_helper.to_array(item).copy()
        if weight.ndim > 1 and len(weight) > 3:
            weight[0], weight[1], weight[2] = 0.0, weight[1] * 1e-42, weight[2] * 1e4
            item.CopyFrom(numpy_helper.from_array(weight, item.name))
    onnx.save(model, path)
    chance = np.random.default_rng(0)
    inputs = {
        item.name: [d.dim_value or 1 for d in item.type.tensor_type.shape.dim]
        for item in model.graph.input
    }
    return [{n: chance.random(s, np.float32) for n, s in inputs.items()} for _ in range(2)]


@pytest.mark.parametrize("precision", [int8.static, int8.dynamic])
@pytest.mark.parametrize(
    "options",
    [{}, {"reduce_range": True}, {"unsigned_weights": True}, {"per_channel": False}],
    ids=str,
)
def test_the_file_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Any, options: dict[str, bool]
) -> None:
    """Byte for byte."""
    feeds = _model(tmp_path / "source.onnx")
    chosen = {"per_channel": True, **options}
    precision(tmp_path / "source.onnx", tmp_path / "quick.onnx", feeds, **chosen)
    monkeypatch.setattr(int8, "quick_channels", contextlib.nullcontext)
    precision(tmp_path / "source.onnx", tmp_path / "usual.onnx", feeds, **chosen)
    assert (tmp_path / "quick.onnx").read_bytes() == (tmp_path / "usual.onnx").read_bytes()


def test_what_else_the_tools_round_is_theirs() -> None:
    """Activations, other types and given limits go the usual way; NaN is refused as before."""
    from onnxruntime.quantization import quant_utils

    data = np.array([-1.0, 0.5, 3.0], np.float32)
    kind = onnx.TensorProto
    cases: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((data, kind.UINT8, False), {}),
        ((data, kind.INT16, True), {}),
        ((data, kind.INT8, True, False, 9.0), {}),
        ((data, kind.INT8, True), {"rmin_override": -7.0}),
        ((data[:0], kind.INT8, True), {}),
        ((data.astype(np.float16), kind.INT8, True), {}),
    ]
    for arguments, options in cases:
        usual = quant_utils.quantize_data(*arguments, **options)
        with quick_channels():
            quick = quant_utils.quantize_data(*arguments, **options)
        for mine, theirs in zip(quick, usual, strict=True):
            assert mine.dtype == theirs.dtype
            np.testing.assert_array_equal(mine, theirs)
    limits = {"low": -1, "high": 1}
    usual = quant_utils.quantize_nparray(kind.INT8, data, np.float32(0.1), 0, **limits)
    with quick_channels():
        quick = quant_utils.quantize_nparray(kind.INT8, data, np.float32(0.1), 0, **limits)
    np.testing.assert_array_equal(quick, usual)
    with pytest.raises(AssertionError), quick_channels():
        quant_utils.quantize_data(np.full(2, np.nan, np.float32), kind.INT8, True)


def test_the_tools_are_as_before_afterwards() -> None:
    """Also where something fails inside."""
    from onnxruntime.quantization import qdq_quantizer, quant_utils

    before = (quant_utils.quantize_nparray, qdq_quantizer.compute_data_quant_params)
    with contextlib.suppress(ValueError), quick_channels():
        assert quant_utils.quantize_nparray is not before[0]
        raise ValueError
    assert (quant_utils.quantize_nparray, qdq_quantizer.compute_data_quant_params) == before
