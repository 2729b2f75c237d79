"""Loads tuned configs: checks the model and the machine, then opens the session.

Needs the standard library and onnxruntime, and nothing else of autotune's dependencies.
"""

import os
import warnings
from pathlib import Path

from autotune.deploy import cpu
from autotune.deploy.config import TunedConfig
from autotune.deploy.files import is_file
from autotune.deploy.opening import open_session
from autotune.deploy.placement import placement_of
from autotune.deploy.plugins import has_plugin, plugin_devices
from autotune.deploy.providers import WORDS, provider_named
from autotune.deploy.runtime import onnxruntime
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError

# A newer ONNX Runtime may merge some nodes before it asks the provider.
_SAME_SHARE = 0.05


class ConfigWarning(UserWarning):
    """A config was tuned elsewhere, so its numbers may not hold, or this machine cannot use it."""


def load(path: str | os.PathLike[str], *, strict: bool = False) -> onnxruntime.InferenceSession:
    """Returns the session that the tuned config `path` describes.

    The model file lies beside the config. On a machine other than the one that tuned it, a warning
    names both; where an execution provider or a CPU feature that the config requires is missing,
    the model is opened with default options and a warning says so. A provider that comes as a
    plugin is registered with the process. A provider that compiles models keeps the result in a
    folder beside the config, as the config says; the first session on a machine takes longer.

    A config with ``session.set_denormal_as_zero`` changes the floating-point mode of the thread
    that loads it, for as long as that thread lives; one with ``env_allocator`` registers the
    process-wide CPU allocator. Both are effects of ONNX Runtime itself.

    Args:
        path: A tuned config such as ``model.autotune/best.json``.
        strict: Raise instead of warning, and check the SHA-256 of each model file, which reads all
            of it.

    Raises:
        ConfigError: the config breaks its schema, its model is missing, is another file or cannot
            be opened; with `strict`, also where this machine lacks what the config requires or is
            another one.
    """
    path = Path(path)
    config = TunedConfig.read(path)
    check_files(path, config, read_all=strict)
    model = path.parent / config.model.file

    if lacking := missing_requirements(config):
        message = f"{path}: this machine lacks {', '.join(lacking)}"
        if strict:
            raise ConfigError(message)
        warnings.warn(
            f"{message}; the model is opened with ONNX Runtime's default options",
            ConfigWarning,
            stacklevel=2,
        )
        return _open(path, model, SessionConfig())[0]

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
    session, message = _open(path, model, config.session)
    message = message or _placement_difference(session, config)
    if message and strict:
        raise ConfigError(f"{path}: {message}")
    if message:
        warnings.warn(f"{path}: {message}", ConfigWarning, stacklevel=2)
    return session


def _open(
    path: Path, model: Path, session: SessionConfig
) -> tuple[onnxruntime.InferenceSession, str]:
    """Returns the session of the config `path`, and a remark on the provider's cache.

    Every fault of ONNX Runtime is the config's.
    """
    cache, remark = None, ""
    if session.provider_cache:
        cache = path.absolute().parent / session.provider_cache
        try:
            cache.mkdir(exist_ok=True)
        except OSError as error:
            remark = (
                f"the folder {cache} cannot be made ({error.strerror}), so "
                f"{session.accelerator} compiles the model anew for each session"
            )
            cache = None
    try:
        return open_session(model, session, cache=cache), remark
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except MemoryError:
        raise
    except Exception as error:  # ONNX Runtime's own classes have no common one
        raise ConfigError(
            f"{path}: ONNX Runtime cannot open {model} as the config says ({error}); "
            "run `autotune study` again here"
        ) from error


def _placement_difference(session: onnxruntime.InferenceSession, config: TunedConfig) -> str:
    """Returns how the provider runs less of the model than when it was tuned; empty if it does."""
    name = config.session.accelerator
    tuned = config.evidence.provider
    if name is None or tuned is None:
        return ""
    tuned_share = tuned.placement.get(name, 0.0)
    share = placement_of(session).share(name)
    if share >= tuned_share - _SAME_SHARE:
        return ""
    return (
        f"{name} ran {tuned_share:.0%} of the nodes when the config was tuned, and runs "
        f"{share:.0%} here; run `autotune study` again here"
    )


def missing_requirements(config: TunedConfig) -> list[str]:
    """Returns the requirements of the config that this machine lacks, in words; empty if none."""
    lacking = [f"the {name}" for name in config.requires.providers if not _can_use(name)]
    features = cpu.cpu_features()
    if features:  # empty means unknown
        wanted = config.requires.cpu_features
        lacking += [f"the CPU feature {name}" for name in wanted if name not in features]
    return lacking


def _can_use(name: str) -> bool:
    """Returns whether the execution provider is in this ONNX Runtime, or its plugin has a device.

    A config may require a provider that this version of autotune does not know.
    """
    if name in onnxruntime.get_available_providers():
        return True
    if name not in WORDS or not has_plugin(provider_named(name)):
        return False
    try:
        return bool(plugin_devices(provider_named(name)))
    except ConfigError:
        return False


def environment_differences(config: TunedConfig) -> list[str]:
    """Returns how this machine differs from the one that tuned the config, in words."""
    there = config.environment
    pairs = [
        ("CPU", there.cpu, cpu.cpu_model()),
        ("usable cores", str(there.cores), str(cpu.usable_cores())),
        ("ONNX Runtime", there.onnxruntime, onnxruntime.__version__),
    ]
    return [f"{what} {then} there, {now} here" for what, then, now in pairs if then != now]


def check_files(path: Path, config: TunedConfig, *, read_all: bool) -> None:
    """Refuses model files that are missing or are not the ones that were tuned.

    Args:
        path: The config's file; the model files are beside it.
        config: The config.
        read_all: Compare digests too; otherwise sizes alone, because hashing a large model costs
            more than opening it.

    Raises:
        ConfigError: a file is missing, or is another one.
    """
    for name in config.model.names:
        if not is_file(path.parent / name):
            raise ConfigError(
                f"{path.parent / name} of the config is missing; keep it beside the config"
            )
    try:
        differing = config.model.differing(path.parent, read_all=read_all)
    except OSError as error:
        raise ConfigError(f"cannot read the model of {path}: {error.strerror}") from None
    if differing:
        raise ConfigError(
            f"{differing} is not the file that was tuned (its size or SHA-256 differs); "
            "copy config and model together"
        )
