"""Which nodes make the elements of a model's outputs, through operators that only move data."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from autotune.measure.producers import numbers_of_elements

FLOAT = onnx.TensorProto.FLOAT
_X = np.zeros((1, 3, 8), np.float32)


def _save(
    path: Path, nodes: list[onnx.NodeProto], outputs: tuple[str, ...] = ("y",), beside: Any = None
) -> Path:
    """Writes a model with boxes (a product), scores (a sigmoid) and these nodes behind them."""
    weights = {"w": np.ones((8, 2), np.float32), "size": np.float32(640), "one": np.array([1])}
    weights["pads"] = np.array([0, 0, 0, 0, 1, 0])
    head = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "size"], ["boxes"]),
        helper.make_node("Sigmoid", ["a"], ["s"]),
        helper.make_node("Mul", ["s", "s"], ["scores"]),
    ]
    graph = helper.make_graph(
        [*head, *nodes],
        "detector",
        [helper.make_tensor_value_info("x", FLOAT, [1, "n", 8])],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, path, **(beside or {}))
    return path


_JOIN = helper.make_node("Concat", ["boxes", "scores"], ["both"], axis=2)


@pytest.mark.parametrize("beside", [False, True])
def test_elements_have_the_number_of_their_producer(tmp_path: Path, beside: bool) -> None:
    nodes = [
        _JOIN,
        helper.make_node("Pad", ["both", "pads"], ["wider"]),
        helper.make_node("Transpose", ["wider"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("Cast", ["turned"], ["y"], to=FLOAT),
    ]
    how = {"save_as_external_data": True, "location": "m.data", "size_threshold": 0}
    path = _save(tmp_path / "m.onnx", nodes, beside=how if beside else {})
    producers, (numbers,) = numbers_of_elements(path, [{"x": _X}])
    assert [(p.tensor, p.operator) for p in producers["y"]] == [
        ("boxes", "Mul"),
        ("scores", "Sigmoid"),
    ]
    rows = numbers["y"][0, :, 0].tolist()
    assert rows == [1, 1, 2, 2]
    assert numbers["y"][0, :, -1].tolist() == [0, 0, 0, 0]


def test_a_function_that_joins_is_looked_into(tmp_path: Path) -> None:
    """As exporters write a module of the network."""
    call = helper.make_node("Head", ["boxes", "scores"], ["y"], domain="my")
    path = _save(tmp_path / "m.onnx", [call])
    model = onnx.load(path)
    join = helper.make_node("Concat", ["b", "s"], ["both"], axis=2)
    opsets = [helper.make_opsetid("", 18)]
    model.functions.append(helper.make_function("my", "Head", ["b", "s"], ["both"], [join], opsets))
    model.opset_import.append(helper.make_opsetid("my", 1))
    onnx.save(model, path)
    producers, (numbers,) = numbers_of_elements(path, [{"x": _X}])
    assert [p.tensor for p in producers["y"]] == ["boxes", "scores"]
    assert numbers["y"][0, 0].tolist() == [1, 1, 2, 2]


def test_outputs_of_one_producer_have_no_numbers(tmp_path: Path) -> None:
    """And a node that gives several outputs is moved once."""
    nodes = [_JOIN, helper.make_node("Split", ["both"], ["y", "z"], axis=2, num_outputs=2)]
    path = _save(tmp_path / "m.onnx", nodes, ("y", "z", "scores"))
    producers, (numbers,) = numbers_of_elements(path, [{"x": _X}])
    assert {name: len(own) for name, own in producers.items()} == {"y": 2, "z": 2, "scores": 1}
    assert {name: set(array.ravel().tolist()) for name, array in numbers.items()} == {
        "y": {1},
        "z": {2},
    }
