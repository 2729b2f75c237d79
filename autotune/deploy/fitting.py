"""How a tuned config is opened on this machine, which may be another than the one that tuned it.

Needs the standard library and onnxruntime, and nothing else of autotune's dependencies.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.deploy import cpu
from autotune.deploy.loaded import LoadedConfig, RequiredRuntime
from autotune.deploy.options import ATTRIBUTES, EXACT_PRODUCTS
from autotune.deploy.providers import DISTRIBUTIONS, WORDS, provider_named
from autotune.deploy.runtime import onnxruntime
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError, shown

Provider = str | tuple[str, Mapping[str, str]]
"""An execution provider as the application names it: its name alone, or with its options."""

_INTRA = "intra_op_num_threads"
_INTER = "inter_op_num_threads"
# Options of execution providers that have threads of their own.
_OF_PROVIDERS = ("num_of_threads", "intra_op_num_threads")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a config is opened on this machine.

    Attributes:
        refusal: Why the file answers wrongly on this processor, whatever the options, as the end
            of a sentence; empty if it answers as it was measured.
        lacking: The ONNX Runtime, or the execution providers, that are missing, in words; the
            session is then ONNX Runtime's default, on the application's providers if it names some.
        differences: How this machine differs from the one that tuned the config, in words.
        adapted: What was changed for this machine, as the end of a sentence; empty if nothing.
    """

    session: SessionConfig
    refusal: str
    lacking: tuple[str, ...]
    differences: tuple[str, ...]
    adapted: str


def fit(
    config: LoadedConfig,
    *,
    providers: Sequence[Provider] | None = None,
    threads: int | None = None,
) -> Fit:
    """Returns how :func:`load` opens the config on this machine.

    The default session keeps exact products, which decide the answers of eight-bit models on x86
    without VNNI.

    Raises:
        ConfigError: an override is wrong.
    """
    if threads is not None and (problem := ATTRIBUTES[_INTRA].problem(threads)):
        raise ConfigError(f"threads {problem}")
    given = None if providers is None else _overriding(providers)
    lacking = missing_parts(config, has_providers=given is not None)
    differences = tuple(environment_differences(config, cores=threads is None))
    session, entries = config.session, dict(config.session.entries)
    if config.requires.exact_products and cpu.is_x86() and not cpu.has_vnni():
        entries[EXACT_PRODUCTS] = "1"
    if lacking:
        session = SessionConfig()
        entries = {name: text for name, text in entries.items() if name == EXACT_PRODUCTS}
    session = replace(session, entries=entries)
    as_tuned = not (lacking or given or differences)
    session, adapted = _with_threads_here(session, config.environment.cores, as_tuned)
    if given is not None:
        session = replace(session, providers=given, provider_cache="")
    if threads is not None:
        session = replace(session, options={**session.options, _INTRA: threads})
        adapted = ""
    return Fit(
        session=session,
        refusal=wrong_answers(config),
        lacking=lacking,
        differences=differences,
        adapted=adapted,
    )


def _with_threads_here(
    session: SessionConfig, cores_there: int, as_tuned: bool
) -> tuple[SessionConfig, str]:
    """Returns the session with at most one thread for each core here, and the change in words.

    ONNX Runtime's own number of threads ignores the CPU quota of a container and the cores that
    this process may not use (microsoft/onnxruntime#29510). So the number is set where there are
    fewer cores than there were, and, in a session that was never measured so, fewer than the
    machine has.

    Args:
        as_tuned: Whether the session is opened as it was measured, on a machine of the same kind.
    """
    cores = cpu.usable_cores()
    is_part = cores < (os.cpu_count() or 1)
    if cores >= cores_there and (as_tuned or not is_part):
        return session, ""
    options = dict(session.options)
    for name in (_INTRA, _INTER):
        threads = int(options.get(name, 0))
        # the pool between operators exists in parallel execution alone
        is_own_choice = threads == 0 and (name == _INTRA or session.is_parallel)
        if threads > cores or is_own_choice:
            options[name] = cores
    providers = tuple(
        (provider, {name: _at_most(name, text, cores) for name, text in chosen.items()})
        for provider, chosen in session.providers
    )
    adapted = replace(session, options=options, providers=providers)
    if adapted == session:
        return session, ""
    count = "1 thread is" if cores == 1 else f"{cores} threads are"
    return adapted, f"at most {count} used, because this process may use no more cores"


