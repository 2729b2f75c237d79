"""The tuned config: what `autotune study` emits and an application loads.

A frozen record that goes to JSON and back through a closed schema (``autotune/1``). A config is
data: it names one model file beside it, options from :mod:`autotune.deploy.options`, and nothing
else. It
cannot name a path outside its folder, a library, or a file to write. Standard library only.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from autotune.deploy import options
from autotune.deploy.options import Value
from autotune.deploy.records import Json, Positive, from_plain, read, section, to_plain
from autotune.errors import ConfigError, FormatError, did_you_mean

FORMAT = "autotune/1"

# A config is read whole into memory; a real one has a few kilobytes.
_LARGEST_BYTES = 1 << 20
_LARGEST_DIMENSION = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class SessionConfig:
    """How ONNX Runtime opens and runs a model; the empty record is its default.

    Attributes:
        providers: Execution providers in order of preference, each with its options.
        options: Attributes of ``SessionOptions`` by name, enums by their name.
        entries: Session config entries, string to string.
        disabled_optimizers: Graph transformers that are left out.
        free_dimensions: Sizes of symbolic dimensions by name.
        env_allocator: Options of the process-wide CPU arena; empty means none is registered.
        run_entries: Run config entries, string to string, that apply to every run.
    """

    providers: tuple[tuple[str, Mapping[str, str]], ...] = (("CPUExecutionProvider", {}),)
    options: Mapping[str, Value] = field(default_factory=dict)
    entries: Mapping[str, str] = field(default_factory=dict)
    disabled_optimizers: tuple[str, ...] = ()
    free_dimensions: Mapping[str, int] = field(default_factory=dict)
    env_allocator: Mapping[str, int] = field(default_factory=dict)
    run_entries: Mapping[str, str] = field(default_factory=dict)

    def is_default(self) -> bool:
        """Returns whether this opens a session with a fresh ``SessionOptions()``."""
        return self == SessionConfig(providers=self.providers)

    def to_json(self) -> Json:
        """Returns the record as JSON values."""
        told: Json = to_plain(self)
        return told

    @classmethod
    def from_json(cls, data: object, where: str = "session") -> "SessionConfig":
        """Returns the record that `data` describes.

        Raises:
            ConfigError: an unknown key or option, or a value that the option does not take.
        """
        with _as_config_error():
            given = section(data, where, known=[item.name for item in fields(cls)], required=[])
            return cls(
                providers=_providers(
                    given.get("providers", [["CPUExecutionProvider", {}]]), f"{where}.providers"
                ),
                options=_chosen(given, "options", options.ATTRIBUTES, where),
                entries=_chosen(given, "entries", options.SESSION_ENTRIES, where),
                disabled_optimizers=_optimizers(given.get("disabled_optimizers", []), where),
                free_dimensions=_free_dimensions(given.get("free_dimensions", {}), where),
                env_allocator=_chosen(given, "env_allocator", options.ARENA_OPTIONS, where),
                run_entries=_chosen(given, "run_entries", options.RUN_ENTRIES, where),
            )


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """The model file beside a config.

    Attributes:
        file: Its bare name.
        sha256: Digest of its bytes and, after them, of its external data files.
        size_bytes: Size of the file itself.
        source_sha256: The same digest of the model that was tuned.
        steps: What was done to the source, in words of the search space; empty if nothing.
        data_files: Bare names of its external data files.
    """

    file: str
    sha256: str
    size_bytes: int
    source_sha256: str
    steps: tuple[str, ...] = ()
    data_files: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value with its 95 % confidence interval."""

    value: Positive
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was measured of a config on the machine that tuned it.

    Latencies are medians of one run on a quiet machine, as the run-off estimates them.

    Attributes:
        latency_ms: Of the config.
        baseline_latency_ms: Of the untouched model under a fresh ``SessionOptions()``.
        speedup: How many times faster than the baseline, with its interval.
        peak_memory_mib: What the session adds, at its highest, to the process before it.
        baseline_peak_memory_mib: The same of the baseline.
        cpu_s: CPU time of a run, all threads.
        baseline_cpu_s: The same of the baseline.
        load_ms: Creating the session in a fresh process.
        baseline_load_ms: The same of the baseline.
        p99_ms: The 99th percentile as MLPerf estimates it; None where there were too few runs.
        baseline_p99_ms: The same of the baseline.
        error: Largest relative L2 error of an output against the unoptimised model.
        agreement: Share of equal arg-max along the last axis; None where no output has classes.
        metric: What the user's own metric says of the outputs; None without one.
        error_data: ``"user"`` or ``"generated"``: the inputs on which `error` was measured.
        rounds: Rounds of the run-off in which it was measured; 0 means that a study was cut short
            and these are the numbers of its search.
        significant: Whether it is faster by more than the noise.
        steady: Whether its latency came to a steady state in every measurement.
        noise_floor: Relative difference of two measurements of the baseline that chance explains;
            no gain below it is claimed.
        trial: Number of the trial in its study.
    """

    latency_ms: Positive
    baseline_latency_ms: Positive
    speedup: Interval
    peak_memory_mib: float
    baseline_peak_memory_mib: float
    cpu_s: float
    baseline_cpu_s: float
    load_ms: float
    baseline_load_ms: float
    p99_ms: float | None
    baseline_p99_ms: float | None
    error: float
    agreement: float | None
    metric: float | None
    error_data: str
    rounds: int
    significant: bool
    steady: bool
    noise_floor: float
    trial: int


@dataclass(frozen=True, kw_only=True)
class Requires:
    """What a machine must have for the config to hold there."""

    providers: tuple[str, ...] = ()
    cpu_features: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Where the config was tuned."""

    autotune: str
    onnxruntime: str
    cpu: str
    cores: int
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class TunedConfig:
    """One tuned config: a model file, how to open it, and why.

    `candidate` says the same as `model.steps` and `session` in autotune's own parameters, for a
    search that starts from here; nothing of it is applied in loading.
    """

    model: ModelFile
    session: SessionConfig
    evidence: Evidence
    requires: Requires
    environment: Environment
    candidate: Mapping[str, Value]

    def to_json(self) -> Json:
        """Returns the config as JSON values, in the order in which a reader wants them."""
        return {"format": FORMAT, **to_plain(self)}

    @classmethod
    def from_json(cls, data: object) -> "TunedConfig":
        """Returns the config that `data` describes.

        Raises:
            ConfigError: `data` breaks the schema; the message names the key.
        """
        if isinstance(data, dict) and data.get("format") != FORMAT:
            raise ConfigError(
                f"format is {data.get('format')!r}, and this version of autotune reads {FORMAT!r}"
            )
        names = ["format", *(item.name for item in fields(cls))]
        with _as_config_error():
            given = section(data, "", known=names, required=names)
            model = from_plain(ModelFile, given["model"], "model")
            for name in (model.file, *model.data_files):
                _check_bare_name(name)
            return cls(
                model=model,
                session=SessionConfig.from_json(given["session"]),
                evidence=from_plain(Evidence, given["evidence"], "evidence"),
                requires=from_plain(Requires, given["requires"], "requires"),
                environment=from_plain(Environment, given["environment"], "environment"),
                candidate=read(Mapping[str, Value], given["candidate"], "candidate"),
            )

    @classmethod
    def read(cls, path: Path) -> "TunedConfig":
        """Returns the config in the file `path`.

        Raises:
            ConfigError: there is no such file, it is no JSON, or it breaks the schema.
        """
        try:
            if path.stat().st_size > _LARGEST_BYTES:
                raise ConfigError(f"{path} is larger than any tuned config ({_LARGEST_BYTES} B)")
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read the config {path}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is no JSON: {error}") from None
        try:
            return cls.from_json(data)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None


