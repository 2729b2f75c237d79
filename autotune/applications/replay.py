"""Replays an application's calls with other sessions, in turns with those of today."""

import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from autotune.applications.replies import OpenedSessions, Replayed, Speed
from autotune.applications.schedule import Schedule
from autotune.deploy.options import Value
from autotune.deploy.records import Json, Positive, Several
from autotune.deploy.session import SessionConfig
from autotune.errors import CannotMeasureError
from autotune.process import scratch
from autotune.process.child import Child, ChildFailure, memory_limit

CHILD = "autotune.applications.replay_child"
"""The module whose process opens sessions and replays calls."""

_OPEN_LIMIT_S = 600.0
_REPLAY_LIMIT = 20.0
_LEAST_LIMIT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How one session of the replay is opened.

    Attributes:
        model: The model's file.
        session: How it is opened.
        cache: Where its provider keeps what it compiles; None keeps nothing.
    """

    model: Path
    session: SessionConfig
    cache: Path | None = None

    def to_json(self) -> Json:
        """Returns the message to the child."""
        return {
            "model": str(self.model.absolute()),
            "session": self.session.to_json(),
            "cache": None if self.cache is None else str(self.cache.resolve()),
        }


@dataclass(frozen=True, kw_only=True)
class Arrangement:
    """All sessions of an application in one process.

    Attributes:
        openings: How each is opened, by its name.
        pool_threads: Threads of the pool that they share; None where each has its own.
        choices: The point of the joint search that it stands for; None for another one.
    """

    openings: Mapping[str, Opening]
    pool_threads: int | None = None
    choices: Mapping[str, Value] | None = None


@dataclass(frozen=True, kw_only=True)
class Played:
    """A measurement of an arrangement beside today's.

    Attributes:
        ratios: Time of a replay over the mean of today's replays around it, turn by turn.
        seconds: Median time of a replay.
        cpu_s: Median CPU time of a replay.
        peak_mib: The most memory that its sessions added.
        held_mib: The memory that they held at the end.
        load_s: Time to open them.
    """

    ratios: Several[Positive]
    seconds: float
    cpu_s: float
    peak_mib: float
    held_mib: float
    load_s: float

    @property
    def ratio(self) -> float:
        """Time of a replay in those of today's."""
        return statistics.median(self.ratios)


class Replays(Protocol):
    """What measures arrangements: :class:`ReplayMeasurer`, what keeps its numbers, and fakes."""

    @property
    def baseline(self) -> Replayed:
        """Today's numbers during the search."""
        ...

    def renew(self) -> Replayed:
        """Starts the process with today's sessions again; returns its second replay."""
        ...

    def measure(self, arrangement: Arrangement, turns: int, give_up: float = 0.0) -> Played | str:
        """Returns the measurement of an arrangement, or why it cannot be used."""
        ...

    def close(self) -> None:
        """Ends the processes."""
        ...


