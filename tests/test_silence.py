"""The weights that are rounded in the place of ONNX Runtime's tools, bit by bit as they do it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from factories import normal, save_onnx
from onnxruntime.quantization import base_quantizer, quant_utils

from autotune.graph import int8, silence

pytestmark = pytest.mark.filterwarnings("ignore")

_KINDS: tuple[dict[str, Any], ...] = ({}, {"unsigned_weights": True}, {"reduce_range": True})


def _fail(*_: object, **__: object) -> None:
    pytest.fail("a channel was rounded by itself")


@pytest.mark.parametrize("make", [int8.dynamic, int8.static])
@pytest.mark.parametrize("options", _KINDS, ids=["signed", "unsigned", "seven bits"])
def test_a_file_is_the_one_of_the_tools(
    make: Callable[..., None],
    options: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = normal(0, 8, 6)
    weight[:, 1:4] = [0.0, 1e-40, 1e20]  # a channel of zeros, a tiny and a large one
    body = "m = MatMul (x, w) r = Relu (m) y = MatMul (r, v)"
    constants = {"w": weight, "v": normal(1, 6, 8)}
    source = save_onnx(tmp_path / "m.onnx", body, constants, x="float[2,8] x", y="float[2,8] y")
    samples = [{"x": normal(i, 2, 8)} for i in (2, 3)]

    def made(name: str) -> bytes:
        make(source, tmp_path / name, samples, per_channel=True, **options)
        return (tmp_path / name).read_bytes()

    with monkeypatch.context() as quick:
        quick.setattr(base_quantizer, "quantize_data", _fail)
        quick.setattr(quant_utils, "quantize_nparray", _fail)
        ours = made("ours.onnx")
    for name in ("_quick_weights", "_quick_steps", "_quick_initializers"):
        monkeypatch.setattr(silence, name, lambda original: original)
    assert made("theirs.onnx") == ours
