"""Opens sessions. Applications and measurements open a session through this one function.

Needs the standard library and onnxruntime, and nothing else of autotune's dependencies.
"""

import functools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.deploy.options import Value
from autotune.deploy.placement import RECORD_ENTRY
from autotune.deploy.providers import CPU, WORDS, Provider, provider_named
from autotune.deploy.runtime import onnxruntime
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError

# The methods that run a session, with the place of their run options.
_RUN_METHODS = {"run": 2, "run_async": 4, "run_with_ort_values": 2, "run_with_iobinding": 1}
_BOUND = "run_with_iobinding"

GRAPH_ID = "gpu_graph_id"
"""The run config entry that names a captured graph; ``-1`` runs without one."""


class TunedSession(onnxruntime.InferenceSession):  # type: ignore[misc]  # onnxruntime has no types
    """An ``InferenceSession`` whose runs use the tuned run options unless the caller passes some.

    A run option such as arena shrinkage belongs to a run, not to a session; without this class an
    application would have to pass it to each call.

    Attributes:
        tuned_run_options: Those of all runs.
        array_run_options: Those of runs that bind no buffers, where they differ: a captured graph
            reads and writes the buffers that were bound when it was captured, whatever a later run
            is given, so such runs leave it out.
    """

    tuned_run_options: Any = None
    array_run_options: Any = None


def use_tuned_run_options(kind: Any, base: Any) -> None:
    """Lets the runs of sessions of class `kind` use their tuned run options.

    Args:
        base: The class whose methods run them.
    """
    for name, place in _RUN_METHODS.items():
        if hasattr(base, name):
            setattr(kind, name, _with_run_options(getattr(base, name), place, name == _BOUND))


def _with_run_options(original: Any, place: int, is_bound: bool) -> Any:
    """Returns a method whose argument `place`, the run options, has the tuned ones as default."""

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        tuned = self.__dict__.get("tuned_run_options")
        if not is_bound:
            tuned = self.__dict__.get("array_run_options") or tuned
        given = arguments[place] if len(arguments) > place else named.get("run_options")
        if tuned is None or given is not None:
            return original(self, *arguments, **named)
        return original(self, *arguments[:place], **{**named, "run_options": tuned})

    return method


use_tuned_run_options(TunedSession, onnxruntime.InferenceSession)


def open_session(
    model: Path, session: SessionConfig, *, cache: Path | None = None, trace: Path | None = None
) -> onnxruntime.InferenceSession:
    """Returns a session on the file `model`, opened as `session` says and checked for it.

    Args:
        cache: An existing folder in which providers keep what they compile; None keeps nothing.
        trace: Start of the name of the file to which ONNX Runtime's profiler writes; None leaves
            the profiler off.

    Raises:
        ConfigError: a provider cannot be used here, or ONNX Runtime would not use it.
        Exception: whatever ONNX Runtime raises for a model that it cannot open.
    """
    settings, named = opening_arguments(session, cache=cache)
    if trace is not None:
        settings.enable_profiling = True
        settings.profile_file_prefix = str(trace)
    has_run_options = bool(session.run_entries) or captures_graphs(session)
    kind = TunedSession if has_run_options else onnxruntime.InferenceSession
    # enable_fallback=0: on an error the wrapper would retry with the CPU provider alone and drop
    # provider options in silence.
    opened = kind(str(model), settings, enable_fallback=0, **named)
    dropped = [name for name, _ in session.providers if name not in opened.get_providers()]
    if dropped:
        raise ConfigError(f"ONNX Runtime did not use {', '.join(dropped)}")
    if has_run_options:
        set_run_options(opened, session)
    return opened


def set_run_options(opened: Any, session: SessionConfig) -> None:
    """Gives an open session the run options of `session`; see :class:`TunedSession`."""
    opened.__dict__["tuned_run_options"] = make_run_options(session)
    if captures_graphs(session):
        opened.__dict__["array_run_options"] = make_run_options(session, graph="-1")


def captures_graphs(session: SessionConfig) -> bool:
    """Returns whether a provider records its kernels once and replays them on the same buffers."""
    return any(
        name in WORDS and given.get(provider_named(name).graph_capture) == "1"
        for name, given in session.providers
    )


def opening_arguments(
    session: SessionConfig, *, cache: Path | None = None
) -> tuple[Any, dict[str, Any]]:
    """Returns the session options and the named arguments that open a session as it says.

    Raises:
        ConfigError: a provider cannot be used here.
    """
    settings = make_session_options(session)
    if session.accelerator is not None:
        settings.add_session_config_entry(RECORD_ENTRY, "1")
    return settings, _providers(settings, session, cache)


