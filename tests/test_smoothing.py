"""Smoothing keeps the answers, and quantisation loses less after them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import BUILDERS, distance, write

from autotune.facts.feeds import Feed
from autotune.graph import int8, sensitivity, smoothing
from autotune.graph.intermediates import Intermediates

pytestmark = pytest.mark.filterwarnings("ignore")

_CHANCE = np.random.default_rng(5)


@pytest.fixture(autouse=True)
def _same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test draws the same numbers, whichever tests ran before it."""
    monkeypatch.setitem(globals(), "_CHANCE", np.random.default_rng(5))


_WIDTH = 32
# One channel in so many is so many times as large as the others.
_RARE, _LARGE = 16, 50.0


def _weights(*shape: int) -> np.ndarray:
    return np.asarray(_CHANCE.standard_normal(shape) / np.sqrt(shape[0]), np.float32)


def _outliers(size: int) -> np.ndarray:
    scale = np.ones(size, np.float32)
    scale[::_RARE] = _LARGE
    return scale


class _Builder:
    """A model of nodes on vectors; its input is ``x`` [6, width], its output ``y``."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: list[onnx.TensorProto] = []

    def constant(self, array: np.ndarray) -> str:
        """Returns the name of a new initializer."""
        name = f"c{len(self.arrays)}"
        self.arrays.append(numpy_helper.from_array(np.asarray(array, np.float32), name))
        return name

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Returns the output of a new node."""
        name = output or f"{operator}_{len(self.nodes)}_out"
        node = helper.make_node(operator, inputs, [name], f"n{len(self.nodes)}", **attributes)
        self.nodes.append(node)
        return name

    def write(self, path: Path, shape: Sequence[int] = (6, _WIDTH)) -> list[Feed]:
        """Writes the model; returns samples for it."""
        graph = helper.make_graph(
            self.nodes,
            "built",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            self.arrays,
        )
        opsets = [helper.make_opsetid("", 17)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        onnx.save(onnx.shape_inference.infer_shapes(model), path)
        return [{"x": _CHANCE.standard_normal(shape).astype(np.float32)} for _ in range(4)]


def _normalised(graph: _Builder) -> str:
    scale, bias = graph.constant(_outliers(_WIDTH)), graph.constant(_weights(_WIDTH))
    return graph.add("LayerNormalization", "x", scale, bias)


def _after_a_normalisation(graph: _Builder) -> None:
    x = _normalised(graph)
    parts = [graph.add("MatMul", x, graph.constant(_weights(_WIDTH, 8))) for _ in range(2)]
    graph.add("Add", *parts, output="y")


def _after_a_normalisation_in_pieces(graph: _Builder) -> None:
    x = graph.add("Mul", "x", graph.constant(_outliers(_WIDTH)))
    x = graph.add("Add", graph.constant(_weights(_WIDTH)), x)
    graph.add("MatMul", x, graph.constant(_weights(_WIDTH, 8)), output="y")


def _after_a_product(graph: _Builder) -> None:
    weight = _weights(_WIDTH, _WIDTH) * _outliers(_WIDTH)
    x = graph.add("MatMul", "x", graph.constant(weight))
    x = graph.add("Relu", graph.add("Add", x, graph.constant(_weights(_WIDTH))))
    graph.add("MatMul", x, graph.constant(_weights(_WIDTH, 8)), output="y")


def _after_a_gemm(graph: _Builder) -> None:
    weight = (_weights(_WIDTH, _WIDTH) * _outliers(_WIDTH)).T
    x = graph.add(
        "Gemm", "x", graph.constant(weight), graph.constant(_weights(_WIDTH)), transB=1, alpha=0.5
    )
    graph.add("Gemm", x, graph.constant(_weights(8, _WIDTH)), output="y", transB=1)


def _beside_a_residual(graph: _Builder) -> None:
    x = _normalised(graph)
    product = graph.add("MatMul", x, graph.constant(_weights(_WIDTH, _WIDTH)))
    graph.add("Add", x, product, output="y")


def _after_a_bend(graph: _Builder) -> None:
    x = graph.add("Mul", "x", graph.constant(_outliers(_WIDTH)))
    x = graph.add("Elu", x)
    graph.add("MatMul", x, graph.constant(_weights(_WIDTH, 8)), output="y")


def _of_an_input(graph: _Builder) -> None:
    graph.add("MatMul", "x", graph.constant(_weights(_WIDTH, 8)), output="y")


_CASES: dict[Callable[[_Builder], None], int] = {
    _after_a_normalisation: 0,
    _after_a_normalisation_in_pieces: 0,
    _after_a_product: 1,
    _after_a_gemm: 1,
    _beside_a_residual: 1,
    _after_a_bend: 1,
    _of_an_input: 1,
}
"""Ways in which products get their input, and how many nodes smoothing has to add."""


@pytest.mark.parametrize("alpha", [0.5, 0.85])
@pytest.mark.parametrize("build", _CASES, ids=lambda build: build.__name__)
def test_smoothing_keeps_the_answers(
    tmp_path: Path, build: Callable[[_Builder], None], alpha: float
) -> None:
    """The factor goes into constants where that is exact, and into a node of its own elsewhere."""
    graph = _Builder()
    build(graph)
    source, target = tmp_path / "source.onnx", tmp_path / "smooth.onnx"
    feeds = graph.write(source)
    model = onnx.load(source)
    smoothing.smooth(model, smoothing.largest_inputs(model, feeds), alpha)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, target)
    assert distance(source, target, feeds) < 1e-5
    added = [node for node in model.graph.node if node.doc_string == smoothing.MARK]
    assert len(added) == _CASES[build]
    names = {name for node in model.graph.node for name in node.input}
    assert {item.name for item in model.graph.initializer} <= names


