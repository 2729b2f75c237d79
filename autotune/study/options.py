"""Everything that a study can be asked for: one record, with units and defaults, for all who ask.

The command line, :func:`autotune.tune` and the storage read and write this record. A new option is
one field here, and one parameter with its line of help in :mod:`autotune.cli.study`.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from autotune.deploy.records import Json, from_plain, to_plain
from autotune.errors import FormatError, RequestError, did_you_mean, shown
from autotune.facts.inputs import Generate
from autotune.facts.model import Model
from autotune.facts.workload import Workload
from autotune.graph.parameters import OUTPUTS
from autotune.search.context import Context
from autotune.search.objective import (
    DECODER_DEFAULT,
    DEFAULT,
    LOADED_DEFAULT,
    THROUGHPUT,
    check_preference,
    find,
    preference,
)
from autotune.search.trial import Limits, latency_limit
from autotune.space.files import presets
from autotune.space.parameters import CLIENTS, batch_problem
from autotune.space.session import EXECUTION_PROVIDER
from autotune.space.space import Space

_MAX_ERROR = 0.05
_MAX_PERPLEXITY_RISE = 0.02
DEFAULT_SPACE, DECODER_SPACE = "default", "decoder"
# Optuna's samplers take no larger one.
_LARGEST_SEED = 2**32 - 1
# The storage does not keep these. The user who continues a study names its storage. A storage may
# come from a stranger, and code (a metric) is never taken from it.
_NOT_KEPT = frozenset({"metric", "storage", "first", "wait"})
# A message names so many outputs.
_MOST_NAMED = 12
# Characters of a study's name: files are named after it.
_LONGEST_NAME = 200


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """The options of a study.

    Attributes:
        trials: How many configurations to measure in all, earlier runs of the study included.
        timeout_s: The search stops after this time, and the final comparison follows.
        space: Name of a preset, or a TOML file.
        fix: Parameters that have one value in all configurations but the default.
        data: Samples: an .npz file or a folder of them; generated if None.
        generate: Prompts of a decoder, a file with a JSON object in each line; generated if None.
        prompt_tokens: Lengths of generated prompts; 64 if empty.
        new_tokens: How many tokens follow each prompt; 64 if None.
        pairs: Outputs of a decoder that are inputs of the next step, by the names of the inputs;
            found in the graph if empty.
        providers: Words of the execution providers that are searched, such as ``cpu`` and
            ``openvino``; all that can be used on this machine if empty.
        runtimes: Other builds and versions of ONNX Runtime that are searched beside the user's own,
            as ``NAME`` or ``NAME==VERSION``, or ``all``; ``autotune runtimes add`` installs them.
        outputs: Names of the outputs that are asked for; the others are removed from the files of
            all configurations but the default, and are not compared. Empty means all of them.
        batch: Batch sizes that are searched, for a model whose inputs begin with an open batch
            dimension; the default runs the smallest. Empty means that each run has one sample, or
            the sizes of the space.
        max_error: Largest relative L2 error of an output. None means 0.05, and no limit where there
            is a `metric`.
        max_perplexity_rise: By how much the perplexity of a decoder may rise; it takes the place of
            `max_error`. None means 0.02.
        metric: ``module:function``, called with outputs, references and inputs (a list each, of
            samples that map names to arrays); returns a number that is better the higher it is.
        max_drop: By how much the metric may fall below that of the unoptimised model.
        max_held_memory_mib: Most memory that the process may hold after all runs, above that before
            the session; of the final comparison the range in which another process lies keeps it.
        max_latency_ms: Longest run; where ``throughput_per_s`` is an objective, the longest 99th
            percentile of the latency under load.
        objectives: What the search optimises, by name: ``latency_ms``, ``peak_memory_mib``,
            ``cpu_s`` (CPU seconds of a run), ``load_ms`` (creating the session) and ``p99_ms``,
            which are minimised, and ``throughput_per_s``, which is maximised. With several clients
            or batch sizes the default is ``throughput_per_s`` and ``peak_memory_mib``.
        prefer: Which member of the Pareto front is selected: the word of an objective (``latency``,
            ``memory``, ``cpu``, ``load``, ``p99``, ``throughput``) or ``balanced``; the first
            objective if None.
        out: The folder to write to; ``MODEL.autotune`` in the working directory if None.
        storage: URL of the storage that keeps the trials, such as ``postgresql://user@host/name``,
            which many machines of one kind may share. None means the variable
            ``AUTOTUNE_STORAGE``, or a SQLite file in the folder if that is not set.
        study_name: The name of the study in its storage; made from the model's name and the study's
            identity if None.
        first: Files with configurations that are measured right after the default: tuned configs,
            or JSON objects of parameters and values.
        early_stop: Whether the search ends when the front has not moved for long and no
            configuration promises more.
        wait: Whether to wait for another study on the same cores to end, instead of refusing.
        clients: How many clients run at once, in a closed loop: each begins its next run when the
            last one ended. None means the number in the search space, or one.
    """

    model: Path
    trials: int = 100
    timeout_s: float | None = None
    space: str = DEFAULT_SPACE
    fix: Mapping[str, str] = field(default_factory=dict)
    data: Path | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    generate: Path | None = None
    prompt_tokens: tuple[int, ...] = ()
    new_tokens: int | None = None
    pairs: Mapping[str, str] = field(default_factory=dict)
    providers: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    batch: tuple[int, ...] = ()
    max_error: float | None = None
    max_perplexity_rise: float | None = None
    metric: str | None = None
    max_drop: float = 0.01
    max_memory_mib: float | None = None
    max_held_memory_mib: float | None = None
    max_latency_ms: float | None = None
    objectives: tuple[str, ...] = DEFAULT
    prefer: str | None = None
    out: Path | None = None
    storage: str | None = field(default=None, repr=False)
    study_name: str | None = None
    seed: int = 0
    first: tuple[Path, ...] = ()
    early_stop: bool = True
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
            ("--max-held-memory", self.max_held_memory_mib, " MiB"),
            ("--max-latency", self.max_latency_ms, " ms"),
            ("--max-error", self.max_error, ""),
            ("--max-perplexity-rise", self.max_perplexity_rise, ""),
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
        if self.study_name is not None and not _is_name(self.study_name):
            raise RequestError(
                f"--study-name must have 1 to {_LONGEST_NAME} printable characters and no '/'"
            )
        self.generation.check()
        if self.data is not None and self.shapes and not self.generation.is_asked:
            raise RequestError("--data brings its own shapes; leave --shape out")
        objectives = find(self.sought)
        # decoders and devices have other objectives where the user names none
        if self.objectives not in (DEFAULT, LOADED_DEFAULT):
            check_preference(self.preference, objectives)

    def check_space(self, space: Space) -> None:
        """Refuses a choice of execution providers where the space has none to choose from.

        Raises:
            RequestError: that is so.
        """
        offered = {parameter.name for parameter in space.parameters} | self.fix.keys()
        if self.providers and EXECUTION_PROVIDER not in offered:
            raise RequestError(
                f"--providers: the search space {self.space} has no parameter "
                f"{EXECUTION_PROVIDER}; name one that has with --space"
            )

    @property
    def sought(self) -> tuple[str, ...]:
        """The names of the objectives: with several clients or batches the default ones differ."""
        several = (self.clients is not None and self.clients > 1) or bool(self.batch)
        return LOADED_DEFAULT if several and self.objectives == DEFAULT else self.objectives

    @property
    def generation(self) -> Generate:
        """How a decoder generates, as asked for."""
        return Generate(
            prompts=self.generate, prompt_tokens=self.prompt_tokens, new_tokens=self.new_tokens
        )

    def for_workload(self, model: Model, workload: Workload) -> "StudyOptions":
        """Returns the options as they are for a workload.

        The limit of a decoder that generates is the rise of its perplexity, and objectives and
        search space that the user left open are those of decoders.

        Raises:
            RequestError: an option is for other models.
        """
        if workload.plan is None:
            if self.max_perplexity_rise is not None:
                raise RequestError(
                    f"--max-perplexity-rise is for decoders that generate, and {model.path.name} "
                    "is run in single steps; name --max-error"
                )
            return self
        for name, value in (
            ("--metric", self.metric),
            ("--max-error", self.max_error),
            ("--batch", self.batch),
            ("--outputs", self.outputs),
        ):
            if value:
                raise RequestError(
                    f"{model.path.name} is a decoder, and {name} is for other models; leave it out"
                    + (", or name --max-perplexity-rise" if name == "--max-error" else "")
                )
        if THROUGHPUT in self.objectives:
            raise RequestError(
                f"{model.path.name} is a decoder: its rate is --objective tokens, not {THROUGHPUT}"
            )
        rise = self.max_perplexity_rise
        return replace(
            self,
            max_error=_MAX_PERPLEXITY_RISE if rise is None else rise,
            objectives=DECODER_DEFAULT if self.objectives == DEFAULT else self.objectives,
            space=DECODER_SPACE if self.space == DEFAULT_SPACE else self.space,
        )

    def asked_of(self, model: Model, workload: Workload) -> Workload:
        """Returns the workload with the outputs that are compared.

        Raises:
            RequestError: the model has no output of a name.
        """
        if OUTPUTS in self.fix:
            raise RequestError(f"--fix: name the outputs with --outputs {self.fix[OUTPUTS]}")
        for name in self.outputs:
            if name not in model.outputs:
                known = ", ".join(model.outputs[:_MOST_NAMED])
                more = ", ..." if len(model.outputs) > _MOST_NAMED else ""
                raise RequestError(
                    f"--outputs: {model.path.name} has no output {shown(name)}."
                    f"{did_you_mean(name, model.outputs)} It has {known}{more}"
                )
        # in the order of the model: another order is no other study
        kept = tuple(name for name in model.outputs if name in self.outputs)
        return replace(workload, outputs=() if kept == model.outputs else kept)

    @property
    def preference(self) -> str:
        """The word of what decides between members of the front."""
        return self.prefer or find(self.sought)[0].word

    @property
    def limits(self) -> Limits:
        """The limits that a selected configuration keeps, by the objectives as they are asked."""
        return self.limits_for(self.sought)

    def limits_for(self, objectives: Sequence[str]) -> Limits:
        """Returns the limits that a selected configuration of a study of these objectives keeps."""
        limits = Limits(
            max_error=self.error_limit,
            max_memory_mib=self.max_memory_mib,
            max_held_memory_mib=self.max_held_memory_mib,
            max_drop=None if self.metric is None else self.max_drop,
        )
        return latency_limit(limits, objectives, self.max_latency_ms)

    @property
    def error_limit(self) -> float:
        """Largest error, of a decoder largest rise; infinite where a metric alone decides."""
        largest = self.max_error or self.max_perplexity_rise
        if largest is not None:
            return largest
        return _MAX_ERROR if self.metric is None else math.inf

    @property
    def folder(self) -> Path:
        """The folder that the study writes to."""
        return self.out if self.out is not None else Path(f"{self.model.stem}.autotune")

    def resolved(self, ctx: Context) -> "StudyOptions":
        """Returns the options as they were resolved: what another machine would be asked for."""
        is_decoder = ctx.workload.plan is not None
        return replace(
            self,
            max_perplexity_rise=ctx.limits.max_error if is_decoder else None,
            clients=ctx.clients,
            batch=() if ctx.batching is None else ctx.batching.sizes,
            objectives=tuple(objective.name for objective in ctx.objectives),
            prefer=ctx.prefer,
        )

    def to_record(self) -> Json:
        """Returns what the storage keeps of the options: absolute paths, limits in numbers."""
        kept = {item.name: getattr(self, item.name) for item in fields(self)}
        kept["model"] = self.model.absolute()
        kept["out"] = self.folder.resolve()
        kept["data"] = None if self.data is None else self.data.resolve()
        kept["generate"] = None if self.generate is None else self.generate.resolve()
        kept["prefer"] = self.preference
        kept["max_error"] = self.error_limit if math.isfinite(self.error_limit) else None
        if self.max_perplexity_rise is not None:
            kept["max_error"] = None
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


def _is_name(name: str) -> bool:
    """Returns whether a study and its files can have this name."""
    fits = 0 < len(name) <= _LONGEST_NAME and name.isprintable()
    return fits and not set(name) & {"/", "\\"} and not name.startswith(".")


def _typed(name: str, value: Any) -> Any:
    """Returns the value of an option with the type that the record has."""
    if value is None:
        return None
    if name in {"model", "data", "out", "generate"}:
        return Path(value)
    if name == "shapes":
        return {tensor: tuple(sizes) for tensor, sizes in value.items()}
    if name == "first":
        return tuple(map(Path, value))
    if name in {"providers", "runtimes", "outputs"}:
        return tuple(word.strip() for text in value for word in text.split(","))
    if name == "objectives":
        return tuple(objective.name for objective in find(value))
    if name == "prefer":
        return preference(value)
    return tuple(value) if name in {"batch", "prompt_tokens"} else value
