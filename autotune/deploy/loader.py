"""Opens sessions. The one way in which a session is opened, by applications and by measurements.

Needs the standard library and onnxruntime, and nothing else of autotune's dependencies.
"""

import hashlib
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autotune.deploy import cpu
from autotune.deploy.config import SessionConfig, TunedConfig
from autotune.errors import ConfigError, MissingPackageError

try:
    import onnxruntime
except ImportError as error:
    raise MissingPackageError(
        "onnxruntime is not installed. Install one flavour with autotune: "
        'pip install "ort-autotune[cpu]" (or [gpu], [openvino], [directml]).'
    ) from error


class ConfigWarning(UserWarning):
    """A tuned config is used where its numbers may not hold, or not used at all."""


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


def load(path: str | os.PathLike[str], *, strict: bool = False) -> onnxruntime.InferenceSession:
    """Returns the session that the tuned config `path` describes.

    The model file lies beside the config. On a machine other than the one that tuned it, a warning
    names both; where an execution provider or a CPU feature that the config requires is missing,
    the model is opened with default options and a warning says so.

    A config with ``session.set_denormal_as_zero`` changes the floating-point mode of the thread
    that loads it, for as long as that thread lives; one with ``env_allocator`` registers the
    process-wide CPU allocator. Both are effects of ONNX Runtime itself.

    Args:
        path: A tuned config such as ``model.autotune/best.json``.
        strict: Raise instead of warning, and check the model's SHA-256, which reads all of it.

    Raises:
        ConfigError: the config breaks its schema, its model is missing or is another file; with
            `strict`, also where this machine lacks what the config requires or is another one.
    """
    path = Path(path)
    config = TunedConfig.read(path)
    model = path.parent / config.model.file
    _check_model(model, config, read_all=strict)

    if lacking := missing_requirements(config):
        message = f"{path}: this machine lacks {', '.join(lacking)}"
        if strict:
            raise ConfigError(message)
        warnings.warn(
            f"{message}; the model is opened with ONNX Runtime's default options",
            ConfigWarning,
            stacklevel=2,
        )
        return open_session(model, SessionConfig())

    if differences := environment_differences(config):
        message = f"{path} was tuned elsewhere: {'; '.join(differences)}"
        if strict:
            raise ConfigError(message)
        warnings.warn(
            f"{message}. Its answers hold; its speed may not. "
            f"Run `autotune study` again here for numbers of this machine.",
            ConfigWarning,
            stacklevel=2,
        )
    return open_session(model, config.session)


def open_session(model: Path, session: SessionConfig) -> onnxruntime.InferenceSession:
    """Returns a session on the file `model`, opened as `session` says and checked for it.

    Raises:
        ConfigError: ONNX Runtime would not use the execution providers that were asked for.
        Exception: whatever ONNX Runtime raises for a model that it cannot open.
    """
    settings = onnxruntime.SessionOptions()
    for name, value in session.options.items():
        setattr(settings, name, _attribute(name, value))
    for name, text in session.entries.items():
        settings.add_session_config_entry(name, text)
    for name, size in session.free_dimensions.items():
        settings.add_free_dimension_override_by_name(name, size)
    if session.env_allocator:
        _register_allocator(session.env_allocator)

    names = [name for name, _ in session.providers]
    kind = TunedSession if session.run_entries else onnxruntime.InferenceSession
    # enable_fallback=0: on an error the wrapper would retry with the CPU provider alone and drop
    # provider options and disabled optimizers in silence.
    opened = kind(
        str(model),
        settings,
        providers=names,
        provider_options=[dict(chosen) for _, chosen in session.providers],
        disabled_optimizers=list(session.disabled_optimizers) or None,
        enable_fallback=0,
    )
    if dropped := [name for name in names if name not in opened.get_providers()]:
        raise ConfigError(f"ONNX Runtime did not use {', '.join(dropped)}")
    if session.run_entries:
        opened.tuned_run_options = _run_options(session.run_entries)
    return opened


def missing_requirements(config: TunedConfig) -> list[str]:
    """Returns what the config requires and this machine lacks, in words; empty if nothing."""
    available = onnxruntime.get_available_providers()
    lacking = [f"the {name}" for name in config.requires.providers if name not in available]
    features = cpu.cpu_features()
    if features:  # empty means unknown
        wanted = config.requires.cpu_features
        lacking += [f"the CPU feature {name}" for name in wanted if name not in features]
    return lacking


def environment_differences(config: TunedConfig) -> list[str]:
    """Returns how this machine differs from the one that tuned the config, in words."""
    there = config.environment
    pairs = [
        ("CPU", there.cpu, cpu.cpu_model()),
        ("usable cores", str(there.cores), str(cpu.usable_cores())),
        ("ONNX Runtime", there.onnxruntime, onnxruntime.__version__),
    ]
    return [f"{what} {then} there, {now} here" for what, then, now in pairs if then != now]


def digest_files(paths: Iterable[Path]) -> str:
    """Returns the SHA-256 of the files' bytes, one after the other, as hexadecimal digits."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()


def _check_model(model: Path, config: TunedConfig, *, read_all: bool) -> None:
    """Refuses a model file that is missing or is not the one that was tuned.

    Without `read_all` only the size is compared: hashing a large model would cost more than
    opening it.
    """
    files = [model, *(model.parent / name for name in config.model.data_files)]
    for file in files:
        if not file.is_file():
            raise ConfigError(f"{file} of the config is missing; keep it beside the config")
    size_bytes = model.stat().st_size
    same = size_bytes == config.model.size_bytes
    if same and read_all:
        same = digest_files(files) == config.model.sha256
    if not same:
        raise ConfigError(
            f"{model} is not the file that was tuned (its size or SHA-256 differs); "
            "copy config and model together"
        )


def _attribute(name: str, value: object) -> object:
    """Returns `value` as the attribute `name` takes it: enums are named in a config."""
    if name == "execution_mode":
        return getattr(onnxruntime.ExecutionMode, str(value))
    if name == "graph_optimization_level":
        return getattr(onnxruntime.GraphOptimizationLevel, str(value))
    return value


def _run_options(entries: Mapping[str, str]) -> Any:
    chosen = onnxruntime.RunOptions()
    for name, text in entries.items():
        chosen.add_run_config_entry(name, text)
    return chosen


_registered_allocator: dict[str, int] = {}


def _register_allocator(chosen: Mapping[str, int]) -> None:
    """Registers the CPU arena that sessions with ``session.use_env_allocators`` share.

    It is one for the whole process: ONNX Runtime keeps the first, so a second, different request
    is refused rather than ignored.
    """
    if _registered_allocator:
        if _registered_allocator != dict(chosen):
            raise ConfigError(
                f"this process already has a CPU allocator with {_registered_allocator}; "
                f"a config that asks for {dict(chosen)} needs a process of its own"
            )
        return
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    arena = {"max_mem": 0, "initial_chunk_size_bytes": -1, "max_dead_bytes_per_chunk": -1}
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg({**arena, **chosen}))
    _registered_allocator.update(chosen)
