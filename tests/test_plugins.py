"""Providers in a library of their own, with an ONNX Runtime that is made up."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.deploy import plugins
from autotune.deploy.options import Domain
from autotune.deploy.plugins import (
    has_plugin,
    is_built_in,
    plugin_device,
    plugin_devices,
    plugin_options,
)
from autotune.deploy.providers import PROVIDERS, Plugin, Provider
from autotune.errors import ConfigError

_NAME = "MadeUpExecutionProvider"
_MODULE = "made_up_ep"


def _provider(**changes: Any) -> Provider:
    plugin = Plugin(**{"package": "made-up-ep", "module": _MODULE, **changes})
    return Provider(name=_NAME, title="made up", flavours=("onnxruntime-made-up",), plugin=plugin)


def _device(kind: str = "GPU", name: str = _NAME, **metadata: str) -> Any:
    return SimpleNamespace(
        ep_name=name,
        ep_metadata={"library_path": "/lib/made_up.so"},
        device=SimpleNamespace(type=SimpleNamespace(name=kind), metadata=metadata),
    )


class FakeRuntime:
    """An ONNX Runtime that offers these devices once their library is registered."""

    def __init__(self, *devices: Any) -> None:
        self.registered: list[tuple[str, str]] = []
        self.fault: Exception | None = None
        self._devices = devices

    def get_available_providers(self) -> list[str]:
        return ["CPUExecutionProvider", *(_NAME for _ in self.registered)]

    def register_execution_provider_library(self, name: str, library: str) -> None:
        if self.fault is not None:
            raise self.fault
        self.registered.append((name, library))

    def get_ep_devices(self) -> list[Any]:
        return list(self._devices) if self.registered else []


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / f"{_MODULE}.py"
    path.write_text(
        f"def get_ep_name(): return '{_NAME}'\ndef get_library_path(): return '/lib/made_up.so'\n"
        "EP_NAME = 'another'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return path


def _use(runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    """Lets autotune work with this ONNX Runtime, in which nothing is registered yet."""
    monkeypatch.setattr(plugins, "onnxruntime", runtime)
    monkeypatch.setattr(plugins, "_registered", set())
    return runtime


def test_a_library_is_registered_once(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = _use(FakeRuntime(_device(), _device(name="CPUExecutionProvider")), monkeypatch)
    provider = _provider()
    assert has_plugin(provider)
    assert not is_built_in(provider)
    assert len(plugin_devices(provider)) == len(plugin_devices(provider)) == 1
    assert runtime.registered == [(_NAME, "/lib/made_up.so")]


@pytest.mark.parametrize("value", ["1", "true", "True"])
def test_virtual_devices_are_left_out(
    package: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    _use(FakeRuntime(_device(is_virtual=value), _device(is_virtual="0")), monkeypatch)
    (device,) = plugin_devices(_provider())
    assert device.device.metadata == {"is_virtual": "0"}


def test_a_device_is_chosen_by_its_type(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _use(FakeRuntime(_device("CPU"), _device("NPU")), monkeypatch)
    assert plugin_device(_provider()).device.type.name == "CPU"
    assert plugin_device(_provider(), "NPU").device.type.name == "NPU"
    with pytest.raises(ConfigError, match=f"{_NAME} has no device of the type GPU here"):
        plugin_device(_provider(), "GPU")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _use(FakeRuntime(), monkeypatch)
    with pytest.raises(ConfigError, match="install onnxruntime-made-up or made-up-ep"):
        plugin_devices(_provider(module="a_module_that_is_nowhere"))


def test_a_library_that_cannot_be_loaded_is_an_error(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = _use(FakeRuntime(_device()), monkeypatch)
    runtime.fault = RuntimeError("needs libcudart.so.13")
    with pytest.raises(ConfigError, match=r"cannot be loaded: needs libcudart\.so\.13"):
        plugin_devices(_provider())
    runtime.fault = None
    assert plugin_devices(_provider())


def test_a_package_that_brings_another_provider_is_an_error(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name may come from a constant instead of a function."""
    runtime = _use(FakeRuntime(_device()), monkeypatch)
    with pytest.raises(ConfigError, match=f"the package {_MODULE} brings another"):
        plugin_devices(_provider(provider="EP_NAME"))
    assert not runtime.registered


def test_options_of_a_library_that_takes_properties(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _use(FakeRuntime(_device("NPU")), monkeypatch)
    provider = _provider(properties={"num_streams": "NUM_STREAMS"})
    # a machine lists other devices before the chosen one
    options = plugin_options(provider, {"num_streams": "2"}, _device("GPU"))
    assert json.loads(options["load_config"]) == {"GPU": {"NUM_STREAMS": "2"}}
    device = _device("NPU")
    options = plugin_options(provider, {"num_streams": "2"}, device)
    assert json.loads(options["load_config"]) == {"NPU": {"NUM_STREAMS": "2"}}
    assert plugin_options(provider, {}, device) == {}
    with pytest.raises(ConfigError, match="made-up-ep has no option precision"):
        plugin_options(provider, {"precision": "FP32"}, device)
    assert plugin_options(_provider(), {"weights": "f32"}, device) == {"weights": "f32"}


@pytest.mark.parametrize("word", [word for word, item in PROVIDERS.items() if item.plugin])
def test_properties_belong_to_options(word: str) -> None:
    provider = PROVIDERS[word]
    assert provider.plugin is not None
    names: dict[str, Domain | str] = {**provider.options, **provider.cache}
    assert provider.plugin.properties.keys() <= names.keys()
