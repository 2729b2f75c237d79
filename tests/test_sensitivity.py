"""Which nodes are best left in float."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from factories import normal, onnx_model
from onnx import TensorProto, helper
from small_models import BUILDERS

from autotune.facts.feeds import Feed
from autotune.graph import sensitivity
from autotune.graph.distance import output_distance

_WIDTH = 32


def _model(opset: int = 17) -> onnx.ModelProto:
    """Returns two products of one input, of which the harder one hardly reaches the output.

    Both have a channel whose weights make all others vanish.
    """
    weights = normal(0, 2, _WIDTH, _WIDTH)
    weights[0][5] *= 1000
    weights[1][5] *= 100
    return onnx_model(
        "[noisy] noisy = MatMul (x, w0) [quieter] quiet = Mul (noisy, tiny) "
        "[straight] straight = MatMul (x, w1) [sum] y = Add (quiet, straight)",
        {"w0": weights[0], "w1": weights[1], "tiny": 1e-6},
        x="float[4,32] x",
        opset=opset,
    )


def _feeds(count: int = 3) -> Sequence[Feed]:
    chance = np.random.default_rng(1)
    feeds: list[Feed] = []
    for _ in range(count):
        x = chance.standard_normal((4, _WIDTH)).astype(np.float32)
        x[:, 5] = 0  # the noisy channel says nothing, and is rounded for all the same
        feeds.append({"x": x})
    return feeds


@pytest.mark.parametrize("opset", [13, 17])
def test_a_node_that_does_not_reach_the_outputs_comes_last(opset: int) -> None:
    model, feeds = _model(opset), _feeds()
    assert sensitivity.ranked(model, feeds) == ["straight", "noisy"]


def test_all_nodes_are_ranked_and_the_model_stays() -> None:
    for build in BUILDERS.values():
        model = build()
        sensitivity.name_nodes(model)
        before = model.SerializeToString()
        feeds = _random_feeds(model)
        quantisable = sensitivity.quantisable(model)
        assert sorted(sensitivity.ranked(model, feeds)) == sorted(quantisable)
        assert model.SerializeToString() == before


def _random_feeds(model: onnx.ModelProto) -> Sequence[Feed]:
    """Returns one sample; open dimensions are 2."""
    chance = np.random.default_rng(2)
    feed = {}
    for item in model.graph.input:
        shape = [size.dim_value or 2 for size in item.type.tensor_type.shape.dim]
        is_float = item.type.tensor_type.elem_type == TensorProto.FLOAT
        feed[item.name] = (
            chance.standard_normal(shape).astype(np.float32)
            if is_float
            else np.ones(shape, np.int64)
        )
    return [feed]


def test_the_work_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a heavy model only the nodes that cost least are looked at."""
    model = _chain([normal(i, 16 + i, 17 + i) / 4 for i in range(12)])
    order = [node.name for node in model.graph.node]
    runs = []
    run = sensitivity._Switched.run

    def counted(self: sensitivity._Switched, feed: Feed, switch: int) -> list[np.ndarray]:
        runs.append(switch)
        return run(self, feed, switch)

    monkeypatch.setattr(sensitivity._Switched, "run", counted)
    monkeypatch.setattr(sensitivity, "_MOST_OPERATIONS", 1.0)
    by_outputs = sensitivity.ranked(model, [{"x0": normal(4, 4, 16)}] * 4)
    assert by_outputs[8:] == order[8:]
    assert sorted(by_outputs[:8]) == sorted(order[:8])
    assert len(runs) == 9


def test_distances_of_outputs() -> None:
    endless = np.array([1.0, -np.inf, 2.0], np.float32)
    assert output_distance([endless], [endless + 0.0]) == 0.0
    assert output_distance([endless], [np.array([1.0, -np.inf, 3.0], np.float32)]) == pytest.approx(
        1 / np.sqrt(5)
    )
    assert output_distance([endless], [np.zeros(3, np.float32)]) == np.inf
    assert output_distance([endless], [np.abs(endless)]) == np.inf
    assert output_distance([np.array([1, 2, 3, 4])], [np.array([1, 2, 3, 5])]) == 0.25
    assert output_distance([np.ones((1, 4))], [np.ones((7, 4))]) == 1.0


def _chain(weights: Sequence[np.ndarray]) -> onnx.ModelProto:
    """Returns products of 4 rows with one weight after the other, from ``x0``."""
    count = len(weights)
    model = onnx_model(
        " ".join(f"x{i + 1} = MatMul (x{i}, w{i})" for i in range(count)),
        {f"w{i}": weight.astype(np.float32) for i, weight in enumerate(weights)},
        x=f"float[4,{weights[0].shape[0]}] x0",
        y=f"float[?] x{count}",
    )
    sensitivity.name_nodes(model)
    return model


def test_a_cheap_node_goes_before_a_dear_one() -> None:
    """Of two nodes with like errors the one with fewer operations is better left in float."""
    model = _chain([normal(1, *shape) / 16 for shape in ((64, 256), (256, 256), (256, 8))])
    assert sensitivity.ranked(model, [{"x0": normal(2, 4, 64)}])[-1] == "MatMul_1"


def test_every_node_gets_a_name_of_its_own() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], name=name) for name in ("a", "a", "", "Relu_2")]
    model = helper.make_model(helper.make_graph(nodes, "g", [], []))
    sensitivity.name_nodes(model)
    names = [node.name for node in model.graph.node]
    assert len(set(names)) == 4
    assert names[0] == "a"


def _target(node: onnx.NodeProto, *shape: int) -> sensitivity.QuantisableNode:
    weight = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return sensitivity.QuantisableNode(node=node, weight=weight)


@pytest.mark.parametrize(
    ("node", "shape", "products", "steps"),
    [
        (helper.make_node("Gemm", ["x", "w"], ["y"], transB=1), (10, 1280), 1280, (10,)),
        (helper.make_node("Gemm", ["x", "w"], ["y"]), (1280, 10), 1280, (10,)),
        (helper.make_node("MatMul", ["x", "w"], ["y"]), (1280, 10), 1280, (10,)),
        (helper.make_node("MatMul", ["x", "w"], ["y"]), (4, 64, 8), 64, ()),
        (helper.make_node("MatMul", ["x", "w"], ["y"]), (64,), 64, ()),
        (helper.make_node("Conv", ["x", "w"], ["y"]), (16, 3, 5, 5), 75, (16,)),
    ],
    ids=["Gemm transposed", "Gemm", "MatMul", "stack", "vector", "Conv"],
)
def test_the_channels_of_a_weight(
    node: onnx.NodeProto, shape: tuple[int, ...], products: int, steps: tuple[int, ...]
) -> None:
    target = _target(node, *shape)
    assert target.products == products
    assert target.steps().shape == steps


def test_columns_of_another_scale_count_apart() -> None:
    """The scores of a detector beside its boxes in pixels, in one output."""
    draw = np.random.default_rng(1)
    rows = np.concatenate([draw.uniform(50, 600, (1, 4, 80)), draw.uniform(0, 1, (1, 10, 80))], 1)
    lost = rows.copy()
    lost[:, 4:] = 0
    assert output_distance([rows], [lost]) == 1.0
    assert output_distance([rows], [rows]) == 0.0
