"""A study beside another ONNX Runtime, from the command that adds it to a fresh environment."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from brief import favouring
from fakes import FakeWorld
from small_models import BUILDERS
from world import environment

from autotune.deploy.config import TunedConfig
from autotune.report.result import view_ending
from autotune.report.view import Line
from autotune.runtimes import environments
from autotune.runtimes.names import read_release

pytestmark = [pytest.mark.environment, pytest.mark.process, pytest.mark.slow]

_OTHER = "onnxruntime-openvino==1.24.1"
_LOAD = """
import json, sys, warnings
import numpy
import autotune
warnings.simplefilter("error")
session = autotune.load(sys.argv[1], strict=True)
with numpy.load(sys.argv[2]) as feed:
    outputs = session.run(None, dict(feed))
print(json.dumps([session.get_providers(), [o.tolist() for o in outputs]]))
"""
_SPACE = """
description = "providers"

[parameters.execution_provider]
values = ["cpu", "openvino"]
default = "cpu"
"""


def test_what_a_study_says_is_installed_loads_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added, searched, written; and loaded where the printed command has installed it."""
    fresh = environment("openvino")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = environments.add(read_release(_OTHER), lambda _: None)
    assert "OpenVINOExecutionProvider" in made.providers
    model = tmp_path / "cnn.onnx"
    onnx.save(BUILDERS["cnn"](), model)
    space = tmp_path / "space.toml"
    space.write_text(_SPACE, encoding="utf-8")
    seams: dict[str, Any] = {"measurer": favouring("openvino")}
    result = FakeWorld(lambda _: (1.0, 1.0)).tune(
        model, space=str(space), runtimes=[_OTHER], trials=3, out=tmp_path / "out", seams=seams
    )
    config = tmp_path / "out" / "best.json"
    assert str(TunedConfig.read(config).requires.runtime) == _OTHER
    words = " ".join(b.text for b in view_ending(result, "").blocks if isinstance(b, Line))
    command = re.search(r"best\.json needs it: (.*?pip install \S+)", words)
    assert command is not None
    # the environment was made with what the command names
    requirements = Path(__file__).with_name("openvino.txt").read_text(encoding="utf-8").split()
    assert command[1].split()[-1] in requirements
    feed = tmp_path / "feed.npz"
    rng = np.random.default_rng(0)
    np.savez(feed, image=rng.normal(size=(1, 3, 16, 16)).astype(np.float32))
    providers, outputs = fresh.result("-c", _LOAD, str(config), str(feed), cwd=tmp_path)
    assert providers[0] == "OpenVINOExecutionProvider"
    with np.load(feed) as arrays:
        right = onnxruntime.InferenceSession(model).run(None, dict(arrays))
    for own, output in zip(outputs, right, strict=True):
        np.testing.assert_allclose(np.asarray(own), output, rtol=1e-2, atol=1e-3)
    assert json.loads(config.read_text(encoding="utf-8"))["environment"]["onnxruntime"] == "1.24.1"
