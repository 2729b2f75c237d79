"""The result of a study, as ``front.json`` keeps it and the reports show it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from autotune.deploy.config import Environment, Evidence, Interval, Requires
from autotune.deploy.files import is_file, read_json
from autotune.deploy.options import Value
from autotune.deploy.records import PositiveWhole, from_plain, section, to_plain
from autotune.errors import FormatError, RequestError, StudyError, shown
from autotune.facts.batches import Batching
from autotune.results.parts import Ablation
from autotune.results.process_effect import ProcessEffect
from autotune.search import pareto
from autotune.search.beliefs import Effect
from autotune.search.objective import OBJECTIVES, Values, check_preference, find
from autotune.search.trial import Limits, latency_limit
from autotune.space.candidate import Candidate

FORMAT = "autotune-front/1"
FRONT = "front.json"
ANSWERS = ("exact", "within", "beyond")
"""Kinds of answers: equal but for rounding, within the limit of the study, or beyond it."""

# A result is read whole into memory; one of a study of a thousand trials has a megabyte.
_LARGEST_BYTES = 64 << 20
_LIMITS = frozenset({"max_error", "max_memory_mib", "max_latency_ms"})


@dataclass(frozen=True, kw_only=True)
class Member:
    """One configuration with its evidence: the baseline, or a member of the front.

    Attributes:
        candidate: What differs from the default, by parameter.
        words: The same in words.
        evidence: Its measurements.
        admitted: Whether it keeps the limits of the study.
        gains: By objective, how many times better it is than the default, with the 95 % interval
            of the final comparison. Empty in a result of an earlier version.
    """

    candidate: Mapping[str, Value]
    words: str
    evidence: Evidence
    admitted: bool
    gains: Mapping[str, Interval] = field(default_factory=dict)

    @property
    def trial(self) -> int:
        """The number of its trial."""
        return self.evidence.trial

    @property
    def values(self) -> Values:
        """Its value in each objective that was measured."""
        numbers = {name: getattr(self.evidence, name) for name in OBJECTIVES}
        return {name: value for name, value in numbers.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The best trial of those that give one kind of answers.

    Its numbers are those of the final comparison where a trial of the kind took part, otherwise
    those of the model of effects.

    Attributes:
        answers: ``exact`` (but for rounding), ``within`` the limit, or ``beyond`` it.
        trial: Its number.
        words: Its changes from the default, in words.
        speedup: How many times faster than the default.
        confirmed: Whether these are the numbers of the final comparison.
        peak_memory_mib: Peak memory that its session adds.
        error: Its fidelity error.
    """

    answers: str
    trial: int
    words: str
    speedup: float
    confirmed: bool
    peak_memory_mib: float
    error: float


