"""Which nodes are best left in float, by the model's outputs."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import BUILDERS

from autotune.facts.feeds import Feed
from autotune.graph import output_sensitivity, sensitivity
from autotune.graph.intermediates import Intermediates
from autotune.graph.quantisation import output_distance
from autotune.graph.ranking import ranked

_WIDTH = 32


def _model(opset: int = 17) -> onnx.ModelProto:
    """Returns two products of one input, of which the harder one hardly reaches the output.

    Both have a channel whose weights make all others vanish.
    """
    chance = np.random.default_rng(0)
    weights = [chance.standard_normal((_WIDTH, _WIDTH)).astype(np.float32) for _ in range(2)]
    weights[0][5] *= 1000
    weights[1][5] *= 100
    tiny = np.array(1e-6, np.float32)
    constants = {"w0": weights[0], "w1": weights[1], "tiny": tiny}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w0"], ["loud"], "loud"),
            helper.make_node("Mul", ["loud", "tiny"], ["quiet"], "quieter"),
            helper.make_node("MatMul", ["x", "w1"], ["straight"], "straight"),
            helper.make_node("Add", ["quiet", "straight"], ["y"], "sum"),
        ],
        "two products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, _WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, _WIDTH])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)


def _feeds(count: int = 3) -> Sequence[Feed]:
    chance = np.random.default_rng(1)
    feeds: list[Feed] = []
    for _ in range(count):
        x = chance.standard_normal((4, _WIDTH)).astype(np.float32)
        x[:, 5] = 0  # the loud channel says nothing, and is rounded for all the same
        feeds.append({"x": x})
    return feeds


@pytest.mark.parametrize("opset", [9, 13, 17])
def test_a_node_that_does_not_reach_the_outputs_comes_last(opset: int) -> None:
    """By its own output it comes first; every opset has what the switch needs."""
    model, feeds = _model(opset), _feeds()
    by_nodes = sensitivity.rank(model, feeds)
    assert by_nodes == ["loud", "straight"]
    by_outputs = output_sensitivity.rank(
        model, feeds, sensitivity.QUANTISABLE, lambda: pytest.fail("there is time for all")
    )
    assert by_outputs == ["straight", "loud"]


def test_all_nodes_are_ranked_and_the_model_stays() -> None:
    """Convolutions, Gemm and MatMul have their switches; each name is there once."""
    for build in BUILDERS.values():
        model = build()
        sensitivity.name_nodes(model)
        before = model.SerializeToString()
        feeds = _random_feeds(model)
        order = sensitivity.rank(model, feeds)
        by_outputs = output_sensitivity.rank(
            model, feeds, sensitivity.QUANTISABLE, partial(list, order)
        )
        assert sorted(by_outputs) == sorted(order)
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
    """Of a heavy model only the first nodes are looked at; the others keep their order."""
    chance = np.random.default_rng(3)
    count = 12
    weights = [chance.standard_normal((16, 16)).astype(np.float32) / 4 for _ in range(count)]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(count)]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, [4, 16])],
        [helper.make_tensor_value_info(f"x{count}", TensorProto.FLOAT, [4, 16])],
        [numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    sensitivity.name_nodes(model)
    order = [node.name for node in model.graph.node]
    feeds = [{"x0": chance.standard_normal((4, 16)).astype(np.float32)}] * 4
    runs = []
    run = output_sensitivity._Switched.run

    def counted(self: output_sensitivity._Switched, feed: Feed, switch: int) -> list[np.ndarray]:
        runs.append(switch)
        return run(self, feed, switch)

    monkeypatch.setattr(output_sensitivity._Switched, "run", counted)
    monkeypatch.setattr(output_sensitivity, "_MOST_OPERATIONS", 1.0)
    order.reverse()
    by_outputs = output_sensitivity.rank(model, feeds, sensitivity.QUANTISABLE, lambda: order)
    assert by_outputs[8:] == order[8:]
    assert sorted(by_outputs[:8]) == sorted(order[:8])
    assert len(runs) == 9


def test_a_ranking_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both rankings are kept."""
    model, feeds, shared = _model(), _feeds(), Intermediates()
    assert ranked("m", shared, model, feeds, by="nodes") == ["loud", "straight"]
    assert ranked("m", shared, model, feeds, by="outputs") == ["straight", "loud"]
    monkeypatch.setattr(sensitivity, "rank", lambda *_: pytest.fail("made again"))
    monkeypatch.setattr(output_sensitivity, "rank", lambda *_: pytest.fail("made again"))
    assert ranked("m", shared, model, feeds, by="nodes") == ["loud", "straight"]
    assert ranked("m", shared, model, feeds, by="outputs") == ["straight", "loud"]


def test_distances_of_outputs() -> None:
    """Infinite values that agree count as equal, other types by their share, shapes as a whole."""
    endless = np.array([1.0, -np.inf, 2.0], np.float32)
    assert output_distance([endless], [endless + 0.0]) == 0.0
    assert output_distance([endless], [np.array([1.0, -np.inf, 3.0], np.float32)]) == pytest.approx(
        1 / np.sqrt(5)
    )
    assert output_distance([endless], [np.zeros(3, np.float32)]) == np.inf
    assert output_distance([np.array([1, 2, 3, 4])], [np.array([1, 2, 3, 5])]) == 0.25
    assert output_distance([np.ones((1, 4))], [np.ones((7, 4))]) == 1.0


def test_classes_alone_rank_nodes_by_their_own_outputs() -> None:
    """Where no node alone changes an answer, the order of the nodes' own outputs is taken."""
    model, feeds = _model(), _feeds()
    model.graph.node.append(helper.make_node("Shape", ["y"], ["size"], "shape"))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("size", TensorProto.INT64, [2]))
    order = output_sensitivity.rank(
        model, feeds, sensitivity.QUANTISABLE, lambda: ["loud", "straight"]
    )
    assert order == ["loud", "straight"]
