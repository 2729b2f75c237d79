"""Plugins that are installed, with and without a device that they can use."""

from pathlib import Path

import pytest
from world import Environment, environment

from autotune.deploy.providers import PROVIDERS

pytestmark = [pytest.mark.environment, pytest.mark.process, pytest.mark.slow]

_DEVICES = """
import importlib, json, sys
import onnxruntime
from autotune.deploy.providers import PROVIDERS
provider = PROVIDERS[sys.argv[1]]
package = importlib.import_module(provider.plugin.module)
library = getattr(package, provider.plugin.library)()
onnxruntime.register_execution_provider_library(provider.name, library)
print(json.dumps(sum(d.ep_name == provider.name for d in onnxruntime.get_ep_devices())))
"""
_VIRTUAL = """
import importlib, json, sys
import onnxruntime
from autotune.deploy.plugins import plugin_devices
from autotune.deploy.providers import PROVIDERS
provider = PROVIDERS[sys.argv[1]]
package = importlib.import_module(provider.plugin.module)
library = getattr(package, provider.plugin.library)()
onnxruntime.register_execution_provider_library("an application's own.virtual", library)
offered = [d for d in onnxruntime.get_ep_devices() if d.ep_name == provider.name]
print(json.dumps([len(offered), len(plugin_devices(provider))]))
"""


@pytest.fixture(scope="module")
def plugins() -> Environment:
    """The environment with the plugins of OpenVINO and WebGPU."""
    return environment("plugins")


@pytest.mark.parametrize("word", ["openvino", "webgpu"])
def test_a_plugin_is_ready_only_with_a_device_that_it_can_use(
    plugins: Environment, word: str, tmp_path: Path
) -> None:
    """OpenVINO takes Intel's processors alone; WebGPU takes GPUs."""
    offered = plugins.result("-c", _DEVICES, word, cwd=tmp_path)
    states = plugins.autotune("hardware", "--no-noise", cwd=tmp_path)["execution_providers"]
    state = next(state for state in states if state["word"] == word)
    assert state["package"].startswith("onnxruntime-ep-")
    if offered:
        assert state["state"] == "ready"
    else:
        assert state["state"] == "no device"
        assert state["reason"] == "it finds no device that it can use"


@pytest.mark.parametrize("word", ["openvino", "webgpu"])
def test_virtual_devices_are_never_taken(plugins: Environment, word: str, tmp_path: Path) -> None:
    """An application may register the library so that it offers devices that only compile."""
    assert PROVIDERS[word].plugin is not None
    offered, taken = plugins.result("-c", _VIRTUAL, word, cwd=tmp_path)
    assert offered > 0
    assert taken == 0
