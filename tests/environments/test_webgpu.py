"""WebGPU over a driver that computes on the CPU: SwiftShader, which Chromium brings."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from small_models import BUILDERS
from world import Environment, environment

from autotune.deploy.providers import CPU, PROVIDERS

pytestmark = [pytest.mark.environment, pytest.mark.process, pytest.mark.slow]

_NAME = PROVIDERS["webgpu"].name
_BRIEF = Path(__file__).with_name("brief.py")
_CHROMIUM = Path("/usr/lib/chromium")
_DRIVER = _CHROMIUM / "vk_swiftshader_icd.json"
_TWICE = """
import json, sys
from pathlib import Path
import numpy
from autotune.deploy.opening import open_session
from autotune.deploy.session import SessionConfig
config = SessionConfig.from_json({"providers": [["WebGpuExecutionProvider", {}]]})
opened = [open_session(Path("cnn.onnx"), config) for _ in range(2)]
with numpy.load("feed.npz") as feed:
    answers = [session.run(None, dict(feed))[0].tolist() for session in opened]
print(json.dumps([opened[1].get_providers(), answers]))
"""


@pytest.fixture
def webgpu(monkeypatch: pytest.MonkeyPatch) -> Environment:
    """The environment with the plugin, and a driver of Vulkan for it."""
    if not _DRIVER.exists():
        pytest.skip(f"there is no {_DRIVER}; Debian's package chromium brings it")
    monkeypatch.setenv("ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER", "1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(_CHROMIUM))  # the loader, libvulkan.so.1
    for name in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):  # of newer and of older loaders
        monkeypatch.setenv(name, str(_DRIVER))
    return environment("plugins")


def test_it_runs_the_whole_model_and_its_options_have_effects(
    webgpu: Environment, tmp_path: Path
) -> None:
    """Nodes are placed, answers are right, tensors lie on the device, whose memory is unknown."""
    (state,) = (
        state
        for state in webgpu.autotune("hardware", "--no-noise", cwd=tmp_path)["execution_providers"]
        if state["word"] == "webgpu"
    )
    assert state["state"] == "ready"
    onnx.save(BUILDERS["cnn"](), tmp_path / "cnn.onnx")
    configurations = (
        '{"execution_provider": "webgpu"}',
        '{"execution_provider": "webgpu", "webgpu.preferredLayout": "NCHW"}',
        '{"execution_provider": "webgpu", "webgpu.enableGraphCapture": "1"}',
    )
    arguments = (str(_BRIEF), "measure", "cnn.onnx", *configurations)
    *measured, captured = webgpu.result(*arguments, cwd=tmp_path)
    for outcome in measured:
        assert outcome["placement"]["left_behind"] == []
        assert set(outcome["placement"]["nodes"]) == {_NAME}
        assert outcome["fidelity"]["error"] < 1e-5
        assert outcome["copy_ms"] > 0
        assert outcome["memory"]["device_mib"] is None
    nhwc, nchw = (outcome["placement"]["nodes"][_NAME] for outcome in measured)
    assert nhwc > nchw  # images are transposed on the way in and out
    assert captured["kind"] == "refused"
    assert "graph capture requires" in captured["message"]


def test_a_second_session_of_a_process_runs_on_it_too(webgpu: Environment, tmp_path: Path) -> None:
    """ONNX Runtime lists the plugin when the second one opens, and may not get it by its name."""
    onnx.save(BUILDERS["cnn"](), tmp_path / "cnn.onnx")
    image = np.random.default_rng(0).normal(size=(1, 3, 16, 16)).astype(np.float32)
    np.savez(tmp_path / "feed.npz", image=image)
    providers, answers = webgpu.result("-c", _TWICE, cwd=tmp_path)
    assert providers == [_NAME, CPU]
    untouched = onnxruntime.InferenceSession(tmp_path / "cnn.onnx", providers=[CPU])
    (right,) = untouched.run(None, {"image": image})
    for each in answers:
        np.testing.assert_allclose(each, right, rtol=1e-4, atol=1e-5)
