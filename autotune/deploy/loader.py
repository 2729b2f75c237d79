"""Loads tuned configs: checks the model and the machine, then opens the session.

Needs the standard library and onnxruntime, and nothing else of autotune's dependencies.
"""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.deploy.config import TunedConfig
from autotune.deploy.files import is_file
from autotune.deploy.fitting import Provider, fit, missing_parts
from autotune.deploy.opening import make_run_options, make_session_options, open_session
from autotune.deploy.placement import placement_of
from autotune.deploy.runtime import onnxruntime
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError

# A newer ONNX Runtime may merge some nodes before it asks the provider.
_SAME_SHARE = 0.05


class ConfigWarning(UserWarning):
    """A config was tuned elsewhere, so its numbers may not hold, or this machine cannot use it."""


def load(
    path: str | os.PathLike[str],
    *,
    strict: bool = False,
    providers: Sequence[Provider] | None = None,
    threads: int | None = None,
) -> onnxruntime.InferenceSession:
    """Returns the session that the tuned config `path` describes.

    The model file lies beside the config. On a machine other than the one that tuned it, a warning
    names both; with fewer cores, the session has at most one thread for each core. Where an
    execution provider that the config requires is missing, the model is opened with default options
    and a warning says so. Where the model's file would answer wrongly on this processor, it is
    never opened. A provider that comes as a plugin is registered with the process. A provider that
    compiles models keeps the result in a folder beside the config, as the config says; the first
    session on a machine takes longer. Several threads may load configs at once.

    A config with ``session.set_denormal_as_zero`` changes the floating-point mode of the thread
    that loads it, for as long as that thread lives; one with ``env_allocator`` registers the
    process-wide CPU allocator. Both are effects of ONNX Runtime itself.

    Args:
        path: A tuned config such as ``model.autotune/best.json``.
        strict: Raise instead of warning, and check the SHA-256 of each model file, which reads all
            of it.
        providers: Execution providers to use instead of the config's, in order of preference.
        threads: Threads of an operator (``intra_op_num_threads``) instead of the config's number;
            0 leaves the choice to ONNX Runtime.

    Raises:
        ConfigError: the config breaks its schema, its model is missing, is another file, cannot be
            opened or would answer wrongly on this processor, or an override is wrong; with
            `strict`, also where this machine lacks what the config requires or is another one.
    """
    path = Path(path)
    config = TunedConfig.read(path)
    check_files(path, config, read_all=strict)
    session = _session(path, config, strict=strict, providers=providers, threads=threads)
    opened, remark = _open(path, path.parent / config.model.file, session)
    if session.providers == config.session.providers:
        remark = remark or _placement_difference(opened, config)
    if remark and strict:
        raise ConfigError(f"{path}: {remark}")
    if remark:
        warnings.warn(f"{path}: {remark}", ConfigWarning, stacklevel=2)
    return opened


def session_options(
    path: str | os.PathLike[str], *, strict: bool = False, threads: int | None = None
) -> Any:
    """Returns the ``onnxruntime.SessionOptions`` of the tuned config `path`.

    For an application that creates the session itself, with the model file beside the config. The
    warnings and effects are those of :func:`load`; the model file is not looked at, and the
    config's execution providers are not part of session options.

    Args:
        threads: As in :func:`load`.

    Raises:
        ConfigError: as :func:`load`.
    """
    path = Path(path)
    config = TunedConfig.read(path)
    session = _session(path, config, strict=strict, providers=None, threads=threads)
    return make_session_options(session)


def run_options(path: str | os.PathLike[str]) -> Any:
    """Returns the ``onnxruntime.RunOptions`` of the tuned config `path`, for each run.

    The session that :func:`load` returns uses them by itself.

    Raises:
        ConfigError: the config breaks its schema.
    """
    return make_run_options(TunedConfig.read(Path(path)).session)


def _session(
    path: Path,
    config: TunedConfig,
    *,
    strict: bool,
    providers: Sequence[Provider] | None,
    threads: int | None,
) -> SessionConfig:
    """Returns how the config is opened here, after warnings where the machine is another one."""
    here = fit(config, providers=providers, threads=threads)
    if here.refusal:
        raise ConfigError(
            f"{path} would answer wrongly on this processor: {here.refusal}; "
            "run `autotune study` here"
        )
    problem, consequence = "", ""
    if here.lacking:
        problem = f"{path}: this machine lacks {', '.join(here.lacking)}"
        consequence = "; the model is opened with ONNX Runtime's default options"
    elif here.differences:
        problem = f"{path} was tuned elsewhere: {'; '.join(here.differences)}"
        consequence = ". Its answers hold; its speed may not. "
        if here.adapted:
            consequence += f"It was {here.adapted}. "
        consequence += "Run `autotune study` again here for numbers of this machine."
    if problem and strict:
        raise ConfigError(problem)
    if problem:
        warnings.warn(problem + consequence, ConfigWarning, stacklevel=3)
    return here.session


def _open(
    path: Path, model: Path, session: SessionConfig
) -> tuple[onnxruntime.InferenceSession, str]:
    """Returns the session of the config `path`, and a remark on the provider's cache.

    Every fault of ONNX Runtime is the config's.
    """
    cache, remark = _cache_folder(path, session)
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


def _cache_folder(path: Path, session: SessionConfig) -> tuple[Path | None, str]:
    """Returns the folder beside the config `path` where a provider keeps what it compiles.

    None where it keeps nothing; where the folder cannot be made, there is a remark as well.
    """
    if not session.provider_cache:
        return None, ""
    cache = path.absolute().parent / session.provider_cache
    try:
        cache.mkdir(exist_ok=True)
    except OSError as error:
        return None, (
            f"the folder {cache} cannot be made ({error.strerror}), so "
            f"{session.accelerator} compiles the model anew for each session"
        )
    return cache, ""


def prepare(path: Path) -> tuple[Path, SessionConfig, Path | None]:
    """Returns the model of the config `path`, how it is opened here, and the provider's folder.

    For a session that the application opens itself. It warns as :func:`load` does.

    Raises:
        ConfigError: as :func:`load`, and where this machine lacks what the config requires.
    """
    config = TunedConfig.read(path)
    check_files(path, config, read_all=False)
    if lacking := missing_parts(config):
        raise ConfigError(f"{path}: this machine lacks {', '.join(lacking)}")
    session = _session(path, config, strict=False, providers=None, threads=None)
    cache, _ = _cache_folder(path, session)
    return path.parent / config.model.file, session, cache


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


def check_files(path: Path, config: TunedConfig, *, read_all: bool) -> None:
    """Refuses model files that are missing or are not the ones that were tuned.

    Args:
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
