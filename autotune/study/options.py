"""Everything that a study can be asked for: one record, with units and defaults, for all who ask.

The command line, :func:`autotune.tune` and the storage read and write this record. A new option is
one field here, and one parameter with its line of help in :mod:`autotune.cli.study`.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from autotune.deploy.records import Json, from_plain, read, to_plain
from autotune.errors import FormatError, RequestError, did_you_mean, shown
from autotune.facts.inputs import Generate, workload_for
from autotune.facts.model import Model, without_breaking
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
_MAX_DROP = 0.01
DEFAULT_SPACE, DECODER_SPACE = "default", "decoder"
# Optuna's samplers take no larger one.
_LARGEST_SEED = 2**32 - 1
# The storage does not keep these. The user who continues a study names its storage. A storage may
# come from a stranger, and code (a metric, a sampler) is never taken from it.
_NOT_KEPT = frozenset({"metric", "sampler", "storage", "first", "wait"})
# A message names so many outputs.
_MOST_NAMED = 12
# Characters of a study's name: files are named after it.
_LONGEST_NAME = 200


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """The options of a study of one model, and of one of a whole application.

    Attributes:
        out: The folder to write to; one in the working directory if None.
        trials: How many configurations to measure in all, earlier runs of the study included.
        timeout_s: The whole study ends after about this time, the final comparison included; what
            is measured at that moment is not cut off.
        space: Name of a preset, or a TOML file.
        providers: Words of the execution providers that are searched, such as ``cpu`` and
            ``openvino``; all that can be used on this machine if empty.
        max_error: Largest relative L2 error of an output; of a decoder, by how much its perplexity
            may rise. None means 0.05, of a decoder 0.02, and no limit where there is a `metric`.
        metric: Rates answers: a name, or ``module:function``, called with outputs, references and
            inputs (a list each, of samples that map names to arrays); returns a number that is
            better the higher it is.
        max_drop: By how much the metric may fall below that of the unoptimised model; 0.01 if None.
        max_memory_mib: The most memory that a session may add at its peak.
        max_held_memory_mib: Most memory that the process may hold after all runs, above that before
            the session; of the final comparison the range in which another process lies keeps it.
        prefer: What decides between the members of the Pareto front.
        seed: Random seed.
        wait: Whether to wait for another study on the same cores to end, instead of refusing.
    """

    out: Path | None = None
    trials: int = 100
    timeout_s: float | None = None
    space: str = DEFAULT_SPACE
    providers: tuple[str, ...] = ()
    max_error: float | None = None
    metric: str | None = None
    max_drop: float | None = None
    max_memory_mib: float | None = None
    max_held_memory_mib: float | None = None
    prefer: str | None = None
    seed: int = 0
    wait: bool = False

    def check(self) -> None:
        """Refuses values that no study can work with.

        Raises:
            RequestError: there is one; the message names the option.
        """
        if self.trials < 1:
            raise RequestError(f"--trials must be at least 1, not {self.trials}")
        _check_positive("--timeout", self.timeout_s, " s")
        _check_positive("--max-memory", self.max_memory_mib, " MiB")
        _check_positive("--max-held-memory", self.max_held_memory_mib, " MiB")
        _check_positive("--max-error", self.max_error)
        if self.max_drop is not None and not 0 <= self.max_drop < math.inf:
            raise RequestError(f"--max-drop must be at least 0, not {self.max_drop:g}")
        if not 0 <= self.seed <= _LARGEST_SEED:
            raise RequestError(
                f"seed must be at least 0 and at most {_LARGEST_SEED}, not {self.seed}"
            )


@dataclass(frozen=True, kw_only=True)
class StudyOptions(CommonOptions):
    """The options of a study of one model, beside those of :class:`CommonOptions`.

    Attributes:
        model: The .onnx file, which is never written to.
        fix: Parameters that have one value in all configurations but the default.
        data: Samples: an .npz file or a folder of them; generated if None.
        shapes: Shapes of generated inputs, by the names of the inputs.
        values: Numbers that fill generated inputs, by the names of the inputs.
        generate: Prompts of a decoder, a file with a JSON object in each line; generated if None.
        prompt_tokens: Lengths of generated prompts; 64, at most half of the context, if empty.
        new_tokens: How many tokens follow each prompt; 64, at most half of the context, if None.
        pairs: Outputs of a decoder that are inputs of the next step, by the names of the inputs;
            found in the graph if empty.
        runtimes: Other builds and versions of ONNX Runtime that are searched beside the user's own,
            as ``NAME`` or ``NAME==VERSION``, or ``all``; ``autotune runtimes add`` installs them.
        outputs: Names of the outputs that are asked for; the others are removed from the files of
            all configurations but the default, and are not compared. Empty means all of them.
        batch: Batch sizes that are searched, for a model whose inputs begin with an open batch
            dimension; the default runs the smallest. Empty means that each run has one sample, or
            the sizes of the space.
        max_latency_ms: Longest run; where ``throughput_per_s`` is an objective, the longest 99th
            percentile of the latency under load.
        objectives: What the search optimises, by name: ``latency_ms``, ``peak_memory_mib``,
            ``held_memory_mib``, ``cpu_s`` (CPU seconds of a run), ``load_ms`` (creating the
            session), ``p99_ms``, ``ttft_ms`` and ``peak_device_memory_mib``, which are minimised,
            and ``throughput_per_s`` and ``tokens_per_s``, which are maximised. With several clients
            or batch sizes the default is ``throughput_per_s`` and ``peak_memory_mib``, of a decoder
            ``tokens_per_s`` and ``peak_memory_mib``.
        storage: URL of the storage that keeps the trials, such as ``postgresql://user@host/name``,
            which many machines of one kind may share. None means the variable
            ``AUTOTUNE_STORAGE``, or a SQLite file in the folder if that is not set.
        study_name: The name of the study in its storage; made from the model's name and the study's
            identity if None.
        first: Files with configurations that are measured right after the default: tuned configs,
            or JSON objects of parameters and values.
        early_stop: Whether the search ends when the front has not moved for long and no
            configuration promises more.
        sampler: What proposes configurations in place of the model of effects: ``tpe``, ``nsga2``,
            ``nsga3``, ``gp`` or ``random`` of Optuna, or ``module:class``.
        clients: How many clients run at once, in a closed loop: each begins its next run when the
            last one ended. None means the number in the search space, or one.
    """

    model: Path
    fix: Mapping[str, str] = field(default_factory=dict)
    data: Path | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    generate: Path | None = None
    prompt_tokens: tuple[int, ...] = ()
    new_tokens: int | None = None
    pairs: Mapping[str, str] = field(default_factory=dict)
    runtimes: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    batch: tuple[int, ...] = ()
    max_latency_ms: float | None = None
    objectives: tuple[str, ...] = DEFAULT
    storage: str | None = field(default=None, repr=False)
    study_name: str | None = None
    first: tuple[Path, ...] = ()
    early_stop: bool = True
    sampler: str | None = None
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
        super().check()
        _check_positive("--max-latency", self.max_latency_ms, " ms")
        if problem := batch_problem(self.batch):
            raise RequestError(f"--batch: {problem}")
        if self.clients is not None and (problem := CLIENTS.problem(self.clients)):
            raise RequestError(f"--clients {problem}")
        if self.study_name is not None and not _is_name(self.study_name):
            raise RequestError(
                f"study_name must have 1 to {_LONGEST_NAME} printable characters and no '/'"
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

    def for_model(self, model: Model) -> "tuple[StudyOptions, Model, Workload]":
        """Returns the inputs that are asked for, with options and model as they are for these.

        Raises:
            AutotuneError: the inputs cannot be used.
        """
        workload = workload_for(
            model, self.data, self.shapes, self.seed, self.generation, self.values
        )
        model = without_breaking(model, workload.feeds[0])
        options = self.for_workload(model, workload)
        return options, model, options.asked_of(model, workload)

    def for_workload(self, model: Model, workload: Workload) -> "StudyOptions":
        """Returns the options as they are for a workload.

        Limit, objectives and search space that the user left open are those of decoders for one
        that generates.

        Raises:
            RequestError: an option is for other models.
        """
        if workload.plan is None:
            return self
        for name, value in (
            ("--metric", self.metric),
            ("--batch", self.batch),
            ("--outputs", self.outputs),
        ):
            if value:
                raise RequestError(
                    f"{model.path.name} is a decoder, and {name} is for other models; leave it out"
                )
        if THROUGHPUT in self.objectives:
            raise RequestError(
                f"{model.path.name} is a decoder: its rate is --objective tokens, not {THROUGHPUT}"
            )
        return replace(
            self,
            max_error=_MAX_PERPLEXITY_RISE if self.max_error is None else self.max_error,
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
            max_drop=None if self.metric is None else self._max_drop,
        )
        return latency_limit(limits, objectives, self.max_latency_ms)

    @property
    def _max_drop(self) -> float:
        return _MAX_DROP if self.max_drop is None else self.max_drop

    @property
    def error_limit(self) -> float:
        """Largest error, of a decoder largest rise; infinite where a metric alone decides."""
        if self.max_error is not None:
            return self.max_error
        return _MAX_ERROR if self.metric is None else math.inf

    @property
    def folder(self) -> Path:
        """The folder that the study writes to."""
        return self.out if self.out is not None else folder_for(self.model)

    def resolved(self, ctx: Context) -> "StudyOptions":
        """Returns the options as they were resolved: what another machine would be asked for."""
        return replace(
            self,
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


def folder_for(model: Path) -> Path:
    """Returns the folder to which a study of a model writes where no other one is named."""
    return Path(f"{model.stem}.autotune")


_LISTS = frozenset(item.name for item in fields(StudyOptions) if str(item.type).startswith("tuple"))


def _check_positive(name: str, value: float | None, unit: str = "") -> None:
    """Refuses a limit that nothing keeps."""
    if value is not None and not value > 0:
        raise RequestError(f"{name} must be more than 0, not {value:g}{unit}")


def _is_name(name: str) -> bool:
    """Returns whether a study and its files can have this name."""
    fits = 0 < len(name) <= _LONGEST_NAME and name.isprintable()
    return fits and not set(name) & {"/", "\\"} and not name.startswith(".")


def _typed(name: str, value: Any) -> Any:
    """Returns the value of an option with the type that the record has.

    Raises:
        RequestError: it has another type; the message names the option.
    """
    if name in _LISTS and isinstance(value, str):
        raise RequestError(f"{name} must be a list, such as ['{value}'], not the text '{value}'")
    try:
        converted = _converted(name, value)
        hint = get_type_hints(StudyOptions, include_extras=True)[name]
        if not (isinstance(converted, float) and not math.isfinite(converted)):  # no limit
            read(hint, to_plain(converted), name)
    except FormatError as error:
        raise RequestError(str(error)) from None
    except (TypeError, ValueError, AttributeError):
        raise RequestError(f"{name} cannot be {shown(value)}") from None
    return converted


def _converted(name: str, value: Any) -> Any:
    """Returns the value of an option, with paths for texts and tuples for lists."""
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