class ReplayMeasurer:
    """Measures arrangements against today's, each in a fresh process.

    Args:
        schedule: What is replayed.
        today: The sessions as the application opens them.
        start: Starts a child; tests bring their own.
    """

    def __init__(
        self, schedule: Schedule, today: Arrangement, start: Callable[[], Child] | None = None
    ) -> None:
        self._schedule = schedule
        self._today = today
        self._start = start or (lambda: Child(CHILD, memory_limit(), measures=True))
        self._folder = tempfile.TemporaryDirectory(dir=scratch.root())
        self._feeds = Path(self._folder.name) / "feeds.npz"
        schedule.save(self._feeds)
        self._limit_s = max(_LEAST_LIMIT_S, _REPLAY_LIMIT * schedule.recorded_s)
        self._reference: Child | None = None
        try:
            with self._start() as child:
                self._blocks_per_s = child.request({"do": "speed"}, 60, Speed).blocks_per_s
            self.baseline: Replayed = self._start_reference()
        except ChildFailure as failure:
            self.close()
            raise _cannot_replay(failure) from None
        except BaseException:
            self.close()
            raise

    def _start_reference(self) -> Replayed:
        """Starts the process with today's sessions; returns its second replay.

        Raises:
            CannotMeasureError: they cannot be opened or replayed.
        """
        self._reference = self._start()
        try:
            self._open(self._reference, self._today)
            self._replay_today()
            return self._replay_today()
        except ChildFailure as failure:
            raise _cannot_replay(failure) from None

    def renew(self) -> Replayed:
        """Starts the process with today's sessions again; returns its second replay."""
        assert self._reference is not None
        self._reference.stop()
        return self._start_reference()

    def measure(self, arrangement: Arrangement, turns: int, give_up: float = 0.0) -> Played | str:
        """Returns the measurement of an arrangement, or why it cannot be used.

        Args:
            arrangement: The sessions.
            turns: How many replays it has in turns with today's.
            give_up: A ratio above which the first turn is the last; 0 for none.
        """
        assert self._reference is not None
        with self._start() as child:
            try:
                opened = self._open(child, arrangement)
                for session, interface in zip(
                    self._schedule.sessions, opened.interfaces, strict=True
                ):
                    if not interface.shows(session.opened.interface):
                        return f"{session.name} would show the application another interface"
                self._replay(child)
                before = self._replay_today()
                times: list[Replayed] = []
                ratios: list[float] = []
                for _ in range(turns):
                    times.append(self._replay(child))
                    after = self._replay_today()
                    ratios.append(times[-1].seconds / ((before.seconds + after.seconds) / 2))
                    before = after
                    if give_up and ratios[-1] > give_up:
                        break
            except ChildFailure as failure:
                if not self._reference.is_running():
                    self._start_reference()
                return f"{failure.kind}: {failure.message}"
        return Played(
            ratios=tuple(ratios),
            seconds=statistics.median(item.seconds for item in times),
            cpu_s=statistics.median(item.cpu_s for item in times),
            peak_mib=times[-1].peak_mib,
            held_mib=times[-1].held_mib,
            load_s=opened.load_s,
        )

    def close(self) -> None:
        """Ends the processes and removes the inputs."""
        if self._reference is not None:
            self._reference.stop()
            self._reference = None
        self._folder.cleanup()

    def _open(self, child: Child, arrangement: Arrangement) -> OpenedSessions:
        return open_sessions(child, self._schedule, arrangement, self._feeds, self._blocks_per_s)

    def _replay_today(self) -> Replayed:
        assert self._reference is not None
        return self._replay(self._reference)

    def _replay(self, child: Child) -> Replayed:
        """Thaws a child whose sessions are open for one replay."""
        child.thaw()
        reply = child.request({"do": "replay"}, self._limit_s, Replayed)
        child.freeze()
        return reply


def open_sessions(
    child: Child,
    schedule: Schedule,
    arrangement: Arrangement,
    feeds: Path,
    blocks_per_s: float = 0.0,
) -> OpenedSessions:
    """Opens all sessions of an arrangement in a child, which gets the calls that it will make.

    Args:
        child: The child.
        schedule: The calls.
        arrangement: The sessions.
        feeds: The file with the inputs of the calls.
        blocks_per_s: How much a thread works in a second; 0 where there is no work between calls.

    Raises:
        ChildFailure: they cannot be opened.
    """
    openings = [arrangement.openings[session.name] for session in schedule.sessions]
    message = {
        "do": "open",
        "sessions": [opening.to_json() for opening in openings],
        "calls": [asdict(call) for call in schedule.calls],
        "feeds": str(feeds),
        "blocks_per_s": blocks_per_s,
        "pool_threads": arrangement.pool_threads,
    }
    opened = child.request(message, _OPEN_LIMIT_S, OpenedSessions)
    if len(opened.interfaces) != len(openings):
        raise ChildFailure("protocol", "another number of sessions")
    return opened


def _cannot_replay(failure: ChildFailure) -> CannotMeasureError:
    return CannotMeasureError(
        f"the recorded calls cannot be replayed ({failure.kind}): {failure.message}"
    )
