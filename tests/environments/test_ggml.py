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

pytestmark = [pytest.mark.environment, pytest.mark.process, pytest.mark.slow]

_BRIEF = Path(__file__).with_name("brief.py")


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


@pytest.mark.parametrize(("name", "kind"), [("unclaimed", "fallback"), ("unrunnable", "refused")])
def test_a_pretender_is_never_emitted(
    ggml: Environment, name: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """What claims no node falls back; what cannot run the nodes it claims is refused."""
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
