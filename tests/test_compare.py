"""A tuned config against the default: what is refused before anything is measured."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_config import make_config

from autotune.deploy.config import Requires
from autotune.deploy.model_files import DataFile, ModelFile
from autotune.deploy.session import SessionConfig
from autotune.errors import CannotMeasureError, ConfigError
from autotune.facts import sample_models
from autotune.results.compare import Comparison, compare


def _config(model: Path) -> Path:
    """Writes a config of default options beside the model."""
    file = DataFile.of(model)
    config = make_config(
        model=ModelFile(**vars(file), source_sha256=file.sha256),
        session=SessionConfig(),
        requires=Requires(),
    )
    path = model.with_name("best.json")
    path.write_text(json.dumps(config.to_json()), encoding="utf-8")
    return path


def _compare(config: Path) -> Comparison:
    return compare(config, data=None, shapes={}, max_error=0.2, on_step=lambda _done, _total: None)


def test_another_model_under_the_name_is_refused(tmp_path: Path) -> None:
    """A file of the same size and other bytes is not the one that was tuned."""
    model = tmp_path / "best.onnx"
    onnx.save(sample_models.lstm(features=4, width=8), model)
    config = _config(model)
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    with pytest.raises(ConfigError, match=r"best\.onnx is not the file that was tuned"):
        _compare(config)


@pytest.mark.process
def test_a_model_that_differs_from_run_to_run_is_named(tmp_path: Path) -> None:
    """Dropout in training mode is no wrong answer of the config: the sentence says what it is."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in "xy"]
    constants = {"ratio": np.asarray(0.5, np.float32), "training": np.asarray(True)}
    graph = helper.make_graph(
        [helper.make_node("Dropout", ["x", *constants], ["y"])],
        "dropout",
        values[:1],
        values[1:],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = tmp_path / "best.onnx"
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), model)
    with pytest.raises(CannotMeasureError, match="differ from run to run") as refusal:
        _compare(_config(model))
    assert "without dropout" in str(refusal.value)
