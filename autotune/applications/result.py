"""The result of an application's study, as its front.json keeps it."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.applications.confirm import Confirmed, MemoryLimits, Today
from autotune.applications.joint import JointTrial, choices_in_words
from autotune.deploy.files import is_file, read_json
from autotune.deploy.passed import Passed
from autotune.deploy.records import Amount, Json, Text, Whole, body, from_plain, to_plain
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
        passed: What the application passes to it.
        calls: How many calls were recorded.
        shapes: The shapes with most time, at most :data:`MOST_SHAPES`.
        shape_count: How many shapes there were.
    """

    name: Text
    share: Amount
    study: Text
    changes: Text
    reason: Text
    passed: Passed
    calls: Whole
    shapes: tuple[ShapeResult, ...]
    shape_count: Whole


@dataclass(frozen=True, kw_only=True)
class ApplicationResult:
    """The result of an application's study.

    Attributes:
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

    recording: Text
    folder: Text
    replayed_calls: Whole
    recorded_s: Amount
    today: Today
    confirmed: tuple[Confirmed, ...]
    selected: int | None
    sessions: tuple[SessionResult, ...]
    searched: tuple[JointTrial, ...]
    notes: tuple[Text, ...]
    prefer: Text
    limits: MemoryLimits
    point_count: Whole
    base_mib: Amount

    @property
    def measured(self) -> list[JointTrial]:
        """The points of the joint search that did not fail."""
        return [point for point in self.searched if point.played is not None]

    @property
    def front(self) -> list[JointTrial]:
        """Points of the joint search that no other is ahead of in time, peak and held memory."""

        def is_behind(mine: JointTrial, its: JointTrial) -> bool:
            return mine.costs != its.costs and all(map(operator.ge, mine.costs, its.costs))

        measured = self.measured
        return [own for own in measured if not any(is_behind(own, other) for other in measured)]

    @property
    def best(self) -> Confirmed | None:
        """What was written; None where today's stays."""
        return None if self.selected is None else self.confirmed[self.selected]

    def words(self, point: JointTrial | Confirmed) -> str:
        """Returns a point in words; none for ONNX Runtime's defaults."""
        names = [session.name for session in self.sessions]
        return "" if point.choices is None else choices_in_words(point.choices, names)

    def to_json(self) -> Json:
        """Returns the result as JSON values."""
        return {"format": FORMAT, **to_plain(self)}

    @classmethod
    def read(cls, folder: Path) -> "ApplicationResult":
        """Returns the result in the folder of a tuned application.

        Raises:
            StudyError: there is none, or it breaks the schema.
        """
        try:
            result = from_plain(cls, body(read_json(folder / FRONT, _LARGEST_BYTES), FORMAT))
        except FormatError as error:
            raise StudyError(f"cannot read {folder / FRONT}: {error}") from None
        if result.selected is not None and not 0 <= result.selected < len(result.confirmed):
            raise StudyError(f"{folder / FRONT} selects what it does not hold")
        return result
