"""What is replayed: a stretch of the recorded calls, with inputs, order, threads and overlaps."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.applications.layout import CLOSED, LONG_NS, OPENED
from autotune.applications.recording import Process, RecordedSession, Shape
from autotune.errors import DataError, RequestError
from autotune.facts.feeds import Feed, load_samples, save_samples
from autotune.facts.generated import one_sample
from autotune.facts.model import Model

# Of a long recording this many stretches are looked at.
_STRETCHES = 60
# How long a stretch may have taken. A longer one is taken where a shorter one does not call the
# sessions as the whole does: one page of a reader is no fair choice of its lines.
_LENGTHS_S = (3.0, 6.0, 12.0)
_NEAR = 0.1
_FEWEST_CALLS = 4
_LEAST_SHARE = 0.05
# Brief stretches are replayed more often, until the replays take about this long together.
_REPLAYED_S = 2.0
_MOST_TURNS = 4
_MOST_CALLS = 20_000
_FEEDS_OF_SHAPE = 3
_LARGEST_FEEDS_BYTES = 2 << 30
_WARM_UP = 0.1


class NoInputsError(DataError):
    """A session has no inputs that can be replayed.

    Attributes:
        session: Its name.
    """

    def __init__(self, session: str, reason: DataError) -> None:
        super().__init__(f"its calls cannot be replayed: {reason}")
        self.session = session


@dataclass(frozen=True, kw_only=True)
class ScheduledCall:
    """A call of the schedule.

    Attributes:
        session: Number of its session.
        kind: ``run``, or ``open`` and ``close`` of a session that is opened again and again.
        feed: Number of its inputs.
        outputs: The outputs that it asks for; None for all.
        run_options: Entries of its run options, by name.
        fed: Inputs that are outputs of earlier calls: the number of the call, and of its output.
        thread: Number of its thread.
        after: Number of the last call of another thread that ended before it began; -1 for none.
        work_s: CPU time that the thread spent between its last call and this one.
        pause_s: The rest of the time between them.
    """

    session: int
    feed: int
    thread: int
    after: int
    work_s: float
    pause_s: float
    kind: str = "run"
    outputs: Sequence[str] | None = None
    run_options: Mapping[str, str] = field(default_factory=dict)
    fed: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """A stretch of a recording.

    Attributes:
        sessions: The sessions that are open at one time: one may be there several times.
        calls: Its calls, in the order in which they began.
        feeds: Their inputs.
        recorded_s: How long the stretch took when it was recorded.
        generated: How many shapes have generated inputs, because none were kept.
    """

    sessions: tuple[RecordedSession, ...]
    calls: tuple[ScheduledCall, ...]
    feeds: tuple[Feed, ...]
    recorded_s: float
    generated: int

    @property
    def runs(self) -> int:
        """How many calls it makes, openings and closings left out."""
        return sum(call.kind == "run" for call in self.calls)

    @property
    def turns(self) -> int:
        """How many replays a measurement has: one, or more where they are brief."""
        wanted = math.ceil(_REPLAYED_S / max(self.recorded_s, 1e-3))
        return min(_MOST_TURNS, wanted)

    def save(self, path: Path) -> None:
        """Writes the inputs to an .npz file."""
        save_samples(self.feeds, path)


def schedule_of(
    process: Process,
    models: Mapping[str, Model],
    seed: int = 0,
    lengths_s: Sequence[float] = _LENGTHS_S,
) -> Schedule:
    """Returns a stretch of a process that calls its sessions as the whole does.

    Args:
        process: The process.
        models: The models of the sessions that can be replayed, by the sessions' names.
        seed: For inputs that are generated.
        lengths_s: How long the stretch may have taken: the first fair choice, or the last one.

    Raises:
        RequestError: the process called none of these sessions.
        NoInputsError: one of them cannot be replayed.
    """
    is_known = np.array([session.name in models for session, _ in process.shapes] or [False])
    calls = process.calls[is_known[process.calls["shape"]]] if len(process.calls) else process.calls
    if not len(calls):
        raise RequestError(
            "the recording has no call of a session that can be tuned; record the application "
            "while it works"
        )
    names = {name: number for number, name in enumerate(models)}
    of_name = np.array([names.get(session.name, -1) for session, _ in process.shapes])
    chosen = _fair_stretch(calls, of_name, lengths_s, _starts(process, calls))
    sessions, of_session = _sessions_of(process, models)
    feeds, of_shape, generated = _feeds_of(process, models, chosen, seed)
    steps = _chained(process, _steps(process, chosen, of_session, of_shape), of_session)
    rows = [step.row for step in steps if step.call.kind == "run"]
    if not rows:
        raise RequestError(
            "the recording has no call that can be replayed: all of them are fed what sessions "
            "return that cannot be tuned"
        )
    began_ns = min(int(row["began_ns"]) for row in rows)
    ended_ns = max(int(row["ended_ns"]) for row in rows)
    return Schedule(
        sessions=sessions,
        calls=_calls(steps),
        feeds=tuple(feeds),
        recorded_s=(ended_ns - began_ns) / 1e9,
        generated=generated,
    )


def _sessions_of(
    process: Process, models: Mapping[str, Model]
) -> tuple[tuple[RecordedSession, ...], NDArray[np.int64]]:
    """Returns the sessions that are open at one time, and which of them each shape is of."""
    owners = [
        (session.name, number)
        for (session, _), number in zip(process.shapes, process.numbers, strict=True)
    ]
    sessions = {
        owner: session
        for owner, (session, _) in zip(owners, process.shapes, strict=True)
        if session.name in models
    }
    places = {owner: place for place, owner in enumerate(sessions)}
    return tuple(sessions.values()), np.array([places.get(owner, -1) for owner in owners])


def _starts(process: Process, calls: NDArray[Any]) -> NDArray[np.int64]:
    """Returns where a stretch may begin: at calls that are fed nothing that others returned."""
    starts = np.linspace(_WARM_UP * len(calls), len(calls) - 1, _STRETCHES).astype(int)
    is_first = np.array([not shape.fed for _, shape in process.shapes])
    firsts = np.flatnonzero(is_first[calls["shape"]])
    if len(firsts):
        starts = firsts[np.searchsorted(firsts, starts).clip(max=len(firsts) - 1)]
    return np.unique(starts)


def _fair_stretch(
    calls: NDArray[Any],
    of_session: NDArray[Any],
    lengths_s: Sequence[float],
    starts: NDArray[np.int64],
) -> NDArray[Any]:
    """Returns the shortest stretch in which the sessions that matter are called as in the whole."""
    whole = _shares(calls, of_session)
    wanted = np.where(whole >= _LEAST_SHARE, _FEWEST_CALLS, 0)
    wanted = np.minimum(wanted, _counts(calls, of_session))
    chosen = calls[:1]
    for longest_s in lengths_s:
        chosen = _stretch(calls, of_session, longest_s, starts)
        is_near = np.abs(_shares(chosen, of_session) - whole).sum() <= _NEAR
        if is_near and (_counts(chosen, of_session) >= wanted).all():
            break
    return chosen


def _counts(calls: NDArray[Any], of_session: NDArray[Any]) -> NDArray[np.int64]:
    """Returns how often each session is called."""
    return np.bincount(of_session[calls["shape"]], minlength=int(of_session.max()) + 1)


def _stretch(
    calls: NDArray[Any], of_session: NDArray[Any], longest_s: float, starts: NDArray[np.int64]
) -> NDArray[Any]:
    """Returns successive calls in which the sessions have shares of the time as in the whole."""
    longest_ns = int(longest_s * 1e9)
    last_ns = int(calls["ended_ns"].max())
    if last_ns - int(calls["began_ns"][0]) <= longest_ns and len(calls) <= _MOST_CALLS:
        return calls
    whole = _shares(calls, of_session)
    best, best_distance = calls[:1], np.inf
    for start in starts:
        own = calls[start : start + _MOST_CALLS]
        own = own[own["ended_ns"] - own["began_ns"][0] <= longest_ns]
        if not len(own):
            own = calls[start : start + 1]
        # a short stretch at the end is no better for having the same shares
        missing = 1 - float(own["ended_ns"].max() - own["began_ns"][0]) / longest_ns
        distance = float(np.abs(_shares(own, of_session) - whole).sum()) + max(0.0, missing) / 2
        if distance < best_distance:
            best, best_distance = own, distance
    return best


def _shares(calls: NDArray[Any], of_session: NDArray[Any]) -> NDArray[np.float64]:
    """Returns the share of the time of each session."""
    times = (calls["ended_ns"] - calls["began_ns"]).astype(float)
    sums = np.bincount(of_session[calls["shape"]], times, minlength=int(of_session.max()) + 1)
    return np.asarray(sums / max(1.0, times.sum()))


@dataclass(frozen=True)
class _Step:
    """A row of the recording that is replayed, and the call that it becomes, times left out."""

    row: Any
    call: ScheduledCall


def _steps(
    process: Process,
    chosen: NDArray[Any],
    of_session: NDArray[Any],
    of_shape: Mapping[int, Sequence[int]],
) -> list[_Step]:
    """Returns what is replayed: the calls, and the openings of sessions that do not stay open."""
    seen: dict[int, int] = {}
    steps = []
    for row in chosen:
        place = int(row["shape"])
        turn = seen[place] = seen.get(place, -1) + 1
        feeds = of_shape[place]
        shape = process.shapes[place][1]
        call = ScheduledCall(
            session=int(of_session[place]),
            feed=feeds[turn % len(feeds)],
            outputs=shape.outputs,
            run_options=dict(shape.run_options),
            thread=0,
            after=-1,
            work_s=0.0,
            pause_s=0.0,
        )
        steps.append(_Step(row, call))
    numbers = {process.numbers[place]: int(of_session[place]) for place in seen}
    for row in _events(process, chosen, numbers):
        kind = "open" if row["flags"] == OPENED else "close"
        session = numbers[int(row["shape"])]
        call = ScheduledCall(
            session=session, feed=-1, thread=0, after=-1, work_s=0.0, pause_s=0.0, kind=kind
        )
        steps.append(_Step(row, call))
    return sorted(steps, key=lambda step: int(step.row["began_ns"]))


def _chained(process: Process, steps: Sequence[_Step], of_session: NDArray[Any]) -> Sequence[_Step]:
    """Returns the steps with the calls that feed them.

    A chain that began before the stretch, or in a session that is not replayed, is left out.
    """
    numbers = {own: int(place) for own, place in zip(process.numbers, of_session, strict=True)}
    latest: dict[tuple[int, int], int] = {}  # by thread and session
    kept: list[_Step] = []
    for step in steps:
        if step.call.kind != "run":
            kept.append(step)
            continue
        thread = int(step.row["thread"])
        fed: dict[str, tuple[int, int]] = {}
        wanted = process.shapes[int(step.row["shape"])][1].fed
        for name, item in wanted.items():
            source = latest.get((thread, numbers.get(item.session, -1)))
            if source is None:
                break
            if isinstance(item.place, int):
                fed[name] = source, item.place
            elif item.place in kept[source].call.fed:
                fed[name] = kept[source].call.fed[item.place]
        if fed.keys() == wanted.keys():
            latest[thread, step.call.session] = len(kept)
            kept.append(_Step(step.row, replace(step.call, fed=fed)))
        else:
            latest.pop((thread, step.call.session), None)
    return kept


def _events(
    process: Process, chosen: NDArray[Any], numbers: Mapping[int, int]
) -> list[NDArray[Any]]:
    """Returns openings and closings in a stretch, of sessions that were opened more than once.

    The opening for the first call is one of them. A session that is opened once stays open: its
    opening is no part of what the application does all the time.
    """
    events = process.events
    last_ns = int(chosen["ended_ns"].max())
    rows = []
    for number in numbers:
        own = events[events["shape"] == number]
        if (own["flags"] == OPENED).sum() < 2:
            continue
        calls = chosen[[process.numbers[int(place)] == number for place in chosen["shape"]]]
        first_ns = int(calls["began_ns"].min())
        before = own[(own["flags"] == OPENED) & (own["began_ns"] < first_ns)]
        from_ns = int(before["began_ns"][-1]) if len(before) else first_ns
        inside = (own["began_ns"] >= from_ns) & (own["began_ns"] <= last_ns)
        rows += list(own[inside & np.isin(own["flags"], (OPENED, CLOSED))])
    return rows


def _calls(steps: Sequence[_Step]) -> tuple[ScheduledCall, ...]:
    """Returns the calls with their threads, what they wait for, and what was between them."""
    threads: dict[int, int] = {}
    last_of_thread: dict[int, int] = {}
    ends = [int(step.row["ended_ns"]) for step in steps]
    by_end = sorted(range(len(ends)), key=ends.__getitem__)
    latest, ended = -1, 0
    calls = []
    for number, step in enumerate(steps):
        row = step.row
        began = int(row["began_ns"])
        while ended < len(by_end) and ends[by_end[ended]] <= began:
            latest, ended = by_end[ended], ended + 1
        own = threads.setdefault(int(row["thread"]), len(threads))
        before = last_of_thread.get(own)
        work_s = pause_s = 0.0
        if before is not None:
            earlier = steps[before].row
            whole_ns = max(0, began - int(earlier["ended_ns"]) - int(row["own_ns"]))
            work_ns = _work_ns(earlier, row, whole_ns)
            work_s, pause_s = work_ns / 1e9, (whole_ns - work_ns) / 1e9
        last_of_thread[own] = number
        after = latest if latest >= 0 and latest != before else -1
        calls.append(replace(step.call, thread=own, after=after, work_s=work_s, pause_s=pause_s))
    return tuple(calls)


def _work_ns(earlier: Any, row: Any, whole_ns: int) -> int:
    """Returns the CPU time of a thread between two of its calls; all of it where it was short."""
    cpu_ended = int(earlier["cpu_ended_ns"])
    if not cpu_ended and earlier["cpu_began_ns"]:  # a short call, which computes all the time
        lasted = int(earlier["ended_ns"]) - int(earlier["began_ns"])
        cpu_ended = int(earlier["cpu_began_ns"]) + lasted
    if cpu_ended and row["cpu_began_ns"]:
        work_ns = int(row["cpu_began_ns"]) - cpu_ended - int(row["own_ns"])
        return min(whole_ns, max(0, work_ns))
    return whole_ns if whole_ns <= LONG_NS else 0


def _feeds_of(
    process: Process, models: Mapping[str, Model], chosen: NDArray[Any], seed: int
) -> tuple[list[Feed], Mapping[int, Sequence[int]], int]:
    """Returns inputs, which of them each shape has, and how many shapes have generated ones.

    Raises:
        NoInputsError: a shape has none.
    """
    feeds: list[Feed] = []
    known: dict[int, Sequence[int]] = {}  # equal sessions have their shapes in common
    generated = 0
    room = _LARGEST_FEEDS_BYTES
    places = np.unique(chosen["shape"]).tolist()
    for session, shape in (process.shapes[place] for place in places):
        if id(shape) in known:
            continue
        model = models[session.name]
        try:
            own = _kept(shape, model, room)
            if not own:
                sizes = {item.name: item.shape for item in shape.inputs}
                sample = one_sample(model, sizes, seed)
                own = [{name: sample[name] for name in sample if name not in shape.fed}]
                generated += 1
        except DataError as error:
            raise NoInputsError(session.name, error) from None
        room -= sum(array.nbytes for feed in own for array in feed.values())
        known[id(shape)] = range(len(feeds), len(feeds) + len(own))
        feeds += own
    return feeds, {place: known[id(process.shapes[place][1])] for place in places}, generated


def _kept(shape: Shape, model: Model, room: int) -> list[Feed]:
    """Returns inputs of a shape that were kept and fit into the room; what is fed is left out.

    Raises:
        DataError: a file is damaged.
    """
    kept: list[Feed] = []
    names = {tensor.name for tensor in model.inputs}
    for file in shape.files[-_FEEDS_OF_SHAPE:]:
        own = next(iter(load_samples(file)), None)
        if own is None or not own.keys() <= names:
            continue
        own = {name: array for name, array in own.items() if name not in shape.fed}
        if sum(array.nbytes for array in own.values()) < room:
            kept.append(own)
    return kept
