"""What was measured of all sessions together, on the disk: an interrupted study goes on from it."""

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune import __version__
from autotune.applications.replay import Arrangement, Played, Replays
from autotune.applications.replies import Replayed
from autotune.applications.schedule import Schedule
from autotune.deploy.cpu import cpu_model, usable_cores
from autotune.deploy.options import Value
from autotune.deploy.records import Text, from_plain, to_plain
from autotune.errors import FormatError
from autotune.facts.feeds import contents
from autotune.facts.runtime import runtime
from autotune.measure.leak import Leak
from autotune.storage.spool import Spool

_NAME = "together"
_SEARCH = "search"


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A line of the record.

    Attributes:
        conditions: Digest of what was replayed, and where.
        stage: ``search``, or a round at the end.
        arrangement: Digest of the sessions; empty for today's.
        choices: The point of the joint search that they stand for.
        today: Today's numbers, where these are meant.
        played: The measurement; None where it failed.
        failure: Why it failed.
    """

    conditions: Text
    stage: Text
    arrangement: Text
    choices: Mapping[Text, Value]
    today: Replayed | None = None
    played: Played | None = None
    failure: Text = ""


class KeptReplays:
    """Measures arrangements, and keeps each measurement on the disk before it is used.

    What an earlier run of the same study measured under equal conditions is not measured again.

    Args:
        folder: The folder of the tuned application.
        schedule: What is replayed.
        today: The sessions as the application opens them.
        start: Makes what replays them; called when the first new measurement is needed.
    """

    def __init__(
        self,
        folder: Path,
        schedule: Schedule,
        today: Arrangement,
        start: Callable[[Schedule, Arrangement], Replays],
    ) -> None:
        self._start = functools.partial(start, schedule, today)
        self._spool = Spool(folder, _NAME)
        self._conditions = _conditions(schedule, today)
        self._entries = {(item.stage, item.arrangement): item for item in self._read()}
        self._replays: Replays | None = None
        self._stage = _SEARCH
        self._rounds = 0
        self._is_renewed = True

    @property
    def points(self) -> list[Mapping[str, Value]]:
        """The points of the joint search that were measured before, in their order."""
        return [
            item.choices
            for item in self._entries.values()
            if item.stage == _SEARCH and item.arrangement
        ]

    @property
    def baseline(self) -> Replayed:
        """Today's numbers during the search."""
        return self._today(lambda replays: replays.baseline)

    @property
    def growth(self) -> Leak | None:
        """How the memory of today's sessions grows, if this run has measured enough to tell."""
        return None if self._replays is None else self._replays.growth

    def renew(self) -> Replayed:
        """Begins the next round at the end; returns today's numbers in it."""
        self._rounds += 1
        self._stage = f"round {self._rounds}"
        self._is_renewed = False
        return self._today(lambda _: self._renewed())

    def measure(self, arrangement: Arrangement, turns: int, give_up: float = 0.0) -> Played | str:
        """Returns the measurement of an arrangement, or why it cannot be used."""
        key = digest(arrangement)
        entry = self._entries.get((self._stage, key))
        if entry is None:
            if not self._is_renewed:
                self._renewed()
            played = self._running.measure(arrangement, turns, give_up)
            failure = played if isinstance(played, str) else ""
            entry = self._keep(
                arrangement=key,
                choices=arrangement.choices,
                played=None if isinstance(played, str) else played,
                failure=failure,
            )
        return entry.failure if entry.played is None else entry.played

    def close(self) -> None:
        """Ends the processes."""
        if self._replays is not None:
            self._replays.close()

    @property
    def _running(self) -> Replays:
        if self._replays is None:
            self._spool.check_room()
            self._replays = self._start()
        return self._replays

    def _renewed(self) -> Replayed:
        """Starts the process with today's sessions again, which each round does."""
        self._is_renewed = True
        return self._running.renew()

    def _today(self, measured: Callable[[Replays], Replayed]) -> Replayed:
        entry = self._entries.get((self._stage, ""))
        if entry is None or entry.today is None:
            entry = self._keep(arrangement="", choices={}, today=measured(self._running))
        assert entry.today is not None
        return entry.today

    def _keep(
        self,
        *,
        arrangement: str,
        choices: Mapping[str, Value],
        today: Replayed | None = None,
        played: Played | None = None,
        failure: str = "",
    ) -> _Entry:
        entry = _Entry(
            conditions=self._conditions,
            stage=self._stage,
            arrangement=arrangement,
            choices=choices,
            today=today,
            played=played,
            failure=failure,
        )
        self._spool.keep(to_plain(entry))
        self._entries[(entry.stage, entry.arrangement)] = entry
        return entry

    def _read(self) -> Iterator[_Entry]:
        """Yields the lines that were measured under these conditions; others are passed over."""
        for data in self._spool.entries():
            try:
                entry = from_plain(_Entry, data)
            except FormatError:
                continue
            if entry.conditions == self._conditions:
                yield entry


def digest(arrangement: Arrangement) -> str:
    """Returns a text that equal arrangements share, whatever point they stand for."""
    openings = {name: opening.to_json() for name, opening in arrangement.openings.items()}
    return _sha256([openings, arrangement.pool_threads])


def _conditions(schedule: Schedule, today: Arrangement) -> str:
    """Returns a digest of all on which a measurement depends beside its arrangement."""
    feeds = hashlib.sha256()
    for part in contents(schedule.feeds):
        feeds.update(part)
    return _sha256(
        [
            [(session.name, session.opened.sha256) for session in schedule.sessions],
            [asdict(call) for call in schedule.calls],
            feeds.hexdigest(),
            digest(today),
            [__version__, runtime().version, cpu_model(), usable_cores()],
        ]
    )


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