def _at_most(name: str, text: str, cores: int) -> str:
    """Returns the text of a provider's option, a number of threads cut down to the cores."""
    is_number = name in _OF_PROVIDERS and text.isascii() and text.isdecimal()
    return str(cores) if is_number and int(text) > cores else text


def _overriding(providers: Sequence[Provider]) -> tuple[tuple[str, Mapping[str, str]], ...]:
    """Returns the application's own providers; they are its request, and no data of a config."""
    if isinstance(providers, str) or not providers:
        raise ConfigError("providers must be a list of at least one execution provider")
    pairs: tuple[Any, ...] = tuple(
        (item, {}) if isinstance(item, str) else item for item in providers
    )
    for item in pairs:
        if not (isinstance(item, Sequence) and len(item) == 2 and isinstance(item[1], Mapping)):
            raise ConfigError(
                f"providers holds {shown(item)}; each must be a name, or a name and its options"
            )
        name = item[0]
        if reason := _unusable(name):
            available = ", ".join(onnxruntime.get_available_providers())
            raise ConfigError(f"ONNX Runtime cannot use {name} here ({reason}); it has {available}")
    return pairs


def wrong_answers(config: LoadedConfig) -> str:
    """Returns why the config's file answers wrongly on this processor; empty if it does not.

    What cannot be known of a processor counts against it: a wrong answer comes without an error.
    """
    required = config.requires
    if required.vnni and cpu.is_x86() and not cpu.has_vnni():
        return "its eight-bit products need VNNI (avx512_vnni or avx_vnni)"
    if required.float16_in_float32 and cpu.computes_in_half():
        return "its float16 nodes were measured in float32, and its kernels compute in float16"
    if required.weight_block is None:
        return ""
    here = cpu.weight_block()
    if required.weight_block and required.weight_block == here:
        return ""
    there, blocks = required.weight_block or "unknown", here or "unknown"
    return f"its weights lie in blocks of {there}, and this processor's kernels read {blocks}"


def missing_parts(config: LoadedConfig, *, has_providers: bool = False) -> tuple[str, ...]:
    """Returns what the config requires and this machine lacks, in words.

    That is the distribution of ONNX Runtime, or else execution providers.

    Args:
        has_providers: Whether the application names its own, so that the config's are not needed.
    """
    needed = config.requires.runtime
    if needed is not None and not _is_installed(needed):
        return (f"{needed.package} {needed.version} (type {install_command(needed)})",)
    if has_providers:
        return ()
    reasons = {name: _unusable(name) for name in config.requires.providers}
    return tuple(f"the {name} ({reason})" for name, reason in reasons.items() if reason)


def install_command(needed: RequiredRuntime) -> str:
    """Returns what to type so that this environment has an ONNX Runtime in the place of its own.

    The distributions overwrite each other's files, so the present ones go first.
    """
    others = [name for name in DISTRIBUTIONS if name != needed.package]
    present = [name for name in others if _version(name) is not None]
    first = f"pip uninstall -y {' '.join(present)} && " if present else ""
    return f"{first}pip install {needed}"


def _is_installed(needed: RequiredRuntime) -> bool:
    """Returns whether the distribution is installed in that version."""
    return _version(needed.package) == needed.version


def _version(package: str) -> str | None:
    # seldom needed: no other application pays for the import
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _unusable(name: str) -> str:
    """Returns why an execution provider cannot be used here; empty if nothing speaks against it.

    A config may require a provider that this version of autotune does not know.
    """
    is_available = name in onnxruntime.get_available_providers()
    provider = provider_named(name) if name in WORDS else None
    if provider is not None and provider.plugin is not None:
        # seldom needed: no other application pays for the import
        from autotune.deploy.plugins import is_built_in, plugin_devices

        if not is_built_in(provider):
            try:
                return "" if plugin_devices(provider) else "its package finds no device here"
            except ConfigError as error:
                return str(error)
    if not is_available:
        return "this ONNX Runtime was built without it"
    if provider is None or not provider.libraries:
        return ""
    from autotune.deploy.cuda import problem

    return problem(provider)


def environment_differences(
    config: LoadedConfig, *, cores: bool = True, runtime: bool = True
) -> list[str]:
    """Returns how this machine differs from the one that tuned the config, in words."""
    there = config.environment
    pairs = [("CPU", there.cpu, cpu.cpu_model())]
    if runtime:
        pairs.append(("ONNX Runtime", there.onnxruntime, onnxruntime.__version__))
    if cores:
        pairs.append(("usable cores", str(there.cores), str(cpu.usable_cores())))
    return [f"{what} {then} there, {now} here" for what, then, now in pairs if then != now]
