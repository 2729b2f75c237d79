"""How a tuned config is opened on this machine, which may be another than the one that tuned it.

Needs the standard library and onnxruntime, and nothing else of autotune's dependencies.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.deploy import cpu
from autotune.deploy.config import TunedConfig
from autotune.deploy.options import ATTRIBUTES, Value
from autotune.deploy.providers import WORDS, provider_named
from autotune.deploy.runtime import onnxruntime
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError

Provider = str | tuple[str, Mapping[str, str]]
"""An execution provider as the application names it: its name alone, or with its options."""

_INTRA = "intra_op_num_threads"
_INTER = "inter_op_num_threads"


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a config is opened on this machine.

    Attributes:
        session: How it is opened.
        lacking: The requirements that this machine lacks, in words; the session is then ONNX
            Runtime's default, on the application's providers if it names some.
        differences: How this machine differs from the one that tuned the config, in words.
        adapted: What was changed for this machine, in words; empty if nothing.
    """

    session: SessionConfig
    lacking: tuple[str, ...]
    differences: tuple[str, ...]
    adapted: str


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
        session = replace(session, providers=_overriding(providers), provider_cache="")
    if threads is not None and (problem := ATTRIBUTES[_INTRA].problem(threads)):
        raise ConfigError(f"threads {problem}")
    chosen: dict[str, Value] = {} if threads is None else {_INTRA: threads}
    differences = tuple(environment_differences(config, cores=threads is None))
    if lacking := missing_requirements(config, providers=providers is None):
        plain = SessionConfig(options=chosen)
        return Fit(
            session=plain if providers is None else replace(plain, providers=session.providers),
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
    for name, _ in pairs:
        if not _can_use(name):
            available = ", ".join(onnxruntime.get_available_providers())
            raise ConfigError(f"ONNX Runtime has no {name} here; it has {available}")
    return pairs


def missing_requirements(config: TunedConfig, *, providers: bool = True) -> list[str]:
    """Returns the requirements of the config that this machine lacks, in words; empty if none.

    Args:
        config: The config.
        providers: Whether its execution providers count.
    """
    required = config.requires.providers if providers else ()
    lacking = [f"the {name}" for name in required if not _can_use(name)]
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
    if name not in WORDS:
        return False
    # seldom needed: no other application pays for the import
    from autotune.deploy.plugins import has_plugin, plugin_devices

    if not has_plugin(provider_named(name)):
        return False
    try:
        return bool(plugin_devices(provider_named(name)))
    except ConfigError:
        return False


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
