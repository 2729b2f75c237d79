"""Everything that a study can be asked for: one record, with units and defaults, for all who ask.

The command line, :func:`autotune.tune`, ``autotune resume`` and the storage read and write this
record. A new option is one field here and one line of help in :mod:`autotune.cli.study`.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from autotune.deploy.records import Json, from_plain, to_plain
from autotune.errors import FormatError, RequestError, did_you_mean, shown
from autotune.search.objective import DEFAULT, LOADED_DEFAULT, check_preference, find
from autotune.search.portfolio import DEFAULT_SAMPLER
from autotune.search.trial import Limits, latency_limit
from autotune.space.files import presets
from autotune.space.parameters import CLIENTS, batch_problem

_MAX_ERROR = 0.05
# Optuna's samplers take no larger one.
_LARGEST_SEED = 2**32 - 1
# The storage does not keep these. The user who resumes a study names the folder and the storage. A
# storage may come from a stranger, and code (a metric) is never taken from it.
_NOT_KEPT = frozenset({"metric", "out", "storage", "first", "wait"})


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """The options of a study.

    Attributes:
        model: The .onnx file; it is never written to.
        trials: How many candidates to measure in all, earlier runs of the study included.
        timeout_s: The search stops after this time, and the final comparison follows.
        space: Name of a preset, or a TOML file.
        fix: Parameters that have one value in all candidates but the default.
        data: Samples: an .npz file or a folder of them; generated if None.
        shapes: Shapes of generated inputs, by input name.
        providers: Words of the execution providers that are searched, such as ``cpu`` and
            ``openvino``; all that can be used on this machine if empty.
        batch: Batch sizes that are searched, for a model whose inputs begin with an open batch
            dimension; the default runs the smallest. Empty means that each run has one sample, or
            the sizes of the space.
        max_error: Largest relative L2 error of an output. None means 0.05, and no limit where there
            is a `metric`.
        metric: ``module:function``, called with outputs, references and inputs (a list each, of
            samples that map names to arrays); returns a number that is better the higher it is.
        max_drop: By how much the metric may fall below that of the unoptimised model.
        max_memory_mib: Largest peak memory that a session may add.
        max_latency_ms: Longest run; where ``throughput_per_s`` is an objective, the longest 99th
            percentile of the latency under load.
        objectives: What the search optimises, by name: ``latency_ms``, ``peak_memory_mib``,
            ``cpu_s`` (CPU seconds of a run), ``load_ms`` (creating the session) and ``p99_ms``,
            which are minimised, and ``throughput_per_s``, which is maximised. With several clients
            or batch sizes the default is ``throughput_per_s`` and ``peak_memory_mib``.
        prefer: Which member of the Pareto front is emitted: the word of an objective (``latency``,
            ``memory``, ``cpu``, ``load``, ``p99``, ``throughput``) or ``balanced``; the first
            objective if None.
        out: The folder to write to; ``MODEL.autotune`` in the working directory if None.
        storage: URL of the storage that keeps the trials, such as ``postgresql://user@host/name``,
            which many machines of one kind may share. None means the variable
            ``AUTOTUNE_STORAGE``, or a SQLite file in the folder if that is not set.
        seed: Random seed.
        sampler: What chooses the candidates, by name: ``effects`` (a model of the effects of all
            values), or Optuna's ``tpe``, ``tpe_independent``, ``nsga2``, ``random``, ``brute``.
        first: Files with candidates that are measured right after the default: tuned configs, or
            JSON objects of parameters and values.
        early_stop: Whether the search ends when the front has not moved for long and no candidate
            promises more; only the sampler ``effects`` can tell.
        process_options: Whether to measure as well what options of the process do: thresholds of
            glibc's allocator, which an application switches on with
            ``autotune.load(path, process_options=True)``.
        wait: Whether to wait for another study on the same cores to end, instead of refusing.
        clients: How many clients run at once, in a closed loop: each begins its next run when the
            last one ended. None means the number in the search space, or one.
    """

    model: Path
    trials: int = 100
    timeout_s: float | None = None
    space: str = "default"
    fix: Mapping[str, str] = field(default_factory=dict)
    data: Path | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    providers: tuple[str, ...] = ()
    batch: tuple[int, ...] = ()
    max_error: float | None = None
    metric: str | None = None
    max_drop: float = 0.01
    max_memory_mib: float | None = None
    max_latency_ms: float | None = None
    objectives: tuple[str, ...] = DEFAULT
    prefer: str | None = None
    out: Path | None = None
    storage: str | None = field(default=None, repr=False)
    seed: int = 0
    sampler: str = DEFAULT_SAMPLER
    first: tuple[Path, ...] = ()
    early_stop: bool = True
    process_options: bool = False
    wait: bool = False
    clients: int | None = None

    @classmethod
    def of(cls, model: str | os.PathLike[str], **options: Any) -> "StudyOptions":
        """Returns the options with these values; others, and those that are None, at their default.

        Paths may be strings, and lists stand for tuples.

        Raises:
            RequestError: there is no option of a name, or a value is wrong.
        """
        given = {name: value for name, value in options.items() if value is not None}
        return cls(model=Path(model)).with_changes(**given)

    def with_changes(self, **options: Any) -> "StudyOptions":
        """Returns the options with other values for some of them; see :meth:`of`."""
        names = [item.name for item in fields(self)]
        for name in options:
            if name not in names:
                raise RequestError(f"there is no option '{name}'.{did_you_mean(name, names)}")
        changed = replace(self, **{name: _typed(name, value) for name, value in options.items()})
        changed.check()
        return changed

    def check(self) -> None:
        """Refuses values that no study can work with.

        Raises:
            RequestError: there is one; the message names the option.
        """
        if self.trials < 1:
            raise RequestError(f"--trials must be at least 1, not {self.trials}")
        for name, value, unit in (
            ("--timeout", self.timeout_s, " s"),
            ("--max-memory", self.max_memory_mib, " MiB"),
            ("--max-latency", self.max_latency_ms, " ms"),
            ("--max-error", self.max_error, ""),
        ):
            if value is not None and not value > 0:
                raise RequestError(f"{name} must be more than 0, not {value:g}{unit}")
        if not 0 <= self.max_drop < math.inf:
            raise RequestError(f"--max-drop must be at least 0, not {self.max_drop:g}")
        if not 0 <= self.seed <= _LARGEST_SEED:
            raise RequestError(
                f"--seed must be at least 0 and at most {_LARGEST_SEED}, not {self.seed}"
            )
        if problem := batch_problem(self.batch):
            raise RequestError(f"--batch: {problem}")
        if self.clients is not None and (problem := CLIENTS.problem(self.clients)):
            raise RequestError(f"--clients {problem}")
        if self.data is not None and self.shapes:
            raise RequestError("--data brings its own shapes; leave --shape out")
        check_preference(self.preference, find(self.sought))

    @property
    def sought(self) -> tuple[str, ...]:
        """The names of the objectives: with several clients or batches the default ones differ."""
        several = (self.clients is not None and self.clients > 1) or bool(self.batch)
        return LOADED_DEFAULT if several and self.objectives == DEFAULT else self.objectives

    @property
    def preference(self) -> str:
        """The word of what decides between members of the front."""
        return self.prefer or find(self.sought)[0].word

    @property
    def limits(self) -> Limits:
        """The limits that an emitted configuration keeps."""
        limits = Limits(
            max_error=self.error_limit,
            max_memory_mib=self.max_memory_mib,
            max_drop=None if self.metric is None else self.max_drop,
        )
        return latency_limit(limits, self.sought, self.max_latency_ms)

    @property
    def error_limit(self) -> float:
        """Largest relative L2 error of an output; infinite where a metric alone decides."""
        if self.max_error is not None:
            return self.max_error
        return _MAX_ERROR if self.metric is None else math.inf

    @property
    def folder(self) -> Path:
        """The folder that the study writes to."""
        return self.out if self.out is not None else Path(f"{self.model.stem}.autotune")

    def to_record(self) -> Json:
        """Returns what the storage keeps of the options: absolute paths, limits in numbers."""
        kept = {item.name: getattr(self, item.name) for item in fields(self)}
        kept["model"] = self.model.resolve()
        kept["data"] = None if self.data is None else self.data.resolve()
        kept["prefer"] = self.preference
        kept["max_error"] = self.error_limit if math.isfinite(self.error_limit) else None
        if self.space not in presets():
            kept["space"] = str(Path(self.space).resolve())
        record: Json = to_plain({n: v for n, v in kept.items() if n not in _NOT_KEPT})
        return record

    @classmethod
    def from_record(cls, data: object) -> "StudyOptions":
        """Returns the options that a storage kept, with defaults for those that it does not name.

        Raises:
            FormatError: it kept none; the message names the key.
        """
        if not isinstance(data, dict):
            raise FormatError(f"the options must be an object, not {shown(data)}")
        if taken := _NOT_KEPT & data.keys():
            raise FormatError(f"'{min(taken)}' is not taken from a storage")
        defaults: Json = to_plain(cls(model=Path()))
        del defaults["model"]
        return from_plain(cls, {**defaults, **data})


def _typed(name: str, value: Any) -> Any:
    """Returns the value of an option with the type that the record has."""
    if value is None:
        return None
    if name in {"model", "data", "out"}:
        return Path(value)
    if name == "shapes":
        return {tensor: tuple(sizes) for tensor, sizes in value.items()}
    if name == "first":
        return tuple(map(Path, value))
    if name == "providers":
        return tuple(word.strip() for text in value for word in text.split(","))
    return tuple(value) if name in {"objectives", "batch"} else value