@pytest.mark.parametrize("kind", BUILDERS)
def test_smoothing_keeps_the_answers_of_whole_models(tmp_path: Path, kind: str) -> None:
    """The sample models, as quantisation gets them, compute the same."""
    source, feeds = write(kind, tmp_path)
    model = onnx.load(source)
    sensitivity.name_nodes(model)
    smoothing.smooth(model, smoothing.largest_inputs(model, feeds), 0.7)
    onnx.save(model, tmp_path / "smooth.onnx")
    assert distance(source, tmp_path / "smooth.onnx", feeds) < 1e-4


@pytest.mark.parametrize("precision", [int8.dynamic, int8.static])
def test_outliers_cost_less_once_they_are_smooth(
    tmp_path: Path, precision: Callable[..., None]
) -> None:
    """With one channel in sixteen fifty times as large the error falls by a third."""
    graph = _Builder()
    _after_a_normalisation(graph)
    source, target = tmp_path / "source.onnx", tmp_path / "target.onnx"
    feeds = graph.write(source)
    shared = Intermediates()
    errors = {}
    for alpha in ("off", "0.5"):
        precision(source, target, feeds, shared=shared, smoothing=alpha, reduce_range=True)
        errors[alpha] = distance(source, target, feeds)
    assert errors["0.5"] < errors["off"] / 1.5


def test_what_smoothing_added_is_not_rounded(tmp_path: Path) -> None:
    """A product of its own takes the outliers in float; rounding them first would undo it."""
    graph = _Builder()
    _after_a_bend(graph)
    source, target = tmp_path / "source.onnx", tmp_path / "target.onnx"
    feeds = graph.write(source)
    int8.static(source, target, feeds, smoothing="0.5")
    model = onnx.load(target)
    producers = {name: node for node in model.graph.node for name in node.output}
    (added,) = [node for node in model.graph.node if node.doc_string == smoothing.MARK]
    assert producers[added.input[0]].op_type != "DequantizeLinear"


def test_what_others_take_rounded_is_smoothed_as_it_was(tmp_path: Path) -> None:
    """A residual addition takes the tensor in eight bits; the product of smoothing does not."""
    graph = _Builder()
    _beside_a_residual(graph)
    source, target = tmp_path / "source.onnx", tmp_path / "target.onnx"
    feeds = graph.write(source, (1, 6, _WIDTH))
    int8.static(source, target, feeds, smoothing="0.5")
    model = onnx.load(target)
    producers = {name: node for node in model.graph.node for name in node.output}
    added = [node for node in model.graph.node if node.doc_string == smoothing.MARK]
    assert added
    assert any(node.op_type == "DequantizeLinear" for node in model.graph.node)
    assert all(producers[node.input[0]].op_type != "DequantizeLinear" for node in added)


def test_what_only_smoothing_takes_is_not_rounded_at_all(tmp_path: Path) -> None:
    """No pair of rounding and back is left that nobody takes: ONNX Runtime would run it."""
    graph = _Builder()
    x = graph.add("Mul", graph.add("Elu", "x"), graph.constant(np.array(0.5)))
    graph.add("MatMul", x, graph.constant(_weights(_WIDTH, 8)), output="y")
    source, target = tmp_path / "source.onnx", tmp_path / "target.onnx"
    feeds = graph.write(source, (1, 6, _WIDTH))
    int8.static(source, target, feeds, smoothing="0.5")
    model = onnx.load(target)
    assert any(node.doc_string == smoothing.MARK for node in model.graph.node)
    taken = {name for node in model.graph.node for name in node.input} | {"y"}
    assert all(not taken.isdisjoint(node.output) for node in model.graph.node)
    assert distance(source, target, feeds) < 0.1