@contextlib.contextmanager
def _as_config_error() -> Iterator[None]:
    try:
        yield
    except FormatError as error:
        raise ConfigError(str(error)) from None


def _chosen(
    given: Json, name: str, known: Mapping[str, options.Domain], where: str
) -> dict[str, Any]:
    """Returns the options in section `name`, each checked against its domain in `known`."""
    chosen = given.get(name, {})
    if not isinstance(chosen, dict):
        raise ConfigError(f"{where}.{name} must be an object, not {chosen!r}")
    for key, value in chosen.items():
        if key not in known:
            raise ConfigError(f"{where}.{name}: {options.unknown_option(key, known)}")
        if problem := known[key].problem(value):
            raise ConfigError(f"{where}.{name}.{key} {problem}")
    return chosen


def _providers(data: object, where: str) -> tuple[tuple[str, Mapping[str, str]], ...]:
    if not isinstance(data, list):
        raise ConfigError(f"{where} must be a list, not {data!r}")
    found = tuple(_provider(item, where) for item in data)
    if len({name for name, _ in found}) < len(found):
        raise ConfigError(f"{where} names a provider twice")
    return found


def _provider(item: object, where: str) -> tuple[str, Mapping[str, str]]:
    if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], str)):
        raise ConfigError(f"{where} holds {item!r}; each must be [name, {{options}}]")
    name, chosen = item
    if name not in options.PROVIDERS:
        near = did_you_mean(name, options.PROVIDERS)
        raise ConfigError(f"{where}: '{name}' is not an execution provider known here.{near}")
    return name, _chosen({name: chosen}, name, options.PROVIDERS[name], where)


def _optimizers(data: object, where: str) -> tuple[str, ...]:
    names: tuple[str, ...] = read(tuple[str, ...], data, f"{where}.disabled_optimizers")
    for name in names:
        if name not in options.OPTIMIZERS:
            near = did_you_mean(name, options.OPTIMIZERS)
            raise ConfigError(
                f"{where}.disabled_optimizers: ONNX Runtime has no optimizer '{name}'.{near}"
            )
    return names


def _free_dimensions(data: object, where: str) -> dict[str, int]:
    sizes: dict[str, int] = read(dict[str, int], data, f"{where}.free_dimensions")
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"{where}.free_dimensions.{name} must be at least 1, not {size}")
        if size > _LARGEST_DIMENSION:
            raise ConfigError(f"{where}.free_dimensions.{name} is larger than any dimension")
    return sizes


def _check_bare_name(name: str) -> None:
    """Refuses anything that could lead out of the config's own folder, on any system."""
    bare = PurePosixPath(name).name == name and PureWindowsPath(name).name == name
    if not bare or name in {"", ".", ".."} or "\0" in name:
        raise ConfigError(f"model: '{name}' must be a bare file name beside the config")
