"""Weights are found wherever a model keeps them, and every step works on them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from factories import onnx_model
from hidden_weights import PLACES, behind_casts, branching, looping, tied
from onnx import TensorProto, helper, numpy_helper
from small_models import BUILDERS, distance
from small_spaces import machine

from autotune.deploy.options import Value
from autotune.facts.feeds import Feed
from autotune.facts.generated import generate
from autotune.facts.graphs import all_nodes, all_weights
from autotune.facts.model import Model, describe
from autotune.facts.weights import quantisable_nodes, to_initializers
from autotune.graph.algebra.model import fold_constants
from autotune.graph.prepare import Preparer
from autotune.space.files import find_space
from autotune.space.resolve import resolve
from autotune.space.space import Space


def _written(model: onnx.ModelProto, folder: Path, name: str) -> Model:
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return describe(path)


def _space(model: Model) -> Space:
    return resolve(find_space("default"), model, generate(model, {}), machine(2))


def _preparer(model: Model, folder: Path) -> tuple[Preparer, Sequence[Feed]]:
    workload = generate(model, {})
    made = Preparer(model, folder, workload=workload, signature=workload.signature())
    return made, workload.feeds


@pytest.mark.parametrize("place", PLACES)
def test_hidden_weights_give_the_same_study(tmp_path: Path, place: str) -> None:
    plain = BUILDERS["transformer"]()
    described = _written(plain, tmp_path, "plain")
    hidden = _written(PLACES[place](plain), tmp_path, "hidden")
    names = ["operators", "parameters", "quantisable", "quantisable_inside", "inputs", "subnormals"]
    names.append("embeddings")
    assert [getattr(hidden, n) for n in names] == [getattr(described, n) for n in names]
    assert _space(hidden).digest() == _space(described).digest()
    assert _space(hidden).left_out == _space(described).left_out
    found = onnx.load(hidden.path)
    assert to_initializers(found)
    assert list(found.graph.node) == list(plain.graph.node)
    assert list(found.graph.input) == list(plain.graph.input)
    weights = {item.name: item.raw_data for item in plain.graph.initializer}
    assert {item.name: item.raw_data for item in found.graph.initializer} == weights


def test_half_precision_weights_are_quantised(tmp_path: Path) -> None:
    plain = BUILDERS["transformer"]()
    model = _written(behind_casts(plain), tmp_path, "cast")
    assert model.quantisable == _written(plain, tmp_path, "plain").quantisable
    preparer, feeds = _preparer(model, tmp_path)
    table = preparer.prepare({"embeddings": "int8"})
    kinds = {item.data_type for item in onnx.load(table.path).graph.initializer}
    assert TensorProto.FLOAT16 not in kinds
    assert distance(model.path, table.path, feeds) < 0.02
    for precision, operator in (
        ("int8_dynamic", "MatMulInteger"),
        ("int8_weight_only", "MatMulNBits"),
    ):
        made = preparer.prepare({"precision": precision})
        types = [node.op_type for node in onnx.load(made.path).graph.node]
        assert types.count(operator) == model.quantisable["MatMul"]
        assert distance(model.path, made.path, feeds) < 0.3


@pytest.mark.parametrize("build", [branching, looping])
@pytest.mark.parametrize(
    ("half", "operator"),
    [
        ({"precision": "int8_dynamic", "reduce_range": True}, "MatMulInteger"),
        ({"precision": "int8_weight_only"}, "MatMulNBits"),
    ],
)
def test_weights_inside_nodes_are_quantised(
    tmp_path: Path, build: Callable[[], onnx.ModelProto], half: dict[str, Value], operator: str
) -> None:
    model = _written(build(), tmp_path, "inside")
    preparer, feeds = _preparer(model, tmp_path)
    made = preparer.prepare(half)
    written = onnx.load(made.path).graph
    assert {node.op_type for node in all_nodes(written)} & {operator, "MatMul"} == {operator}
    assert distance(model.path, made.path, feeds) < 0.1


def test_what_no_tool_can_do_inside_nodes_is_no_configuration(tmp_path: Path) -> None:
    """Static int8, and nodes kept in float, see the main graph alone."""
    model = _written(branching(), tmp_path, "branching")
    assert (model.quantisable, model.quantisable_inside) == ({}, {"MatMul": 2})
    space = _space(model)
    offered = {parameter.name: parameter.values for parameter in space.parameters}
    assert "int8_static" not in offered["precision"]
    assert "int8_dynamic" in offered["precision"]
    assert "kept_in_float" not in offered
    assert "branches and loops" in space.left_out["precision=int8_static"]


def test_tied_weights_keep_their_answers(tmp_path: Path) -> None:
    """A weight that two nodes take is changed for each of them alone."""
    model = _written(tied(), tmp_path, "tied")
    assert model.quantisable == {"MatMul": 3}
    preparer, feeds = _preparer(model, tmp_path)
    halves: tuple[dict[str, Value], ...] = (
        {"precision": "int8_dynamic", "reduce_range": True},
        {"precision": "int8_dynamic", "reduce_range": True, "smoothing": "0.5"},
        {"precision": "int8_weight_only"},
    )
    for half in halves:
        made = preparer.prepare(half)
        assert distance(model.path, made.path, feeds) < 0.1


def test_an_input_with_a_default_value_can_still_be_fed() -> None:
    """A state or the weights of an adapter; where all weights are inputs, none is meant to be."""
    ones = np.ones((2, 2), np.float32)
    for inputs, left in (("w, offset", 3), ("w, offset, bias", 1)):
        named = ", ".join(f"float[2,2] {name}" for name in inputs.split(", "))
        model = onnx_model(
            "p = MatMul (x, w) q = Add (p, offset) y = Add (q, bias)",
            {"w": ones, "offset": ones, "bias": ones},
            x=f"float[2,2] x, {named}",
        )
        assert to_initializers(model) == (left == 1)
        assert len(model.graph.input) == left


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ({"value_float": 1.5}, np.float32(1.5)),
        ({"value_floats": [1.0, 2.0]}, np.array([1, 2], np.float32)),
        ({"value_int": 3}, np.int64(3)),
        ({"value_ints": [3, 4]}, np.array([3, 4], np.int64)),
    ],
)
def test_a_constant_of_numbers_becomes_a_tensor(
    attribute: dict[str, Any], expected: np.ndarray
) -> None:
    """Each way of writing a constant gives the same type and shape as ONNX Runtime makes of it."""
    node = helper.make_node("Constant", [], ["c"], **attribute)
    user = helper.make_node("Identity", ["c"], ["y"])
    output = onnx.ValueInfoProto(name="y")
    model = helper.make_model(helper.make_graph([node, user], "g", [], [output]))
    assert to_initializers(model)
    (tensor,) = all_weights(model.graph)
    array = numpy_helper.to_array(tensor)
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("places", [[1, 5], [[0, 1], [1, 2]]])
def test_a_sparse_weight_is_written_out(places: list[Any]) -> None:
    """With one index for each number, or one for each axis."""
    values = numpy_helper.from_array(np.array([2, 3], np.float32), "w")
    indices = numpy_helper.from_array(np.array(places, np.int64), "places")
    user = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([user], "g", [], [onnx.ValueInfoProto(name="y")])
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    model = helper.make_model(graph)
    assert to_initializers(model)
    (tensor,) = all_weights(model.graph)
    assert tensor.name == "w"
    assert numpy_helper.to_array(tensor).tolist() == [[0, 2, 0], [0, 0, 3]]
    assert not model.graph.sparse_initializer


def test_a_constant_that_is_an_output_stays() -> None:
    value = numpy_helper.from_array(np.ones(2, np.float32))
    node = helper.make_node("Constant", [], ["y"], value=value)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    model = helper.make_model(helper.make_graph([node], "g", [], [output]))
    assert not to_initializers(model)
    assert len(model.graph.node) == 1


def test_integers_and_fed_weights_are_not_quantisable() -> None:
    """A product has a constant float weight, or it does not count."""
    model = onnx_model(
        "a = MatMul (x, whole) b = MatMul (x, fed) c = MatMul (x, w)",
        {"whole": np.ones((2, 2), np.int64), "w": np.ones((2, 2), np.float32)},
        x="float[2,2] x, float[2,2] fed",
        y="float[?] c",
    )
    assert [dict(counts) for counts in quantisable_nodes(model.graph)] == [{"MatMul": 1}, {}]


def test_an_input_with_a_default_is_not_folded() -> None:
    """Casting it once and for all would ignore what a run feeds."""
    model = onnx_model(
        "wide = Cast <to = 1> (offset) w = Cast <to = 1> (x) y = Add (w, wide)",
        {"offset": np.ones(2, np.float16)},
        x="float16[2] x, float16[2] offset",
    )
    fold_constants(model)
    assert [node.op_type for node in model.graph.node] == ["Cast", "Cast", "Add"]


def test_casts_and_turns_of_weights_are_folded() -> None:
    """What lies between a stored weight and its product is computed once."""
    model = tied()
    fold_constants(model)
    assert "Transpose" not in {node.op_type for node in model.graph.node}
    assert [16, 20] in [list(item.dims) for item in model.graph.initializer]
