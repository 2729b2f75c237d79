"""What a study found, as it is kept in ``front.json`` and shown."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from autotune.deploy.config import Environment, Evidence, Requires
from autotune.deploy.options import Value
from autotune.deploy.records import from_plain, section, to_plain
from autotune.errors import FormatError, StudyError
from autotune.search import pareto
from autotune.search.effects import Effect
from autotune.search.objective import OBJECTIVES, Values, check_preference, find
from autotune.search.trial import Limits
from autotune.space.candidate import Candidate

FORMAT = "autotune-front/1"
FRONT = "front.json"


@dataclass(frozen=True, kw_only=True)
class Member:
    """One configuration with its evidence: the baseline, or a member of the front.

    Attributes:
        candidate: What differs from the default, by parameter.
        words: The same for a person to read.
        evidence: What was measured of it.
        admitted: Whether it keeps the limits of the study.
    """

    candidate: Mapping[str, Value]
    words: str
    evidence: Evidence
    admitted: bool

    @property
    def trial(self) -> int:
        """The number of its trial."""
        return self.evidence.trial

    @property
    def values(self) -> Values:
        """Its value in each objective that was measured."""
        known = {name: getattr(self.evidence, name) for name in OBJECTIVES}
        return {name: value for name, value in known.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """The best trial of those that give one kind of answers.

    By the run-off where one of them took part, else by what the model of effects believes.

    Attributes:
        answers: ``exact`` (but for rounding), ``within`` the limit, or ``beyond`` it.
        trial: Its number.
        words: What it changes.
        speedup: How many times faster than the default.
        confirmed: Whether these are the run-off's numbers.
        peak_memory_mib: What its session adds.
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
        words: What was done to the model.
        operators: Nodes of its main graph; None where nobody looked.
        parameters: Elements of its initializers; likewise.
        size_bytes: Of its files.
        latency: Over the default's; None where it was not measured.
        memory: Likewise.
        error: Its fidelity error; None likewise.
        metric: What the user's own metric says; None without one.
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
    """What a study found.

    Attributes:
        study: Its name in the storage.
        folder: Where everything was written.
        model: The model's file as it was named, absolute.
        model_sha256: Its digest, external data included.
        workload: Signature of the inputs.
        picked: Number of the trial that ``best.json`` holds.
        objectives: Names of what was made small.
        prefer: What decided between the members.
        limits: Limits that members had to keep, by name; None means no limit.
        members: The baseline first, then the front, fastest first.
        trials: Trials measured.
        ended: Why the search ended before its budget; empty where it did not.
        failed: How many of them failed, by kind.
        raced: How many of them were given up early, clearly beaten.
        never_quiet: How many of them saw no quiet machine: their numbers are those of a busy one.
        left_out: Parameters that this model or machine has no use for, with the reason.
        kinds: The best trial of each kind of answers, as far as there is one.
        graphs: What each graph half came to; the default first.
        effects: What each value is worth by itself, by the model of the search.
        cache_bytes: What the prepared models in the study's folder hold.
        notes: What the reader has to know of the inputs.
        dimensions: Sizes of the model's named dimensions in the samples.
        requires: What a machine needs for these configurations.
        environment: Where they were measured.
        complete: False where the study was cut short: the numbers are those of the search.
        files: What was written, by name, relative to `folder`.
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

    @property
    def baseline(self) -> Member:
        """The untouched model under default options."""
        return self.members[0]

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
        return {"format": FORMAT, **to_plain(self)}

    @classmethod
    def read(cls, folder: Path) -> "StudyResult":
        """Returns the result that a study left in `folder`.

        Raises:
            StudyError: there is none, or it is not one of ours.
        """
        path = folder / FRONT
        if not path.is_file():
            raise StudyError(
                f"{folder} holds no result of a study ({FRONT} is missing); "
                "run `autotune study MODEL` first, or name the folder that it wrote"
            )
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise StudyError(f"{path} is damaged ({error}); run the study again") from None
        if isinstance(data, dict) and data.get("format") != FORMAT:
            raise StudyError(f"{path} was written by another version of autotune")
        try:
            return cls.from_json(data, folder)
        except FormatError as error:
            raise StudyError(f"{path} is damaged ({error}); run the study again") from None

    @classmethod
    def from_json(cls, data: object, folder: Path) -> "StudyResult":
        """Returns the result that :meth:`to_json` gave, as one of `folder`.

        Raises:
            FormatError: it gave no such thing; the message names the key.
        """
        names = [item.name for item in fields(cls)]
        known = ["format", *names]
        given = section(data, "", known=known, required=known)
        found = from_plain(cls, {name: given[name] for name in names})
        for member in found.members:
            Candidate.from_json(member.candidate)
        if not found.members:
            raise FormatError("members must hold the baseline at least")
        return replace(found, folder=folder)


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
        told = member.evidence
        return limits.admit(told.latency_ms, told.peak_memory_mib, 0.0)

    limits = Limits(
        max_error=math.inf, max_memory_mib=max_memory_mib, max_latency_ms=max_latency_ms
    )
    fitting = [member for member in result.members if admits(member)]
    if not fitting:
        fastest = min(member.evidence.latency_ms for member in result.members)
        leanest = min(member.evidence.peak_memory_mib for member in result.members)
        raise StudyError(
            f"no member of the front keeps these limits: the fastest takes {fastest:.4g} ms, "
            f"the leanest {leanest:.1f} MiB"
        )
    return pareto.pick(fitting, lambda member: member.values, objectives, chosen)