@dataclass(frozen=True, kw_only=True)
class GraphRow:
    """A graph half under default session options, by the numbers of the search.

    Attributes:
        words: The changes to the model, in words.
        operators: Nodes of its main graph, constants not; None if unknown.
        parameters: Elements of its weights; None if unknown.
        size_bytes: Size of its files; None if unknown.
        latency: Latency over the default's; None where it was not measured.
        memory: Peak memory over the default's; None where it was not measured.
        error: Its fidelity error; None where it was not measured.
        metric: The value of the user's metric; None without one.
        failure: Why it was not measured; empty where it was.
    """

    words: str
    operators: int | None
    parameters: int | None
    size_bytes: int | None
    latency: float | None
    memory: float | None
    error: float | None
    metric: float | None
    failure: str


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """The result of a study.

    Attributes:
        study: Its name in the storage.
        folder: The folder that it wrote to.
        model: The absolute path of the model's file.
        model_sha256: Digest of the model, external data included.
        workload: Signature of the inputs.
        picked: Number of the trial that ``best.json`` holds.
        objectives: Names of the objectives.
        prefer: The word of what decided between the members.
        limits: Limits that members had to keep, by name; None means no limit.
        members: The default first, then the front, best in the first objective first.
        trials: Number of measured trials.
        ended: Why the search ended before its budget was spent; empty if it did not.
        failed: How many of the trials failed, by kind.
        raced: How many of them were given up early, clearly beaten.
        never_quiet: How many of them saw no quiet machine: their numbers are those of a busy one.
        left_out: Parameters that make no sense for this model or machine, with the reason.
        kinds: The best trial of each kind of answers, as far as there is one.
        graphs: The outcome of each graph half; the default first.
        effects: How much each value alone changes the objectives, by the model of the search.
        cache_bytes: Size of the prepared models in the study's folder.
        notes: Remarks on the inputs, a sentence each.
        dimensions: Sizes of the model's named dimensions in the samples.
        requires: The needs of these configurations on any machine.
        environment: The machine and the versions that measured them.
        complete: False where the study was cut short: the numbers are those of the search.
        files: The names of the written files, relative to `folder`.
        others: What else the final comparison measured: configurations that are not on the front,
            or give answers beyond the limit.
        ablation: What each change of the emitted config brings; None where the default was emitted,
            in a study that was cut short before, and where an earlier version wrote the result.
        process: What options of the process do to the default and to the emitted config; None where
            nobody asked.
        batching: The batch sizes; None where each run has one sample.
        clients: How many clients ran at once.
    """

    study: str
    folder: Path
    model: Path
    model_sha256: str
    workload: str
    picked: int
    objectives: tuple[str, ...]
    prefer: str
    limits: Mapping[str, float | None]
    members: tuple[Member, ...]
    trials: int
    ended: str
    failed: Mapping[str, int]
    raced: int
    never_quiet: int
    left_out: Mapping[str, str]
    kinds: tuple[Kind, ...]
    graphs: tuple[GraphRow, ...]
    effects: tuple[Effect, ...]
    cache_bytes: int
    notes: tuple[str, ...]
    dimensions: Mapping[str, int]
    requires: Requires
    environment: Environment
    complete: bool
    files: tuple[str, ...]
    others: tuple[Member, ...] = ()
    ablation: Ablation | None = None
    process: ProcessEffect | None = None
    batching: Batching | None = None
    clients: PositiveWhole = 1

    @property
    def baseline(self) -> Member:
        """The untouched model under default options."""
        return self.members[0]

    @property
    def is_decided(self) -> bool:
        """Whether the default's 99th percentile is known, where that is a limit.

        On a busy machine it may stay unknown; then another final comparison may find a winner.
        """
        return self.limits.get("max_p99_ms") is None or self.baseline.evidence.p99_ms is not None

    @property
    def best(self) -> Member:
        """The member that ``best.json`` holds."""
        return self.member(self.picked)

    def member(self, trial: int) -> Member:
        """Returns the member of that trial.

        Raises:
            StudyError: the trial is no member; the message lists those that are.
        """
        for member in self.members:
            if member.trial == trial:
                return member
        numbers = ", ".join(str(member.trial) for member in self.members)
        raise StudyError(f"trial {trial} is not on the front; its members are {numbers}")

    def to_json(self) -> dict[str, Any]:
        """Returns the record as JSON values."""
        plain = to_plain(self)
        if self.batching is None:
            del plain["batching"]
        return {"format": FORMAT, **plain}

    def batch_of(self, member: Member) -> int:
        """Returns the samples of a run of a member."""
        smallest = 1 if self.batching is None else self.batching.smallest
        return Candidate.of(member.candidate).batch(smallest)

    def dimensions_of(self, member: Member) -> Mapping[str, int]:
        """Returns the sizes of the model's named dimensions in the runs of a member."""
        if self.batching is None:
            return self.dimensions
        return self.batching.dimensions(self.dimensions, self.batch_of(member))

    @classmethod
    def read(cls, folder: Path) -> "StudyResult":
        """Returns the result that a study left in `folder`.

        Raises:
            StudyError: there is none, or it is not one of ours.
        """
        path = folder / FRONT
        if not is_file(path):
            raise StudyError(
                f"{folder} holds no result of a study ({FRONT} is missing); "
                "run `autotune study MODEL` first, or name the folder that it wrote"
            )
        try:
            data = read_json(path, _LARGEST_BYTES)
        except FormatError as error:
            raise StudyError(
                f"cannot read the result {path}: {error}; run the study again"
            ) from None
        if isinstance(data, dict) and data.get("format") != FORMAT:
            raise StudyError(
                f"{path} was written by another version of autotune; run the study again, or "
                "install that version"
            )
        try:
            return cls.from_json(data, folder)
        except FormatError as error:
            raise StudyError(f"{path} is damaged ({error}); run the study again") from None

    @classmethod
    def from_json(cls, data: object, folder: Path) -> "StudyResult":
        """Returns the result that :meth:`to_json` wrote, as one of `folder`.

        Raises:
            FormatError: `data` is no result; the message names the key.
        """
        keys = ["format", *(item.name for item in fields(cls))]
        given = section(data, "", known=keys, required=["format"])
        result = from_plain(cls, {name: item for name, item in given.items() if name != "format"})
        _check(result)
        return replace(result, folder=folder)


