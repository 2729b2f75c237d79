"""Loads tuned configs: checks the model and the machine, then opens the session.

Needs the standard library and onnxruntime, and nothing else of autotune's dependencies.
"""

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from autotune.deploy.files import folder_of, is_file
from autotune.deploy.fitting import Provider, fit, missing_parts
from autotune.deploy.loaded import LoadedConfig
from autotune.deploy.opening import (
    has_registered,
    make_run_options,
    make_session_options,
    open_session,
)
from autotune.deploy.placement import placement_of
from autotune.deploy.runtime import WAS_IMPORTED, onnxruntime
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError

# A newer ONNX Runtime may merge some nodes before it asks the provider.
_SAME_SHARE = 0.05

_Used = TypeVar("_Used")


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

    The model file lies beside the config, or beside the file that a link to a config names. On a
    machine other than the one that tuned it, a warning names both; with fewer cores, the session
    has at most one thread for each core. Where an execution provider or the ONNX Runtime that the
    config requires is missing, the model is opened with default options and a warning says so.
    Where the model's file would answer wrongly on this processor, it is never opened. A provider
    that comes as a plugin is registered with the process. A provider that compiles models keeps the
    result in a folder beside the config, as the config says; the first session on a machine takes
    longer. Several threads may load configs at once, also while another one is written.

    A config with ``session.set_denormal_as_zero`` changes the floating-point mode of the thread
    that loads it, for as long as that thread lives; one with ``env_allocator`` registers the
    process-wide CPU allocator. Both are effects of ONNX Runtime itself.

    Args:
        path: A tuned config such as ``model.autotune/best.json``.
        strict: Raise instead of warning, and read all: the evidence in the config, and the files of
            the model, whose SHA-256 is checked.
        providers: Execution providers to use instead of the config's, in order of preference.
        threads: Threads of an operator (``intra_op_num_threads``) instead of the config's number;
            0 leaves the choice to ONNX Runtime.

    Raises:
        ConfigError: the config breaks its schema, its model is missing, is another file, cannot be
            opened or would answer wrongly on this processor, or an override is wrong; with
            `strict`, also where this machine lacks what the config requires or is another one.
    """
    path = Path(path)

    def opened(config: LoadedConfig, folder: Path) -> onnxruntime.InferenceSession:
        session = _session(path, config, strict=strict, providers=providers, threads=threads)
        _check_allocator(path, session)
        opened, remark = _open(path, folder, config.model.file, session)
        if session.accelerator and session.providers == config.session.providers:
            remark = remark or _placement_difference(opened, path)
        if remark and strict:
            raise ConfigError(f"{path}: {remark}")
        if remark:
            _warn(f"{path}: {remark}")
        return opened

    return _read(path, opened, read_all=strict)


def _read(
    path: Path, use: Callable[[LoadedConfig, Path], _Used], *, read_all: bool = False
) -> _Used:
    """Returns what `use` makes of the config in the file `path` and the folder of its model.

    Another process may write another config in the middle of it, whose model takes the place of
    this one's. Then the config is read again.
    """
    config = _config(path, read_all=read_all)
    while True:
        try:
            return use(config, check_files(path, config, read_all=read_all))
        except ConfigError:
            now = _config(path, read_all=read_all)
            if now == config:
                raise
            config = now


def _config(path: Path, *, read_all: bool) -> LoadedConfig:
    """Returns the config in the file `path`; looks at what is not needed here only if asked to."""
    if not read_all:
        return LoadedConfig.read(path)
    from autotune.deploy.config import TunedConfig  # its records take long to import

    return TunedConfig.read(path)


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
    config = LoadedConfig.read(path)
    session = _session(path, config, strict=strict, providers=None, threads=threads)
    _check_allocator(path, session)
    with _naming(path):
        return make_session_options(session)


def run_options(path: str | os.PathLike[str]) -> Any:
    """Returns the ``onnxruntime.RunOptions`` of the tuned config `path`, for each run.

    The session that :func:`load` returns uses them by itself.

    Raises:
        ConfigError: the config breaks its schema.
    """
    return make_run_options(LoadedConfig.read(Path(path)).session)


def _session(
    path: Path,
    config: LoadedConfig,
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
    if here.lacking:
        problem = f"{path}: this machine lacks {', '.join(here.lacking)}"
        consequence = ", so the model is opened with ONNX Runtime's default options"
    elif here.differences:
        problem = f"{path} was tuned elsewhere ({'; '.join(here.differences)})"
        consequence = ", so neither its speed nor its answers were measured here"
    else:
        problem = f"{path} is opened in another way than it was measured" if here.adapted else ""
        consequence = ""
    if problem and strict:
        raise ConfigError(problem)
    if problem:
        adapted = f"; {here.adapted}" if here.adapted else ""
        remedy = "run `autotune study` here for numbers of this machine"
        _warn(f"{problem}{consequence}{adapted}; {remedy}.")
    return here.session


def _check_allocator(path: Path, session: SessionConfig) -> None:
    """Warns where the application may have registered an allocator of its own."""
    if session.env_allocator and WAS_IMPORTED and not has_registered():
        _warn(
            f"{path} sets the CPU allocator of this process, and ONNX Runtime keeps the first that "
            "is registered: use autotune.load before onnxruntime is imported, or register no "
            "allocator in the application."
        )


def _warn(sentence: str) -> None:
    """Warns at the line of the application that called this module."""
    level, frame = 1, sys._getframe()  # noqa: SLF001  # inspect takes long to import
    here = frame.f_code.co_filename  # the name that an exported loader goes by
    while frame.f_back is not None and frame.f_code.co_filename == here:
        level, frame = level + 1, frame.f_back
    warnings.warn(sentence, ConfigWarning, stacklevel=level)


def _open(
    path: Path, folder: Path, model: str, session: SessionConfig
) -> tuple[onnxruntime.InferenceSession, str]:
    """Returns the session of the config `path`, and a remark on the provider's cache.

    Every fault of ONNX Runtime is the config's.
    """
    cache, remark = _cache_folder(folder, session)
    with _naming(path):
        try:
            return open_session(folder / model, session, cache=cache), remark
        except (ConfigError, MemoryError):
            raise
        except Exception as error:  # ONNX Runtime's own classes have no common one
            raise ConfigError(
                f"ONNX Runtime cannot open {folder / model} as the config says ({error}); "
                "run `autotune study` again here"
            ) from error


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Names the config `path` in a fault inside the block."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error.__cause__


def _cache_folder(folder: Path, session: SessionConfig) -> tuple[Path | None, str]:
    """Returns the folder in `folder`, the config's, where a provider keeps what it compiles.

    None where it keeps nothing; where the folder cannot be made, there is a remark as well.
    """
    if not session.provider_cache:
        return None, ""
    cache = folder.absolute() / session.provider_cache
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

    def prepared(config: LoadedConfig, folder: Path) -> tuple[Path, SessionConfig, Path | None]:
        if lacking := missing_parts(config):
            raise ConfigError(f"{path}: this machine lacks {', '.join(lacking)}")
        session = _session(path, config, strict=False, providers=None, threads=None)
        cache, _ = _cache_folder(folder, session)
        return folder / config.model.file, session, cache

    return _read(path, prepared)


def _placement_difference(session: onnxruntime.InferenceSession, path: Path) -> str:
    """Returns how the provider runs less of the model than when it was tuned; empty if it does."""
    from autotune.deploy.config import TunedConfig  # its records take long to import

    config = TunedConfig.read(path)
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


def check_files(path: Path, config: LoadedConfig, *, read_all: bool) -> Path:
    """Returns the folder of the model files; refuses those that were not tuned.

    Args:
        read_all: Compare digests too; otherwise sizes alone, because hashing a large model costs
            more than opening it.

    Raises:
        ConfigError: a file is missing, or is another one.
    """
    folder = folder_of(path, config.model.names)
    for name in config.model.names:
        if not is_file(folder / name):
            raise ConfigError(
                f"{folder / name} of the config is missing; keep it beside the config"
            )
    try:
        differing = config.model.differing(folder, read_all=read_all)
    except OSError as error:
        raise ConfigError(f"cannot read the model of {path}: {error.strerror}") from None
    if differing:
        raise ConfigError(
            f"{differing} is not the file that was tuned (its size or SHA-256 differs); "
            "copy config and model together"
        )
    return folder
