"""Opens sessions. Applications and measurements open a session through this one function.

Needs the standard library and onnxruntime, and nothing else of autotune's dependencies.
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.deploy.runtime import onnxruntime
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError


class TunedSession(onnxruntime.InferenceSession):  # type: ignore[misc]  # onnxruntime has no types
    """An ``InferenceSession`` whose runs use the tuned run options unless the caller passes some.

    A run option such as arena shrinkage belongs to a run, not to a session; without this class an
    application would have to pass it to each call.
    """

    tuned_run_options: Any = None

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        """See ``InferenceSession.run``."""
        return super().run(output_names, input_feed, run_options or self.tuned_run_options)

    def run_async(
        self,
        output_names: Any,
        input_feed: Any,
        callback: Any,
        user_data: Any,
        run_options: Any = None,
    ) -> Any:
        """See ``InferenceSession.run_async``."""
        chosen = run_options or self.tuned_run_options
        return super().run_async(output_names, input_feed, callback, user_data, chosen)

    def run_with_ort_values(
        self, output_names: Any, input_dict_ort_values: Any, run_options: Any = None
    ) -> Any:
        """See ``InferenceSession.run_with_ort_values``."""
        chosen = run_options or self.tuned_run_options
        return super().run_with_ort_values(output_names, input_dict_ort_values, chosen)

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> Any:
        """See ``InferenceSession.run_with_iobinding``."""
        return super().run_with_iobinding(iobinding, run_options or self.tuned_run_options)


def open_session(model: Path, session: SessionConfig) -> onnxruntime.InferenceSession:
    """Returns a session on the file `model`, opened as `session` says and checked for it.

    Raises:
        ConfigError: ONNX Runtime would not use the execution providers that were asked for.
        Exception: whatever ONNX Runtime raises for a model that it cannot open.
    """
    settings = make_session_options(session)
    names = [name for name, _ in session.providers]
    kind = TunedSession if session.run_entries else onnxruntime.InferenceSession
    # enable_fallback=0: on an error the wrapper would retry with the CPU provider alone and drop
    # provider options in silence.
    opened = kind(
        str(model),
        settings,
        providers=names,
        provider_options=[dict(chosen) for _, chosen in session.providers],
        enable_fallback=0,
    )
    if dropped := [name for name in names if name not in opened.get_providers()]:
        raise ConfigError(f"ONNX Runtime did not use {', '.join(dropped)}")
    if session.run_entries:
        opened.tuned_run_options = make_run_options(session)
    return opened


def make_session_options(session: SessionConfig) -> Any:
    """Returns a ``SessionOptions`` with all of `session` but its providers and run entries.

    A config with ``env_allocator`` also registers the process-wide CPU allocator.

    Raises:
        ConfigError: this process already has another allocator.
    """
    settings = onnxruntime.SessionOptions()
    for name, value in session.options.items():
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
        _register_allocator(session.env_allocator)
    return settings


def make_run_options(session: SessionConfig) -> Any:
    """Returns a ``RunOptions`` with the run entries of `session`."""
    chosen = onnxruntime.RunOptions()
    for name, text in session.run_entries.items():
        chosen.add_run_config_entry(name, text)
    return chosen


def _attribute(name: str, value: object) -> object:
    """Returns `value` as the attribute `name` takes it: enums are named in a config."""
    if name == "execution_mode":
        return getattr(onnxruntime.ExecutionMode, str(value))
    if name == "graph_optimization_level":
        return getattr(onnxruntime.GraphOptimizationLevel, str(value))
    return value


_registered_allocator: dict[str, int] = {}
_registering = threading.Lock()


def _register_allocator(chosen: Mapping[str, int]) -> None:
    """Registers the CPU arena that sessions with ``session.use_env_allocators`` share.

    It is one for the whole process: ONNX Runtime keeps the first, so a second, different request
    is refused rather than ignored.
    """
    with _registering:
        if _registered_allocator:
            if _registered_allocator != dict(chosen):
                raise ConfigError(
                    f"this process already has a CPU allocator with {_registered_allocator}; "
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
        _registered_allocator.update(chosen)
