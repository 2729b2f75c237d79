"""What a model's file says to an inspection."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import write

from autotune.errors import CannotMeasureError
from autotune.facts.model import Model, describe
from autotune.facts.workload import Workload, generate
from autotune.inspection.model_report import ModelReport, read_model


def _read(path: Path) -> ModelReport:
    described = describe(path)
    return read_model(described, generate(described, {}))


def _save(
    path: Path, nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], inputs: tuple[str, ...]
) -> Path:
    """Writes a model of 4 x 4 matrices; weights named in `inputs` are graph inputs too."""
    matrices = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4]) for name in inputs]
    graph = helper.make_graph(
        nodes,
        "made",
        matrices,
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_facts_of_a_small_cnn(tmp_path: Path) -> None:
    """Opset, weights and their place, the optimised graph, and the work of a run."""
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
    """Bytes in a file beside the model do not count as inside it."""
    path, _ = write("cnn", tmp_path)
    outside = tmp_path / "outside.onnx"
    onnx.save_model(onnx.load(path), outside, save_as_external_data=True, size_threshold=0)
    reading = _read(outside)
    assert reading.inline_bytes == 0
    assert reading.external_bytes > 0


def test_subnormal_weights_are_named(tmp_path: Path) -> None:
    """Of 16 weights 12 are below the smallest normal number."""
    weight = np.ones((4, 4), np.float32)
    weight[1:] = 1e-39
    node = helper.make_node("MatMul", ["x", "weight"], ["y"])
    reading = _read(_save(tmp_path / "m.onnx", [node], {"weight": weight}, ("x",)))
    assert reading.optimised is not None
    assert reading.optimised.subnormals == 12
    assert reading.optimised.subnormal_weights[0].elements == 16


def test_weights_as_inputs_block_folding(tmp_path: Path) -> None:
    """An initializer that is an input too is counted, and so is the node that it keeps."""
    nodes = [
        helper.make_node("Transpose", ["weight"], ["turned"]),
        helper.make_node("MatMul", ["x", "turned"], ["y"]),
    ]
    weight = np.arange(16, dtype=np.float32).reshape(4, 4)
    blocked = _read(_save(tmp_path / "b.onnx", nodes, {"weight": weight}, ("x", "weight")))
    assert blocked.weights_as_inputs == 1
    free = _read(_save(tmp_path / "f.onnx", nodes, {"weight": weight}, ("x",)))
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
        read_model(described, workload)
