"""Half precision: what halves cannot hold stays in fp32, and nothing else."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import distance

from autotune.facts.feeds import Feed
from autotune.graph import fp16

pytestmark = pytest.mark.filterwarnings("ignore")

_WIDTH = 16


def test_an_overflow_keeps_no_product_in_fp32(tmp_path: Path) -> None:
    """A power between products is beyond halves; the products beside it are not."""
    chance = np.random.default_rng(0)
    arrays = {
        "w0": chance.standard_normal((_WIDTH, _WIDTH)) / 4,
        "w1": chance.standard_normal((_WIDTH, _WIDTH)) / 4,
        "large": np.array(1000.0),
        "two": np.array(2.0),
        "small": np.array(1e-6),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], "first"),
        helper.make_node("Mul", ["a", "large"], ["b"], "enlarge"),
        helper.make_node("Pow", ["b", "two"], ["c"], "power"),
        helper.make_node("Mul", ["c", "small"], ["d"], "reduce"),
        helper.make_node("MatMul", ["d", "w1"], ["y"], "last"),
    ]
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, _WIDTH]) for n in "xy"]
    weights = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "overflow", tensors[:1], tensors[1:], weights)
    source, target = tmp_path / "source.onnx", tmp_path / "mixed.onnx"
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), source)
    feeds: list[Feed] = [{"x": chance.standard_normal((4, _WIDTH)).astype(np.float32)}]
    assert set(fp16.rank(onnx.load(source), feeds)[:2]) == {"power", "reduce"}
    fp16.mixed(source, target, feeds, max_error=1e-2)
    assert distance(source, target, feeds) < 1e-2
    written = onnx.load(target).graph
    halves = {i.name for i in written.initializer if i.data_type == TensorProto.FLOAT16}
    assert {"w0", "w1"} <= halves
