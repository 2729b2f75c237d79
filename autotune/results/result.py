"""The result of a study, as ``front.json`` keeps it and the reports show it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from autotune.deploy.config import Evidence
from autotune.deploy.files import is_file, read_json
from autotune.deploy.kinds import STUDY, mistaken
from autotune.deploy.loaded import Environment
from autotune.deploy.options import Value
from autotune.deploy.records import PositiveWhole, body, from_plain, to_plain
from autotune.errors import FormatError, RequestError, StudyError, shown
from autotune.facts.batches import Batching
from autotune.measure.judging import Judgement
from autotune.results.leave_one_out import Simplification
from autotune.search import pareto
from autotune.search.effects import Effect
from autotune.search.finalists import EXACT_ERROR
from autotune.search.objective import check_preference, find
from autotune.search.trial import Limits, latency_limit
from autotune.space.configuration import Configuration

FORMAT = "autotune-front/1"
FRONT = "front.json"

ANSWERS = ("exact", "within", "beyond")
"""Kinds of answers: equal but for rounding, within the limit of the study, or beyond it."""

LARGEST_BYTES = 64 << 20
"""A result is read whole into memory; one of a study of a thousand trials has a megabyte."""

_LIMITS = frozenset(item.name for item in fields(Limits))


@dataclass(frozen=True, kw_only=True)
class Member:
    """One configuration with its evidence: the baseline, or a member of the front.

    Attributes:
        configuration: What differs from the default, by parameter.
        words: The same in words.
        evidence: What was measured of it beside the default.
        admitted: Whether it keeps the limits.
        files_sha256: Digest of the model's files that were measured; None where they were not made
            in this environment.
    """

    configuration: Mapping[str, Value]
    words: str
    evidence: Evidence
    admitted: bool
    files_sha256: str | None = None

    @property
    def trial(self) -> int:
        """The number of its trial."""
        return self.evidence.trial


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """The result of a study.

    Attributes:
        model: The absolute path of the model's file.
        model_sha256: Digest of the model, external data included.
        picked: Number of the trial that ``best.json`` holds.
        prefer: The word of what decided between the members.
        limits: Limits that members had to keep, by name; None means no limit.
        members: The default first, then the front, best in the first objective first.
        ended: Why the search ended before its budget was spent; empty if it did not.
        failed: How many of the trials failed, by kind.
        stopped_early: How many of them were given up early, clearly dominated.
        never_undisturbed: How many of them saw no quiet machine: their numbers are those of a busy
            one.
        left_out: Parameters that make no sense for this model or machine, with the reason.
        effects: How much each value alone changes the objectives, by the model of the search.
        cache_bytes: Size of the transformed models in the study's folder.
        notes: Remarks on the inputs, a sentence each.
        warnings: What on the inputs qualifies all numbers, a sentence each.
        complete: False where the study was cut short: the numbers are those of the search.
        files: The names of the written files, relative to `folder`.
        others: What else the final comparison measured: configurations that are not on the front,
            or give answers beyond the limit.
        simplification: What each change of the selected config brings; None where the default was
            selected, and in a study that was cut short before.
        judgements: What all samples show of the selected config, and of those that were selected
            before it and are beyond a limit; empty where there are few samples.
        batching: The batch sizes; None where each run has one sample.
        pairs: What the user names that a decoder feeds back, by the names of the inputs.
        reasons: Why trials failed, each sentence with their number, the most common ones.
        breaking: ONNX Runtime's own optimisations that break the model; all members do without.
        config_sha256: Digest of the ``best.json`` that belongs to it; empty where none is written.
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
    stopped_early: int
    never_undisturbed: int
    left_out: Mapping[str, str]
    effects: tuple[Effect, ...]
    cache_bytes: int
    notes: tuple[str, ...]
    dimensions: Mapping[str, int]
    environment: Environment
    complete: bool
    files: tuple[str, ...]
    others: tuple[Member, ...]
    simplification: Simplification | None
    judgements: tuple[Judgement, ...]
    batching: Batching | None
    clients: PositiveWhole
    pairs: Mapping[str, str] = field(default_factory=dict)
    breaking: tuple[str, ...] = ()
    reasons: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    config_sha256: str = ""

    @property
    def error_data(self) -> str:
        """``"user"`` or ``"generated"``: the inputs on which errors were measured."""
        return self.baseline.evidence.error_data

    @property
    def baseline(self) -> Member:
        """The untouched model under default options."""
        return self.members[0]

    @property
    def is_decided(self) -> bool:
        """Whether the default's 99th percentile is known, where that is a limit.

        On a busy machine it may stay unknown; then another final comparison may find a winner.
        """
        return self.limits["max_p99_ms"] is None or self.baseline.evidence.p99_ms is not None

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

    @property
    def kinds(self) -> Mapping[str, Member]:
        """The best in the first objective of each kind of answers that was compared, by the kind.

        The kinds are ``exact`` (but for rounding), ``within`` the limit and ``beyond`` it. One with
        a larger error is left out unless it is better.
        """
        first = find(self.objectives)[0]
        compared = (*self.members, *self.others)
        best: dict[str, Member] = {}
        for answers in ANSWERS:
            own = min(
                (member for member in compared if self._answers(member) == answers),
                key=lambda member: first.cost(member.evidence.values[first.name]),
                default=None,
            )
            if own is not None and all(
                first.is_better(own.evidence.values[first.name], other.evidence.values[first.name])
                for other in best.values()
            ):
                best[answers] = own
        return best

    def _answers(self, member: Member) -> str:
        """Returns the kind of a member's answers."""
        own, default = member.evidence, self.baseline.evidence
        if own.error < EXACT_ERROR:
            return "exact"
        max_error, max_drop = self.limits["max_error"], self.limits["max_drop"]
        drop = (default.metric or 0.0) - (own.metric or 0.0)
        is_beyond = (max_error is not None and own.error > max_error) or (
            max_drop is not None and drop > max_drop
        )
        return "beyond" if is_beyond and not member.admitted else "within"

    def to_json(self) -> dict[str, Any]:
        """Returns the record as JSON values."""
        return {"format": FORMAT, **to_plain(self)}

    def batch_of(self, member: Member) -> int:
        """Returns the samples of a run of a member."""
        smallest = 1 if self.batching is None else self.batching.smallest
        return Configuration.of(member.configuration).batch(smallest)

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
                mistaken(folder, STUDY)
                or f"{folder} holds no result of a study ({FRONT} is missing); "
                "run `autotune study MODEL` first, or name the folder that it wrote"
            )
        try:
            data = read_json(path, LARGEST_BYTES)
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
    def found_in(cls, folder: Path) -> "StudyResult | None":
        """Returns the result in `folder`; None where there is none that can be read."""
        try:
            return cls.read(folder)
        except StudyError:
            return None

    @classmethod
    def from_json(cls, data: object, folder: Path) -> "StudyResult":
        """Returns the result that :meth:`to_json` wrote, as one of `folder`.

        Raises:
            FormatError: `data` is no result; the message names the key.
        """
        result = from_plain(cls, body(data, FORMAT))
        _check(result)
        return replace(result, folder=folder)


