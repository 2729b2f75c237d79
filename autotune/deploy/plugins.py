"""Providers that come as a library in a package of their own (plugins).

They are no part of ONNX Runtime, and ``providers=`` may not name them: their library is registered
with the process, and the session options get their devices. Needs the standard library, onnxruntime
and the package of the plugin.
"""

import importlib
import importlib.util
import json
import threading
from collections.abc import Mapping
from typing import Any

from autotune.deploy.providers import Plugin, Provider
from autotune.deploy.runtime import onnxruntime
from autotune.errors import ConfigError

_registered: set[str] = set()
_registering = threading.Lock()


def is_built_in(provider: Provider) -> bool:
    """Returns whether the installed ONNX Runtime was built with the provider.

    ONNX Runtime 1.31 also lists a plugin among the available ones once its library is registered,
    and drops it in silence where ``providers=`` names it.
    """
    if provider.name not in onnxruntime.get_available_providers():
        return False
    return not has_plugin(provider) or not any(
        device.ep_name == provider.name and "library_path" in device.ep_metadata
        for device in onnxruntime.get_ep_devices()
    )


def has_plugin(provider: Provider) -> bool:
    """Returns whether the package of the provider's library is installed."""
    return provider.plugin is not None and bool(importlib.util.find_spec(provider.plugin.module))


def plugin_devices(provider: Provider) -> list[Any]:
    """Returns the devices (``OrtEpDevice``) that the library of the provider offers here.

    The library is registered first, once for the process. Virtual devices, which can compile but
    not run, are left out.

    Raises:
        ConfigError: the package is missing, or ONNX Runtime cannot load its library.
    """
    plugin = provider.plugin
    if plugin is None or not has_plugin(provider):
        raise ConfigError(
            f"no package of {provider.name} is installed; install {' or '.join(provider.packages)}"
        )
    with _registering:
        if provider.name not in _registered:
            _register(provider, plugin)
            _registered.add(provider.name)
    return [
        device
        for device in onnxruntime.get_ep_devices()
        if device.ep_name == provider.name and not _is_virtual(device)
    ]


def _register(provider: Provider, plugin: Plugin) -> None:
    """Registers the library of a provider with this process."""
    try:
        package = importlib.import_module(plugin.module)
        offered = getattr(package, plugin.provider)
        name = offered() if callable(offered) else offered
        if name != provider.name:
            raise ConfigError(f"the package {plugin.module} brings {name}")
        library = str(getattr(package, plugin.library)())
        onnxruntime.register_execution_provider_library(name, library)
    except ConfigError:
        raise
    except Exception as error:  # ONNX Runtime's own classes have no common one
        raise ConfigError(f"{provider.name} cannot be loaded: {error}") from error


def plugin_device(provider: Provider, device_type: str = "") -> Any:
    """Returns the device that a session uses: the first one of the type ``CPU``, ``GPU``, ``NPU``.

    Raises:
        ConfigError: there is none.
    """
    for device in plugin_devices(provider):
        if device_type in ("", device.device.type.name):
            return device
    kind = f" of the type {device_type}" if device_type else ""
    raise ConfigError(f"{provider.name} has no device{kind} here")


def plugin_options(provider: Provider, chosen: Mapping[str, str], device: Any) -> dict[str, str]:
    """Returns the options for a device in the form that the library takes.

    Raises:
        ConfigError: it has no such option; it would ignore it in silence.
    """
    assert provider.plugin is not None
    properties = provider.plugin.properties
    if not properties:
        return dict(chosen)
    # the JSON is for the built-in provider: its properties are those of a device
    written = json.loads(chosen.get("load_config") or "{}")
    chosen = {name: text for name, text in chosen.items() if name != "load_config"}
    for name in chosen:
        if name not in properties:
            raise ConfigError(f"the package {provider.plugin.package} has no option {name}")
    if not chosen and not written:
        return {}
    kind = device.device.type.name
    by_property = {properties[name]: text for name, text in chosen.items()}
    return {"load_config": json.dumps({kind: {**written.get(kind, {}), **by_property}})}


def _is_virtual(device: Any) -> bool:
    metadata = {**device.ep_metadata, **device.device.metadata}
    return str(metadata.get("is_virtual", "0")).lower() in {"1", "true"}
