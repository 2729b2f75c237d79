"""Files with the shapes of the samples: what passes see, what the file takes, where it exists."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from factories import normal, onnx_model
from small_spaces import machine
from small_spaces import model as described

from autotune.errors import RequestError
from autotune.facts.generated import generate
from autotune.facts.model import describe
from autotune.facts.model_facts import Tensor
from autotune.facts.workload import Workload
from autotune.graph.entries import StepRefusedError
from autotune.graph.parameters import shared_passes, steps_of, wants_samples
from autotune.graph.passes import PASSES
from autotune.graph.prepare import Preparer
from autotune.graph.static_shapes import fix
from autotune.space.files import find_space
from autotune.space.resolve import resolve

_SAMPLES = [{"x": normal(i, 2, 3, 4)} for i in range(2)]


def _model(path: Path) -> Path:
    """A model that computes the shape of a Reshape from that of its input."""
    model = onnx_model(
        "s = Shape(x) b = Gather(s, zero) l = Concat <axis = 0> (b, rest) r = Reshape(x, l) "
        "y = MatMul(r, w)",
        {
            "zero": np.array([0], np.int64),
            "rest": np.array([12], np.int64),
            "w": normal(0, 12, 5),
        },
        x="float[N, T, 4] x",
        y="float[N, 5] y",
    )
    onnx.save(model, path)
    return path


def _shape(value: onnx.ValueInfoProto) -> list[int]:
    return [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]


def test_inputs_and_outputs_have_the_shapes_of_the_samples(tmp_path: Path) -> None:
    source, target = _model(tmp_path / "open.onnx"), tmp_path / "fixed.onnx"
    fix(source, target, _SAMPLES)
    graph = onnx.load(target).graph
    assert _shape(graph.input[0]) == [2, 3, 4]
    assert _shape(graph.output[0]) == [2, 5]
    with pytest.raises(StepRefusedError, match="fixed already"):
        fix(target, tmp_path / "again.onnx", _SAMPLES)
    with pytest.raises(StepRefusedError, match="several shapes"):
        fix(source, tmp_path / "two.onnx", [*_SAMPLES, {"x": normal(3, 1, 3, 4)}])


def test_a_chain_of_shapes_becomes_a_constant_and_answers_stay(tmp_path: Path) -> None:
    source, fixed = _model(tmp_path / "open.onnx"), tmp_path / "fixed.onnx"
    fix(source, fixed, _SAMPLES)
    PASSES["algebra"].run(fixed, tmp_path / "passed.onnx")
    found = [node.op_type for node in onnx.load(tmp_path / "passed.onnx").graph.node]
    assert found == ["Reshape", "MatMul"]
    before, after = (
        onnxruntime.InferenceSession(file) for file in (source, tmp_path / "passed.onnx")
    )
    for feed in _SAMPLES:
        np.testing.assert_allclose(after.run(None, feed)[0], before.run(None, feed)[0], rtol=1e-6)


def test_another_shape_is_refused_with_the_input_and_both_sizes(tmp_path: Path) -> None:
    fix(_model(tmp_path / "open.onnx"), tmp_path / "fixed.onnx", _SAMPLES)
    session = onnxruntime.InferenceSession(tmp_path / "fixed.onnx")
    with pytest.raises(Exception, match=r"input: x[^?]*index: 0 Got: 1 Expected: 2"):
        session.run(None, {"x": normal(0, 1, 3, 4)})


def test_shapes_that_a_branch_cannot_take_are_refused(tmp_path: Path) -> None:
    """A branch that is not taken may be for another sampling rate."""
    model = onnx_model(
        "y = If <then_branch = a () => (float[K] h) { h = MatMul(x, w) }, "
        "else_branch = b () => (float[K] h) { h = Identity(x) }> (flag)",
        {"w": normal(0, 5, 4), "flag": np.array(False)},
        x="float[N, T] x",
        y="float[?] y",
    )
    onnx.save(model, tmp_path / "open.onnx")
    with pytest.raises(StepRefusedError, match="cannot be opened with these shapes"):
        fix(tmp_path / "open.onnx", tmp_path / "fixed.onnx", [{"x": normal(1, 2, 4)}])


def test_it_comes_before_the_passes_and_is_shared_by_all_that_follow() -> None:
    steps = steps_of({"static_shapes": True, "pre_pass": "algebra", "precision": "int8_dynamic"})
    assert [step.name for step in steps] == ["static_shapes", "algebra", "int8_dynamic"]
    before, rest = shared_passes(steps)
    assert (before, rest) == (steps[:2], steps[2:])
    assert wants_samples(before)


@pytest.mark.process
def test_a_file_says_which_shapes_it_takes(tmp_path: Path) -> None:
    model = describe(_model(tmp_path / "open.onnx"))
    workload = generate(model, {"x": (2, 3, 4)})
    preparer = Preparer(model, tmp_path / "cache", workload=workload, signature="s")
    prepared = preparer.prepare({"static_shapes": True, "pre_pass": "algebra"})
    assert prepared.steps == ("shapes fixed in the file: x [2, 3, 4]", "algebra")
    assert prepared.operators == 2


_SPACE = """
description = "static shapes"
[parameters.static_shapes]
values = [false, true]
default = false
needs = ["one_shape"]
"""


@pytest.mark.parametrize(
    ("sizes", "shape", "batch", "reason"),
    [
        ((1, 1), ("N", 4), (), None),
        ((1, 2), ("N", 4), (), "the samples have several shapes"),
        ((1, 1), (1, 4), (), "the model's shapes are fixed"),
        ((1, 1), ("N", 4), (1, 2), "runs have batches"),
    ],
)
def test_it_exists_where_all_samples_have_one_shape_that_the_model_leaves_open(
    tmp_path: Path,
    sizes: tuple[int, int],
    shape: tuple[int | str, ...],
    batch: tuple[int, ...],
    reason: str | None,
) -> None:
    (tmp_path / "space.toml").write_text(_SPACE)
    model = described(inputs=(Tensor(name="x", dtype="float32", shape=shape),))
    feeds: tuple[Mapping[str, np.ndarray], ...] = tuple(
        {"x": np.zeros((size, 4), np.float32)} for size in sizes
    )
    workload = Workload(feeds=feeds, source="user", notes=())
    space = resolve(
        find_space(str(tmp_path / "space.toml")), model, workload, machine(2), batch=batch
    )
    names = {parameter.name for parameter in space.parameters}
    assert ("static_shapes" in names) == (reason is None)
    if reason:
        assert reason in space.left_out["static_shapes"]
        with pytest.raises(RequestError, match=reason):
            resolve(
                find_space("graphs"),
                model,
                workload,
                machine(2),
                {"static_shapes": "true"},
                batch=batch,
            )
