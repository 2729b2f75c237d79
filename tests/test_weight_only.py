"""Weights in few bits, rounded tensor by tensor."""

from pathlib import Path

import decoder_models
import numpy as np
import onnx
import onnxruntime
import pytest
from factories import normal, onnx_model
from onnx import helper, numpy_helper

from autotune.facts.graphs import all_nodes
from autotune.graph import weight_only
from autotune.graph.storage_form import STORAGE_FORMS

_FEED = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)


def _model(path: Path, *, gemm: bool = False) -> Path:
    """Writes two products, with external data; one weight is taken twice."""
    weights = {"a": normal(0, 64, 64) / 8, "b": normal(1, 64, 64) / 8, "c": normal(2, 64)}
    last = "Gemm <transB = 1> (y, b, c)" if gemm else "MatMul (y, b)"
    body = f"[first] y = MatMul (x, a) [second] z = {last}"
    model = onnx_model(body, weights, opset=18, x="float[n,64] x", y="float[n,64] z")
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=64)
    return path


def _answer(path: Path) -> np.ndarray:
    return np.asarray(onnxruntime.InferenceSession(path).run(None, {"x": _FEED})[0])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero_points", [False, True])
def test_it_computes_what_the_tool_does(
    bits: int, zero_points: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that never is in memory as a whole gets the same blocks as a small one."""
    source, answers, folder = _model(tmp_path / "model.onnx"), [], tmp_path
    for largest in (1 << 30, 0):
        monkeypatch.setattr(weight_only, "_LARGEST_INSIDE_BYTES", largest)
        folder = tmp_path / str(largest)
        folder.mkdir()
        weight_only.quantise(
            source, folder / "model.onnx", bits=bits, accuracy_level=0, zero_points=zero_points
        )
        answers.append(_answer(folder / "model.onnx"))
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-5, atol=1e-6)
    assert np.abs(answers[1] - _answer(source)).max() > 1e-4
    assert (tmp_path / "0" / "model.onnx.data").is_file()
    # it is stored outside already, and copied as it is
    (tmp_path / "moved").mkdir()
    STORAGE_FORMS["external_data"].run(folder / "model.onnx", tmp_path / "moved" / "model.onnx")
    for file in (folder / "model.onnx", folder / "model.onnx.data"):
        assert (tmp_path / "moved" / file.name).read_bytes() == file.read_bytes()


def test_a_matrix_and_its_transpose_are_packed_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tied autoencoder takes one square matrix in both ways."""
    monkeypatch.setattr(weight_only, "_LARGEST_INSIDE_BYTES", 0)
    weights = {"a": normal(0, 64, 64) / 8, "c": normal(2, 64)}
    body = "[first] y = MatMul (x, a) [second] z = Gemm <transB = 1> (y, a, c)"
    model = onnx_model(body, weights, opset=18, x="float[n,64] x", y="float[n,64] z")
    onnx.save(model, tmp_path / "model.onnx")
    (tmp_path / "out").mkdir()
    weight_only.quantise(tmp_path / "model.onnx", tmp_path / "out" / "model.onnx", bits=8)
    right = _answer(tmp_path / "model.onnx")
    np.testing.assert_allclose(_answer(tmp_path / "out" / "model.onnx"), right, atol=0.1)


@pytest.mark.parametrize("streamed", [False, True])
def test_the_last_product_has_bits_of_its_own(
    streamed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be finer than the others, or stay in float; a Gemm is a product as well."""
    monkeypatch.setattr(weight_only, "_LARGEST_INSIDE_BYTES", 0 if streamed else 1 << 30)
    source = _model(tmp_path / "model.onnx", gemm=streamed)
    bits = {}
    for last in ("as_precision", "int8", "float"):
        target = tmp_path / last / "model.onnx"
        target.parent.mkdir()
        weight_only.quantise(source, target, bits=4, last_product=last)
        nodes = [n for n in onnx.load(target).graph.node if n.op_type == "MatMulNBits"]
        bits[last] = [item.i for n in nodes for item in n.attribute if item.name == "bits"]
        assert np.corrcoef(_answer(target).ravel(), _answer(source).ravel())[0, 1] > 0.9
    assert bits == {"as_precision": [4, 4], "int8": [4, 8], "float": [4]}


@pytest.mark.parametrize("last_product", ["int8", "float"])
def test_a_shared_table_is_turned_once(
    last_product: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedding's table is the last weight turned: it is written so, and rounded in neither."""
    monkeypatch.setattr(weight_only, "_LARGEST_INSIDE_BYTES", 0)
    source = _model(tmp_path / "model.onnx")
    model = onnx.load(source)
    nodes = [
        helper.make_node("Transpose", ["b"], ["table"], "turn"),
        helper.make_node("Gather", ["table", "ids"], ["rows"], "embed"),
        helper.make_node("Add", ["x", "rows"], ["sum"], "add"),
    ]
    nodes += model.graph.node
    nodes[3].input[0] = "sum"
    model.graph.initializer.append(numpy_helper.from_array(np.array([3, 1, 2]), "ids"))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, source)
    target = tmp_path / "out" / "model.onnx"
    target.parent.mkdir()
    weight_only.quantise(source, target, bits=8, last_product=last_product)
    written = onnx.load(target).graph
    assert "Transpose" not in [node.op_type for node in written.node]
    names = {item.name for item in written.initializer}
    assert ("b" in names) == (last_product == "float")
    assert "table" in names
    np.testing.assert_allclose(_answer(target), _answer(source), atol=0.1)


@pytest.mark.parametrize("folded", [1 << 30, 0])
def test_weights_that_a_node_computes_are_rounded_as_well(
    folded: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exporters write a transposed weight, which is folded in memory, or packed as it is stored."""
    monkeypatch.setattr(weight_only, "_LARGEST_INSIDE_BYTES", 0)
    monkeypatch.setattr(weight_only, "_FOLDED_BYTES", folded)
    source = _model(tmp_path / "model.onnx")
    model = onnx.load(source)
    model.graph.node.insert(0, helper.make_node("Transpose", ["b"], ["turned"], "turn"))
    model.graph.node[2].input[1] = "turned"
    onnx.save(model, source)
    target = tmp_path / "out.onnx"
    weight_only.quantise(source, target, bits=8)
    written = onnx.load(target).graph
    assert [node.op_type for node in written.node] == ["MatMulNBits", "MatMulNBits"]
    assert {"b", "turned"}.isdisjoint(item.name for item in written.initializer)
    np.testing.assert_allclose(_answer(target), _answer(source), atol=0.1)


@pytest.mark.parametrize("last_product", ["as_precision", "float"])
@pytest.mark.parametrize("head_inside", [False, True])
def test_products_in_branches_are_packed_once(
    last_product: str, head_inside: bool, tmp_path: Path
) -> None:
    """Both branches of a merged decoder take the same weights, whatever the size of the model."""
    source, target = decoder_models.write("merged", tmp_path / "model.onnx"), tmp_path / "out.onnx"
    model = onnx.load(source)
    if head_inside:
        _move_head_inside(model.graph)
        onnx.save(model, source)
    weight_only.quantise(source, target, bits=8, last_product=last_product)
    written = onnx.load(target).graph
    packed = [n.input[1] for n in all_nodes(written) if n.op_type == "MatMulNBits"]
    names = [item.name for item in written.initializer]
    assert len(packed) == 4 + (1 + head_inside) * (last_product == "as_precision")
    assert all(names.count(name) == 1 for name in packed)
    assert {"qkv", "out"}.isdisjoint(names)
    assert ("head" in names) == (last_product == "float")
    answers = []
    for path in (source, target):
        session = onnxruntime.InferenceSession(path)
        for flag in (False, True):
            past = np.ones((1, decoder_models.HEADS, 2, decoder_models.SIZE), np.float32)
            feed = {
                "input_ids": np.array([[1, 2]]),
                "use_cache_branch": np.array([flag]),
                **{f"past_key_values.0.{name}": past for name in ("key", "value")},
            }
            answers.append(session.run(["logits"], feed)[0])
    for right, found in zip(answers[:2], answers[2:], strict=True):
        assert np.linalg.norm(found - right) <= 0.03 * np.linalg.norm(right)


def _move_head_inside(graph: onnx.GraphProto) -> None:
    """Puts the last product into both branches, under one name in both."""
    graph.node.pop()
    choice = next(node for node in graph.node if node.op_type == "If")
    choice.output[0] = "logits"
    for attribute in choice.attribute:
        output = attribute.g.output[0]
        attribute.g.node.append(helper.make_node("MatMul", [output.name, "head"], ["own"], "head"))
        output.name = "own"
        output.type.tensor_type.shape.dim[-1].dim_value = decoder_models.VOCABULARY
