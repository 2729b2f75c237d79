"""The result of an application's study, as its front.json keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.applications.confirm import Confirmed, MemoryLimits, Today
from autotune.deploy.files import is_file, read_json
from autotune.deploy.options import Value
from autotune.deploy.passed import Passed
from autotune.deploy.records import Amount, Json, Text, Whole, from_plain, to_plain
from autotune.errors import FormatError, StudyError

FRONT = "application-front.json"
"""The file of the result, in the folder of the tuned application."""

FORMAT = "autotune-application-front/1"
_LARGEST_BYTES = 64 << 20

MOST_SHAPES = 20
"""As many shapes of a session are kept in a result."""


def has_result(folder: Path) -> bool:
    """Returns whether a folder holds the result of an application's study."""
    return is_file(folder / FRONT)


@dataclass(frozen=True, kw_only=True)
class ShapeResult:
    """Calls of a session with inputs of one shape.

    Attributes:
        inputs: The shape of each input.
        calls: How many calls were recorded.
        seconds: The time that they took.
        kept: How many of their inputs were kept.
    """

    inputs: Mapping[str, tuple[Whole, ...]]
    calls: Whole
    seconds: Amount
    kept: Whole


@dataclass(frozen=True, kw_only=True)
class SessionResult:
    """What became of a session.

    Attributes:
        name: Its name.
        share: Its share of the recorded time of all calls.
        study: The folder of its model's own study; empty where there was none.
        changes: What is opened in its place, in words; empty where it stays as it is.
        reason: Why it could not be tuned; empty where it could.
        passed: What the application passes to it; None in results of an earlier version.
        calls: How many calls were recorded.
        shapes: The shapes with most time, at most :data:`MOST_SHAPES`.
        shape_count: How many shapes there were.
    """

    name: Text
    share: Amount
    study: Text
    changes: Text
    reason: Text
    passed: Passed | None = None
    calls: Whole = 0
    shapes: tuple[ShapeResult, ...] = ()
    shape_count: Whole = 0


@dataclass(frozen=True, kw_only=True)
class SearchedPoint:
    """A point of the joint search: time over today's, and memory in MiB; None where it failed."""

    choices: Mapping[str, Value]
    ratio: float | None
    peak_mib: float | None
    held_mib: float | None
    failure: Text

    @property
    def costs(self) -> tuple[float, float, float]:
        """Time and memory, as far as they are known."""
        return (self.ratio or 0.0, self.peak_mib or 0.0, self.held_mib or 0.0)


@dataclass(frozen=True, kw_only=True)
class ApplicationResult:
    """The result of an application's study.

    Attributes:
        format: :data:`FORMAT`.
        recording: The folder of the recording.
        folder: The folder of the tuned application.
        replayed_calls: Calls of one replay.
        recorded_s: How long these calls took when they were recorded, with what was between them.
        today: The application as it is.
        confirmed: What was measured beside it in fresh processes.
        selected: Number of the one that was written in `confirmed`; None where today's stays.
        sessions: All sessions.
        searched: The points of the joint search.
        notes: Remarks, a sentence each.
        prefer: What decided: one of ``latency``, ``memory`` and ``balanced``.
        limits: The most memory that all sessions together may add.
        point_count: How many points the joint search could choose from.
        base_mib: What the application held before its first session; 0 where it is not known.
    """

    format: Text
    recording: Text
    folder: Text
    replayed_calls: Whole
    recorded_s: Amount
    today: Today
    confirmed: tuple[Confirmed, ...]
    selected: int | None
    sessions: tuple[SessionResult, ...]
    searched: tuple[SearchedPoint, ...]
    notes: tuple[Text, ...]
    prefer: Text = "latency"
    limits: MemoryLimits = field(default_factory=MemoryLimits)
    point_count: Whole = 0
    base_mib: Amount = 0.0

    @property
    def front(self) -> list[SearchedPoint]:
        """Points of the joint search that no other is ahead of in time, peak and held memory."""

        def is_behind(point: SearchedPoint, other: SearchedPoint) -> bool:
            mine, its = point.costs, other.costs
            return mine != its and all(a >= b for a, b in zip(mine, its, strict=True))

        measured = [point for point in self.searched if point.ratio is not None]
        return [
            point for point in measured if not any(is_behind(point, other) for other in measured)
        ]

    @property
    def best(self) -> Confirmed | None:
        """What was written; None where today's stays."""
        return None if self.selected is None else self.confirmed[self.selected]

    def to_json(self) -> Json:
        """Returns the result as JSON values."""
        data: Json = to_plain(self)
        return data

    @classmethod
    def read(cls, folder: Path) -> "ApplicationResult":
        """Returns the result in the folder of a tuned application.

        Raises:
            StudyError: there is none, or it breaks the schema.
        """
        try:
            result = from_plain(cls, read_json(folder / FRONT, _LARGEST_BYTES))
        except FormatError as error:
            raise StudyError(f"cannot read {folder / FRONT}: {error}") from None
        if result.selected is not None and not 0 <= result.selected < len(result.confirmed):
            raise StudyError(f"{folder / FRONT} selects what it does not hold")
        return result
