"""Which nodes are best left in float."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from autotune.graph import sensitivity


def _chain(weights: Sequence[np.ndarray], path: Path) -> Path:
    nodes = [
        helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(len(weights))
    ]
    size = [4, weights[0].shape[0]]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, size)],
        [helper.make_tensor_value_info(f"x{len(weights)}", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w.astype(np.float32), f"w{i}") for i, w in enumerate(weights)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def test_the_ranking_finds_an_outlier(tmp_path: Path) -> None:
    """A node with a weight that makes all others of its channel vanish is ranked first."""
    chance = np.random.default_rng(0)
    weights = [chance.standard_normal((32, 32)) / 6 for _ in range(4)]
    weights[2][5, :] *= 1000
    source = _chain(weights, tmp_path / "source.onnx")
    model = onnx.load(source)
    sensitivity.name_nodes(model)
    feeds = [{"x0": chance.standard_normal((4, 32)).astype(np.float32)} for _ in range(3)]
    # what the outlier makes of the input of the node after it is no better
    assert set(sensitivity.rank(model, feeds)[:2]) == {"MatMul_2", "MatMul_3"}


def test_a_cheap_node_goes_before_a_dear_one(tmp_path: Path) -> None:
    """Of two nodes with like errors the one with fewer operations is better left in float."""
    chance = np.random.default_rng(1)
    shapes = [(64, 256), (256, 256), (256, 8)]
    source = _chain([chance.standard_normal(s) / 16 for s in shapes], tmp_path / "source.onnx")
    model = onnx.load(source)
    sensitivity.name_nodes(model)
    feeds = [{"x0": chance.standard_normal((4, 64)).astype(np.float32)}]
    assert sensitivity.rank(model, feeds)[-1] == "MatMul_1"


def test_every_node_gets_a_name_of_its_own() -> None:
    """Names that are missing or there twice are made up."""
    nodes = [helper.make_node("Relu", ["x"], ["y"], name=name) for name in ("a", "a", "", "Relu_2")]
    model = helper.make_model(helper.make_graph(nodes, "g", [], []))
    sensitivity.name_nodes(model)
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == 4
    assert names[0] == "a"
