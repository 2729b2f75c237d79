"""Opens sessions. Applications and measurements open a session through this one function.

Needs the standard library and onnxruntime, and nothing else of autotune's dependencies.
"""

import functools
import os
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


class AsyncSession(onnxruntime.InferenceSession):  # type: ignore[misc]  # onnxruntime has no types
    """An ``InferenceSession`` that runs in the background with one thread too.

    ONNX Runtime gives such a run to a second thread of its pool, which this session does not have.
    """


def use_background_runs(kind: Any, base: Any) -> None:
    """Lets sessions of class `kind` run in the background as :func:`run_in_background` says.

    Args:
        base: The class whose method runs the others.
    """
    if hasattr(base, "run_async"):
        kind.run_async = _in_background(base.run_async)


def run_in_background(opened: Any) -> None:
    """Lets an opened session of one thread run in the background, in a thread of Python's."""
    opened.__dict__["has_one_thread"] = True


def _in_background(original: Any) -> Any:
    @functools.wraps(original)
    def run_async(self: Any, *arguments: Any, **named: Any) -> None:
        run = _run_async_of_one_thread if "has_one_thread" in self.__dict__ else original
        run(self, *arguments, **named)

    return run_async


def _run_async_of_one_thread(
    session: Any,
    output_names: Any,
    input_feed: Any,
    callback: Any,
    user_data: Any,
    run_options: Any = None,
) -> None:
    session._validate_input(list(input_feed))  # noqa: SLF001  # as ONNX Runtime does in the caller

    def run() -> None:
        try:
            outputs, fault = session.run(output_names, input_feed, run_options), ""
        except Exception as error:  # noqa: BLE001  # the callback gets its text
            outputs, fault = [], str(error)
        callback(outputs, user_data, fault)

    threading.Thread(target=run, daemon=True).start()


class TunedSession(AsyncSession):
    """An ``InferenceSession`` whose runs suit its config.

    A run option such as arena shrinkage belongs to a run, not to a session; without this class an
    application would have to pass it to each call. In parallel execution a run in a forked process
    would wait for ever for threads that are not there, so it raises :class:`ConfigError`. A
    captured graph reads and writes the buffers that were bound when it was captured, whatever a
    later run is given, so runs that bind no buffers leave it out.
    """


def class_for(session: SessionConfig) -> Any:
    """Returns the class of a session: ONNX Runtime's own, where its methods suffice."""
    if session.has_tuned_runs:
        return TunedSession
    return AsyncSession if _has_one_thread(session) else onnxruntime.InferenceSession


def adopt(opened: Any, session: SessionConfig) -> None:
    """Gives an opened session what the methods of :class:`TunedSession` look at."""
    if session.run_entries:
        opened.__dict__["tuned_run_options"] = make_run_options(session)
    if session.captures_graphs:
        opened.__dict__["array_run_options"] = make_run_options(session, graph="-1")
    if session.is_parallel:
        opened.__dict__["process_of_threads"] = os.getpid()


def _has_one_thread(session: SessionConfig) -> bool:
    return session.options.get("intra_op_num_threads") == 1


def use_tuned_runs(kind: Any, base: Any) -> None:
    """Lets the runs of sessions of class `kind` look at what :func:`adopt` gave them.

    Args:
        base: The class whose methods run them.
    """
    for name, place in _RUN_METHODS.items():
        if hasattr(base, name):
            setattr(kind, name, _tuned(getattr(base, name), place, name == _BOUND))


def _tuned(original: Any, place: int, is_bound: bool) -> Any:
    """Returns a method whose argument `place`, the run options, has the tuned ones as default."""

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        own = self.__dict__
        if own.get("process_of_threads", os.getpid()) != os.getpid():
            raise ConfigError(
                "this session runs operators in parallel (ORT_PARALLEL), and its threads are not "
                "in a process that was forked afterwards; load the config in each process after "
                "the fork"
            )
        tuned = own.get("tuned_run_options")
        if not is_bound:
            tuned = own.get("array_run_options", tuned)
        given = arguments[place] if len(arguments) > place else named.get("run_options")
        if tuned is None or given is not None:
            return original(self, *arguments, **named)
        return original(self, *arguments[:place], **{**named, "run_options": tuned})

    return method


use_background_runs(AsyncSession, AsyncSession)
use_tuned_runs(TunedSession, TunedSession)


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
    # enable_fallback=0: on an error the wrapper would retry with the CPU provider alone and drop
    # provider options in silence.
    opened = class_for(session)(str(model), settings, enable_fallback=0, **named)
    dropped = [name for name, _ in session.providers if name not in opened.get_providers()]
    if dropped:
        raise ConfigError(f"ONNX Runtime did not use {', '.join(dropped)}")
    adopt(opened, session)
    if _has_one_thread(session):
        run_in_background(opened)
    return opened


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
        ConfigError: this process already has another allocator, or this ONNX Runtime lacks an
            option or a value.
    """
    settings = onnxruntime.SessionOptions()
    accelerator = session.accelerator
    required: Mapping[str, Value] = {}
    if accelerator is not None and accelerator in WORDS:
        required = provider_named(accelerator).session
    for name, value in {**session.options, **required}.items():
        try:
            setattr(settings, name, _attribute(name, value))
        except AttributeError:
            raise ConfigError(
                f"ONNX Runtime {onnxruntime.__version__} has no {name} {value}; "
                "upgrade it, or run `autotune study` here"
            ) from None
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


def has_registered() -> bool:
    """Returns whether a config has registered the allocator of this process."""
    return bool(_registered)


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