def _check(result: StudyResult) -> None:
    """Refuses a result whose parts do not belong together.

    Raises:
        FormatError: there are such parts; the message names them.
    """
    if not result.members:
        raise FormatError("members must hold the default at least")
    try:
        check_preference(result.prefer, find(result.objectives))
        result.member(result.picked)
    except RequestError as error:
        raise FormatError(str(error)) from None
    for member in (*result.members, *result.others):
        Candidate.from_json(member.candidate)
        if missing := set(result.objectives) - member.values.keys():
            raise FormatError(f"trial {member.trial} has no {min(missing)}")
    if len({member.evidence.metric is None for member in result.members}) > 1:
        raise FormatError("some members have a metric, and others have none")
    for kind in result.kinds:
        if kind.answers not in ANSWERS:
            raise FormatError(
                f"answers must be one of {', '.join(ANSWERS)}, not {shown(kind.answers)}"
            )
    if unnamed := _LIMITS - result.limits.keys():
        raise FormatError(f"'limits.{min(unnamed)}' is missing")
    pairs = {(effect.parameter, effect.value, effect.objective) for effect in result.effects}
    for name, value, _ in pairs:
        for objective in result.objectives:
            if (name, value, objective) not in pairs:
                raise FormatError(f"effects lack {objective} for {shown(name)} = {shown(value)}")


def choose_member(
    result: StudyResult,
    *,
    prefer: str | None,
    max_memory_mib: float | None,
    max_latency_ms: float | None,
) -> Member:
    """Returns the member that keeps these limits and suits the preference (the study's if None).

    Raises:
        RequestError: there is no such preference.
        StudyError: no member keeps the limits; the message says how near they come.
    """
    objectives = find(result.objectives)
    chosen = prefer or result.prefer
    check_preference(chosen, objectives)

    def admits(member: Member) -> bool:
        return limits.admit(member.values)

    limits = latency_limit(
        Limits(max_error=math.inf, max_memory_mib=max_memory_mib), result.objectives, max_latency_ms
    )
    fitting = [member for member in result.members if admits(member)]
    if not fitting:
        bounded = "latency_ms" if limits.max_p99_ms is None else "p99_ms"
        times_ms = [member.values[bounded] for member in result.members if bounded in member.values]
        fastest = min(times_ms, default=math.inf)
        leanest = min(member.evidence.peak_memory_mib for member in result.members)
        raise StudyError(
            f"no member of the front keeps these limits: the fastest takes {fastest:.4g} ms, "
            f"the leanest {leanest:.1f} MiB"
        )
    return pareto.pick(fitting, lambda member: member.values, objectives, chosen)