def _check(result: StudyResult) -> None:
    """Refuses a result whose parts do not belong together."""
    if not result.members:
        raise FormatError("members must hold the default at least")
    try:
        check_preference(result.prefer, find(result.objectives))
        result.member(result.picked)
    except RequestError as error:
        raise FormatError(str(error)) from None
    for member in (*result.members, *result.others):
        Configuration.from_json(member.configuration)
        if missing := set(result.objectives) - member.evidence.values.keys():
            raise FormatError(f"trial {member.trial} has no {min(missing)}")
    if len({member.evidence.metric is None for member in result.members}) > 1:
        raise FormatError("some members have a metric, and others have none")
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
    max_held_memory_mib: float | None = None,
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
        return limits.admit(member.evidence.promised)

    memory = Limits(
        max_error=math.inf, max_memory_mib=max_memory_mib, max_held_memory_mib=max_held_memory_mib
    )
    limits = latency_limit(memory, result.objectives, max_latency_ms)
    fitting = [
        member
        for member in result.members
        # a member whose final comparison broke a limit of the study is not what the user asked for
        if admits(member) and (member.admitted or member is result.baseline)
    ]
    if not fitting:
        bounded = "latency_ms" if limits.max_p99_ms is None else "p99_ms"
        values = [member.evidence.values for member in result.members]
        fastest = min((own[bounded] for own in values if bounded in own), default=math.inf)
        leanest = min(member.evidence.peak_memory_mib for member in result.members)
        held = ""
        if max_held_memory_mib is not None:
            held_mib = min(
                m.evidence.promised.get("held_memory_mib", math.inf) for m in result.members
            )
            held = f", and the one that holds least up to {held_mib:.1f} MiB"
        raise StudyError(
            f"no member of the front keeps these limits: the fastest takes {fastest:.4g} ms, "
            f"the leanest {leanest:.1f} MiB{held}"
        )
    return pareto.pick(fitting, lambda member: member.evidence.values, objectives, chosen)
