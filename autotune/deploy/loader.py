"""Loads tuned configs: checks the model and the machine, then opens the session.

Needs the standard library and onnxruntime, and nothing else of autotune's dependencies.
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.deploy import cpu
from autotune.deploy.config import TunedConfig
from autotune.deploy.files import is_file
from autotune.deploy.opening import make_run_options, make_session_options, open_session
from autotune.deploy.options import ATTRIBUTES, Value
from autotune.deploy.runtime import onnxruntime
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError

Provider = str | tuple[str, Mapping[str, str]]
"""An execution provider as the application names it: its name alone, or with its options."""

_INTRA = "intra_op_num_threads"
_INTER = "inter_op_num_threads"


class ConfigWarning(UserWarning):
    """A config was tuned elsewhere, so its numbers may not hold, or this machine cannot use it."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a config is opened on this machine.

    Attributes:
        session: How it is opened.
        lacking: The requirements that this machine lacks, in words; the session is then ONNX
            Runtime's default.
        differences: How this machine differs from the one that tuned the config, in words.
        adapted: What was changed for this machine, in words; empty if nothing.
    """

    session: SessionConfig
    lacking: tuple[str, ...]
    differences: tuple[str, ...]
    adapted: str


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
    execution provider or a CPU feature that the config requires is missing, the model is opened
    with default options and a warning says so. Several threads may load configs at once.

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
        ConfigError: the config breaks its schema, its model is missing, is another file or cannot
            be opened, or an override is wrong; with `strict`, also where this machine lacks what
            the config requires or is another one.
    """
    path = Path(path)
    config = TunedConfig.read(path)
    check_files(path, config, read_all=strict)
    session = _session(path, config, strict=strict, providers=providers, threads=threads)
    return _open(path, path.parent / config.model.file, session)


def session_options(
    path: str | os.PathLike[str], *, strict: bool = False, threads: int | None = None
) -> Any:
    """Returns the ``onnxruntime.SessionOptions`` of the tuned config `path`.

    For an application that creates the session itself, with the model file beside the config. The
    warnings and effects are those of :func:`load`; the model file is not looked at, and the
    config's execution providers are not part of session options.

    Args:
        path: A tuned config.
        strict: Raise instead of warning.
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


def fit(
    config: TunedConfig,
    *,
    providers: Sequence[Provider] | None = None,
    threads: int | None = None,
) -> Fit:
    """Returns how :func:`load` opens the config on this machine.

    ONNX Runtime's own number of threads ignores the CPU quota of a container
    (microsoft/onnxruntime#29510). So where this machine has fewer cores than the one that tuned
    the config, the number is set, and is at most that of the cores here.

    Raises:
        ConfigError: an override is wrong.
    """
    session = config.session
    if providers is not None:
        session = replace(session, providers=_overriding(providers))
    if threads is not None and (problem := ATTRIBUTES[_INTRA].problem(threads)):
        raise ConfigError(f"threads {problem}")
    chosen: dict[str, Value] = {} if threads is None else {_INTRA: threads}
    differences = tuple(environment_differences(config, cores=threads is None))
    if lacking := missing_requirements(config, providers=providers is None):
        return Fit(
            session=SessionConfig(options=chosen),
            lacking=tuple(lacking),
            differences=differences,
            adapted="",
        )
    adapted = ""
    if threads is None:
        chosen, adapted = _threads_here(session.options, config.environment.cores)
    return Fit(
        session=replace(session, options={**session.options, **chosen}),
        lacking=(),
        differences=differences,
        adapted=adapted,
    )


def _threads_here(given: Mapping[str, Value], cores_there: int) -> tuple[dict[str, Value], str]:
    """Returns the numbers of threads to change on fewer cores, and the change in words."""
    cores = cpu.usable_cores()
    threads = int(given.get(_INTRA, 0))
    if cores >= cores_there:
        return {}, ""
    chosen: dict[str, Value] = {}
    if threads == 0 or threads > cores:
        chosen[_INTRA] = cores
    if int(given.get(_INTER, 0)) > cores:
        chosen[_INTER] = cores
    if not chosen:
        return {}, ""
    return chosen, f"tuned for {cores_there} cores, {cores} here: at most {cores} threads are used"


def _overriding(providers: Sequence[Provider]) -> tuple[tuple[str, Mapping[str, str]], ...]:
    """Returns the application's own providers; they are its request, and no data of a config.

    Raises:
        ConfigError: there is none, or ONNX Runtime does not have one here.
    """
    if isinstance(providers, str) or not providers:
        raise ConfigError("providers must be a list of at least one execution provider")
    pairs = tuple((item, {}) if isinstance(item, str) else item for item in providers)
    available = onnxruntime.get_available_providers()
    for name, _ in pairs:
        if name not in available:
            raise ConfigError(f"ONNX Runtime has no {name} here; it has {', '.join(available)}")
    return pairs


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


def _open(path: Path, model: Path, session: SessionConfig) -> onnxruntime.InferenceSession:
    """Returns the session of the config `path`; every fault of ONNX Runtime is the config's."""
    try:
        return open_session(model, session)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except MemoryError:
        raise
    except Exception as error:  # ONNX Runtime's own classes have no common one
        raise ConfigError(
            f"{path}: ONNX Runtime cannot open {model} as the config says ({error}); "
            "run `autotune study` again here"
        ) from error


def missing_requirements(config: TunedConfig, *, providers: bool = True) -> list[str]:
    """Returns the requirements of the config that this machine lacks, in words; empty if none.

    Args:
        config: The config.
        providers: Whether its execution providers count.
    """
    available = onnxruntime.get_available_providers()
    required = config.requires.providers if providers else ()
    lacking = [f"the {name}" for name in required if name not in available]
    features = cpu.cpu_features()
    if features:  # empty means unknown
        wanted = config.requires.cpu_features
        lacking += [f"the CPU feature {name}" for name in wanted if name not in features]
    return lacking


def environment_differences(config: TunedConfig, *, cores: bool = True) -> list[str]:
    """Returns how this machine differs from the one that tuned the config, in words.

    Args:
        config: The config.
        cores: Whether the number of usable cores counts.
    """
    there = config.environment
    pairs = [
        ("CPU", there.cpu, cpu.cpu_model()),
        ("ONNX Runtime", there.onnxruntime, onnxruntime.__version__),
    ]
    if cores:
        pairs.append(("usable cores", str(there.cores), str(cpu.usable_cores())))
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
