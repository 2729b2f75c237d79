"""The result of an application's study, as its front.json keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.applications.confirm import Confirmed, Today
from autotune.deploy.files import read_json
from autotune.deploy.options import Value
from autotune.deploy.records import Amount, Json, Text, Whole, from_plain, to_plain
from autotune.errors import FormatError, StudyError

FRONT = "application-front.json"
"""The file of the result, in the folder of the tuned application."""

FORMAT = "autotune-application-front/1"
_LARGEST_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class SessionResult:
    """What became of a session.

    Attributes:
        name: Its name.
        share: Its share of the recorded time of all calls.
        study: The folder of its model's own study; empty where there was none.
        changes: What is opened in its place, in words; empty where it stays as it is.
        reason: Why it could not be tuned; empty where it could.
    """

    name: Text
    share: Amount
    study: Text
    changes: Text
    reason: Text


@dataclass(frozen=True, kw_only=True)
class SearchedPoint:
    """A point of the joint search: time over today's, and memory in MiB; None where it failed."""

    choices: Mapping[str, Value]
    ratio: float | None
    peak_mib: float | None
    held_mib: float | None
    failure: Text


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
