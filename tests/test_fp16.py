"""Half precision: what halves cannot hold stays in fp32, and nothing else."""

from pathlib import Path

import onnx
import pytest
from factories import normal, save_onnx
from onnx import TensorProto
from small_models import distance

from autotune.facts.feeds import Feed
from autotune.graph import fp16

pytestmark = pytest.mark.filterwarnings("ignore")

_WIDTH = 16


def test_an_overflow_keeps_no_product_in_fp32(tmp_path: Path) -> None:
    """A power between products is beyond halves; the products beside it are not."""
    source, target = tmp_path / "source.onnx", tmp_path / "mixed.onnx"
    save_onnx(
        source,
        "[first] a = MatMul (x, w0) [enlarge] b = Mul (a, large) [power] c = Pow (b, two) "
        "[reduce] d = Mul (c, small) [last] y = MatMul (d, w1)",
        {
            "w0": normal(0, _WIDTH, _WIDTH) / 4,
            "w1": normal(1, _WIDTH, _WIDTH) / 4,
            "large": 1000.0,
            "two": 2.0,
            "small": 1e-6,
        },
        x=f"float[4,{_WIDTH}] x",
        y=f"float[4,{_WIDTH}] y",
    )
    feeds: list[Feed] = [{"x": normal(2, 4, _WIDTH)}]
    assert set(fp16.rank(onnx.load(source), feeds)[:2]) == {"power", "reduce"}
    fp16.mixed(source, target, feeds, max_error=1e-2)
    assert distance(source, target, feeds) < 1e-2
    written = onnx.load(target).graph
    halves = {i.name for i in written.initializer if i.data_type == TensorProto.FLOAT16}
    assert {"w0", "w1"} <= halves
