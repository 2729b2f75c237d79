"""How a session is opened: the part of a tuned config that reaches ONNX Runtime.

Nothing reaches it that is not in the tables of :mod:`autotune.deploy.options`. Standard library
only.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from autotune.deploy import options
from autotune.deploy.options import Value
from autotune.deploy.providers import CACHE_FOLDER, CPU, WORDS, provider_named
from autotune.deploy.records import Json, is_unicode_text, read, section, to_plain
from autotune.errors import ConfigError, FormatError, did_you_mean, shown

_LARGEST_DIMENSION = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """How ONNX Runtime opens and runs a model; the empty record is its default.

    Attributes:
        providers: Execution providers in order of preference, each with its options.
        options: Attributes of ``SessionOptions`` by name, enums by their name.
        env_allocator: Options of the process-wide CPU arena; empty means none is registered.
        run_entries: Run config entries, string to string, that apply to every run.
        provider_cache: Name of the folder beside the config where a provider keeps what it has
            compiled; empty means that nothing is kept.
    """

    providers: tuple[tuple[str, Mapping[str, str]], ...] = ((CPU, {}),)
    options: Mapping[str, Value] = field(default_factory=dict)
    entries: Mapping[str, str] = field(default_factory=dict)
    disabled_optimizers: tuple[str, ...] = ()
    free_dimensions: Mapping[str, int] = field(default_factory=dict)
    env_allocator: Mapping[str, int] = field(default_factory=dict)
    run_entries: Mapping[str, str] = field(default_factory=dict)
    provider_cache: str = ""

    @property
    def accelerator(self) -> str | None:
        """ONNX Runtime's name of the provider before the CPU's; None where there is none."""
        return next((name for name, _ in self.providers if name != CPU), None)

    @property
    def is_parallel(self) -> bool:
        """Whether operators run beside each other, on threads that do not survive a fork."""
        return self.options.get("execution_mode") == "ORT_PARALLEL"

    @property
    def captures_graphs(self) -> bool:
        """Whether a provider records its kernels once and replays them on the same buffers."""
        return any(
            name in WORDS and given.get(provider_named(name).graph_capture) == "1"
            for name, given in self.providers
        )

    @property
    def has_tuned_runs(self) -> bool:
        """Whether its runs differ from those of ONNX Runtime's own class."""
        return bool(self.run_entries) or self.is_parallel or self.captures_graphs

    def to_json(self) -> Json:
        """Returns the record as JSON values."""
        data: Json = to_plain(self)
        return data

    @classmethod
    def from_json(cls, data: object, where: str = "session") -> "SessionConfig":
        """Returns the record that `data` describes.

        Raises:
            ConfigError: an unknown key or option, or a value that the option does not take.
        """
        with as_config_error():
            given = section(data, where, known=[item.name for item in fields(cls)], required=[])
            return cls(
                providers=_providers(given.get("providers", [[CPU, {}]]), f"{where}.providers"),
                options=_chosen(given, "options", options.ATTRIBUTES, where),
                entries=_chosen(given, "entries", options.SESSION_ENTRIES, where),
                disabled_optimizers=_optimizers(given.get("disabled_optimizers", []), where),
                free_dimensions=_free_dimensions(given.get("free_dimensions", {}), where),
                env_allocator=_chosen(given, "env_allocator", options.ARENA_OPTIONS, where),
                run_entries=_chosen(given, "run_entries", options.RUN_ENTRIES, where),
                provider_cache=_provider_cache(given.get("provider_cache", ""), where),
            )


@contextlib.contextmanager
def as_config_error() -> Iterator[None]:
    """Turns a :class:`FormatError` inside the block into a :class:`ConfigError`."""
    try:
        yield
    except FormatError as error:
        raise ConfigError(str(error)) from None


def _chosen(
    given: Json, name: str, domains: Mapping[str, options.Domain], where: str
) -> dict[str, Any]:
    """Returns the options in section `name`, each checked against its domain in `domains`."""
    chosen = given.get(name, {})
    if not isinstance(chosen, dict):
        raise ConfigError(f"{where}.{name} must be an object, not {shown(chosen)}")
    for key, value in chosen.items():
        if key not in domains:
            raise ConfigError(f"{where}.{name}: {options.unknown_option(key, domains)}")
        if problem := domains[key].problem(value):
            raise ConfigError(f"{where}.{name}.{key} {problem}")
    return chosen


def _providers(data: object, where: str) -> tuple[tuple[str, Mapping[str, str]], ...]:
    if not isinstance(data, list):
        raise ConfigError(f"{where} must be a list, not {shown(data)}")
    providers = tuple(_provider(item, where) for item in data)
    if len({name for name, _ in providers}) < len(providers):
        raise ConfigError(f"{where} names a provider twice")
    return providers


def _provider(item: object, where: str) -> tuple[str, Mapping[str, str]]:
    if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], str)):
        raise ConfigError(f"{where} holds {shown(item)}; each must be [name, {{options}}]")
    name, chosen = item
    if name not in WORDS:
        near = did_you_mean(name, WORDS)
        raise ConfigError(
            f"{where}: {shown(name)} is not an execution provider that a config may name.{near}"
        )
    return name, _chosen({name: chosen}, name, provider_named(name).options, where)


def _provider_cache(data: object, where: str) -> str:
    if data not in ("", CACHE_FOLDER):
        raise ConfigError(f"{where}.provider_cache must be {CACHE_FOLDER!r}, not {shown(data)}")
    return str(data)


def _optimizers(data: object, where: str) -> tuple[str, ...]:
    names: tuple[str, ...] = read(tuple[str, ...], data, f"{where}.disabled_optimizers")
    for name in names:
        if name not in options.OPTIMIZERS:
            near = did_you_mean(name, options.OPTIMIZERS)
            raise ConfigError(
                f"{where}.disabled_optimizers: ONNX Runtime has no optimizer {shown(name)}.{near}"
            )
    return names


def _free_dimensions(data: object, where: str) -> dict[str, int]:
    sizes: dict[str, int] = read(dict[str, int], data, f"{where}.free_dimensions")
    for name, size in sizes.items():
        place = f"{where}.free_dimensions: {shown(name)}"
        if not is_unicode_text(name):
            raise ConfigError(f"{place} is no name of a dimension")
        if not 1 <= size <= _LARGEST_DIMENSION:
            raise ConfigError(f"{place} must be at least 1 and below 2^63, not {shown(size)}")
    return sizes