def make_session_options(session: SessionConfig) -> Any:
    """Returns a ``SessionOptions`` with all of `session` but its providers and run entries.

    A config with ``env_allocator`` also registers the process-wide CPU allocator.

    Raises:
        ConfigError: this process already has another allocator.
    """
    settings = onnxruntime.SessionOptions()
    accelerator = session.accelerator
    required: Mapping[str, Value] = {}
    if accelerator is not None and accelerator in WORDS:
        required = provider_named(accelerator).session
    for name, value in {**session.options, **required}.items():
        setattr(settings, name, _attribute(name, value))
    for name, text in session.entries.items():
        settings.add_session_config_entry(name, text)
    for name, size in session.free_dimensions.items():
        settings.add_free_dimension_override_by_name(name, size)
    if session.disabled_optimizers:
        # with commas, which the header of ONNX Runtime names, they would be one unknown name
        names = ";".join(session.disabled_optimizers)
        settings.add_session_config_entry("optimization.disable_specified_optimizers", names)
    if session.env_allocator:
        register_allocator(session.env_allocator)
    return settings


def make_run_options(session: SessionConfig, graph: str = "") -> Any:
    """Returns a ``RunOptions`` with the run entries of `session`.

    Args:
        graph: The number of the captured graph; empty leaves it to ONNX Runtime.
    """
    chosen = onnxruntime.RunOptions()
    for name, text in session.run_entries.items():
        chosen.add_run_config_entry(name, text)
    if graph:
        chosen.add_run_config_entry(GRAPH_ID, graph)
    return chosen


def _providers(settings: Any, session: SessionConfig, cache: Path | None) -> dict[str, Any]:
    """Returns the arguments that name the providers; gives `settings` the devices of plugins.

    ONNX Runtime takes either devices or names, so a plugin is followed by the CPU provider alone.
    """
    plugins = False
    names, chosen = [], []
    for name, given in session.providers:
        if name not in WORDS:  # the application may name one that autotune does not search
            names.append(name)
            chosen.append(dict(given))
            continue
        provider = provider_named(name)
        if provider.libraries:
            # seldom needed: no other application pays for the import
            from autotune.deploy.cuda import preload

            preload(provider)
        # an empty text stands for the provider's own choice; OpenVINO takes it for a wrong value
        own = {option: text for option, text in given.items() if text}
        own |= {} if cache is None else cache_options(provider, cache)
        if provider.plugin is not None:
            # seldom needed: no other application pays for the import
            from autotune.deploy.plugins import is_built_in, plugin_device, plugin_options

            if not is_built_in(provider):
                device = plugin_device(provider, own.pop("device_type", ""))
                settings.add_provider_for_devices([device], plugin_options(provider, own, device))
                plugins = True
                continue
        names.append(name)
        chosen.append(own)
    if not plugins:
        return {"providers": names, "provider_options": chosen}
    if names not in ([], [CPU]):
        raise ConfigError(f"{', '.join(names)} cannot be used together with a plugin")
    return {}


def cache_options(provider: Provider, folder: Path) -> dict[str, str]:
    """Returns the options with which `provider` keeps in `folder` what it compiles."""
    return {name: text.format(folder=folder) for name, text in provider.cache.items()}


def _attribute(name: str, value: object) -> object:
    """Returns `value` as the attribute `name` takes it: enums are named in a config."""
    if name == "execution_mode":
        return getattr(onnxruntime.ExecutionMode, str(value))
    if name == "graph_optimization_level":
        return getattr(onnxruntime.GraphOptimizationLevel, str(value))
    return value


_registered: dict[str, int] = {}
_registering = threading.Lock()


def register_allocator(chosen: Mapping[str, int]) -> None:
    """Registers the CPU arena that sessions with ``session.use_env_allocators`` share.

    It is one for the whole process: ONNX Runtime keeps the first, so a second, different request
    is refused rather than ignored.

    Raises:
        ConfigError: this process already has another allocator.
    """
    with _registering:
        if _registered:
            if _registered != dict(chosen):
                raise ConfigError(
                    f"this process already has a CPU allocator with {_registered}; "
                    f"a config that asks for {dict(chosen)} needs a process of its own"
                )
            return
        memory = onnxruntime.OrtMemoryInfo(
            "Cpu",
            onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
            0,
            onnxruntime.OrtMemType.DEFAULT,
        )
        arena = {"max_mem": 0, "initial_chunk_size_bytes": -1, "max_dead_bytes_per_chunk": -1}
        settings = onnxruntime.OrtArenaCfg({**arena, **chosen})
        onnxruntime.create_and_register_allocator(memory, settings)
        _registered.update(chosen)
