"""The plugin ggml, a pretender: it stands first among the providers and runs none of the model."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from factories import normal, save_onnx
from small_models import BUILDERS
from world import Environment, environment

import autotune
from autotune.deploy.providers import CPU
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError

pytestmark = [pytest.mark.environment, pytest.mark.process, pytest.mark.slow]

_BRIEF = Path(__file__).with_name("brief.py")
_GGML = json.dumps({"execution_provider": "ggml"})
_OPEN = """
import json, sys
from pathlib import Path
from autotune.deploy.opening import open_session
from autotune.deploy.placement import placement_of
from autotune.deploy.providers import CPU
from autotune.deploy.session import SessionConfig
session = open_session(Path(sys.argv[1]), SessionConfig(providers=(("ggml", {}), (CPU, {}))))
print()
print(json.dumps([session.get_providers(), placement_of(session).nodes]))
"""
_TYPO = """
import json, sys
import onnxruntime, onnxruntime_ggml
onnxruntime.register_execution_provider_library("ggml", onnxruntime_ggml.library_path())
(device,) = [item for item in onnxruntime.get_ep_devices() if item.ep_name == "ggml"]
settings = onnxruntime.SessionOptions()
settings.add_provider_for_devices([device], {"wieghts": "f32"})
session = onnxruntime.InferenceSession(sys.argv[1], settings)
print()
print(json.dumps(session.get_providers()))
"""


@pytest.fixture(scope="module")
def ggml() -> Environment:
    """The environment with the plugin."""
    return environment("ggml")


@pytest.fixture(scope="module")
def unclaimed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution network with an operator that ggml lacks, so that it claims no node at all."""
    path = tmp_path_factory.mktemp("unclaimed") / "cnn.onnx"
    onnx.save(BUILDERS["cnn"](), path)
    return path


@pytest.fixture(scope="module")
def unrunnable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convolution over two dimensions, which ggml claims and cannot run: it takes one alone."""
    return save_onnx(
        tmp_path_factory.mktemp("unrunnable") / "conv.onnx",
        "sums = Conv <kernel_shape = [3, 3]> (image, w) features = Relu (sums)",
        {"w": normal(0, 4, 3, 3, 3)},
        x="float[1,3,8,8] image",
        y="float[1,4,6,6] features",
    )


def test_it_counts_as_ready(ggml: Environment, tmp_path: Path) -> None:
    """It runs a matrix product, so that a study searches it and finds out about the model."""
    states = ggml.autotune("hardware", "--no-noise", cwd=tmp_path)["execution_providers"]
    state = next(state for state in states if state["word"] == "ggml")
    assert (state["state"], state["package"]) == ("ready", "onnxruntime-ggml 0.2.0")


def test_a_provider_that_claims_nothing_is_a_fallback(
    ggml: Environment, unclaimed: Path, tmp_path: Path
) -> None:
    """It stands first in `get_providers()` and runs no node: the trial fails, and is not timed."""
    providers, nodes = ggml.result("-c", _OPEN, str(unclaimed), cwd=tmp_path)
    assert providers == ["ggml", CPU]
    assert set(nodes) == {CPU}
    (outcome,) = ggml.result(str(_BRIEF), "measure", str(unclaimed), _GGML, cwd=tmp_path)
    assert (outcome["kind"], outcome["phase"]) == ("fallback", "open")
    assert outcome["message"] == f"ggml runs none of the {nodes[CPU]} nodes"


def test_a_provider_that_cannot_run_what_it_claims_is_refused(
    ggml: Environment, unrunnable: Path, tmp_path: Path
) -> None:
    """All nodes are its own and the session opens; the first run fails, with ggml's words."""
    _, nodes = ggml.result("-c", _OPEN, str(unrunnable), cwd=tmp_path)
    assert set(nodes) == {"ggml"}
    (outcome,) = ggml.result(str(_BRIEF), "measure", str(unrunnable), _GGML, cwd=tmp_path)
    assert (outcome["kind"], outcome["phase"]) == ("refused", "run")
    assert "conv1d wants 3-D tensors" in outcome["message"]


def test_a_typo_that_the_plugin_takes_is_refused_before(
    ggml: Environment, unclaimed: Path, tmp_path: Path
) -> None:
    """The library opens the session without a word; the reader of configs knows the options."""
    assert ggml.result("-c", _TYPO, str(unclaimed), cwd=tmp_path) == ["ggml", CPU]
    with pytest.raises(ConfigError, match=r"wieghts.*Did you mean 'weights'"):
        SessionConfig.from_json({"providers": [["ggml", {"wieghts": "f32"}], [CPU, {}]]})


@pytest.mark.parametrize(("name", "kind"), [("unclaimed", "fallback"), ("unrunnable", "refused")])
def test_a_pretender_is_never_emitted(
    ggml: Environment, name: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model: Path = request.getfixturevalue(name)
    result: dict[str, Any] = ggml.result(
        str(_BRIEF), "study", str(model), "ggml", "cpu", "ggml", cwd=tmp_path
    )
    assert result["failed"][kind] >= 1
    assert set(result["failed"]) == {kind}
    assert not any("execution_provider" in member["configuration"] for member in result["members"])
    config = json.loads((tmp_path / f"{model.stem}.autotune" / "best.json").read_text("utf-8"))
    assert config["session"]["providers"] == [[CPU, {}]]
    assert config["requires"]["providers"] == [CPU]
    with pytest.warns(autotune.ConfigWarning, match="ONNX Runtime 1.30"):
        session = autotune.load(tmp_path / f"{model.stem}.autotune" / "best.json")
    assert session.get_providers() == [CPU]
