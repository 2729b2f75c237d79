"""What a model's file says to an inspection."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from factories import save_onnx
from small_models import write

from autotune.errors import CannotMeasureError
from autotune.facts.generated import generate
from autotune.facts.model import Model, describe
from autotune.facts.workload import Workload
from autotune.inspection.model_report import ModelReport, read_model


def _read(path: Path) -> ModelReport:
    described = describe(path)
    return read_model(described.path, generate(described, {}))


def test_facts_of_a_small_cnn(tmp_path: Path) -> None:
    path, _ = write("cnn", tmp_path)
    reading = _read(path)
    weights = onnx.load(path).graph.initializer
    assert reading.opset == 17
    assert reading.inline_bytes == sum(4 * int(np.prod(item.dims)) for item in weights)
    assert (reading.external_bytes, reading.weights_as_inputs) == (0, 0)
    assert reading.weights[0].dtype == "float"
    assert reading.optimised is not None
    assert reading.optimised.subnormals == 0
    assert reading.work.is_complete
    assert next(iter(reading.work.by_operator)) == "Conv"


def test_external_weights_are_outside(tmp_path: Path) -> None:
    path, _ = write("cnn", tmp_path)
    outside = tmp_path / "outside.onnx"
    onnx.save_model(onnx.load(path), outside, save_as_external_data=True, size_threshold=0)
    reading = _read(outside)
    assert reading.inline_bytes == 0
    assert reading.external_bytes > 0


def test_subnormal_weights_are_named(tmp_path: Path) -> None:
    weight = np.ones((4, 4), np.float32)
    weight[1:] = 1e-39
    path = tmp_path / "m.onnx"
    reading = _read(save_onnx(path, "y = MatMul (x, w)", {"w": weight}, x="float[4,4] x"))
    assert reading.optimised is not None
    assert reading.optimised.subnormals == 12
    assert reading.optimised.subnormal_weights[0].elements == 16


def test_weights_as_inputs_block_folding(tmp_path: Path) -> None:
    body = "turned = Transpose (weight) y = MatMul (x, turned)"
    weight = {"weight": np.arange(16, dtype=np.float32).reshape(4, 4)}
    inputs = "float[4,4] x, float[4,4] weight"
    blocked = _read(save_onnx(tmp_path / "b.onnx", body, weight, x=inputs))
    assert blocked.weights_as_inputs == 1
    free = _read(save_onnx(tmp_path / "f.onnx", body, weight, x="float[4,4] x"))
    assert free.weights_as_inputs == 0
    assert free.optimised is not None
    assert free.optimised.unfolded == {}


def test_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    """The file may have changed since it was described."""
    path, _ = write("lstm", tmp_path)
    described: Model = describe(path)
    workload: Workload = generate(described, {})
    path.write_bytes(b"no model")
    with pytest.raises(CannotMeasureError, match="cannot be inspected"):
        read_model(described.path, workload)
