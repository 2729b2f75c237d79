"""A recording as it is read: sessions, shapes and calls of an application. It is a stranger's file.

A process that was killed leaves a last line that may be cut, and calls up to the last one. Both are
read as far as they go.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from autotune.applications.layout import (
    CALL,
    CHUNK_CALLS,
    CLOSED,
    END,
    FAILED,
    INPUTS,
    KINDS,
    MODELS,
    OPENED,
    Settings,
)
from autotune.deploy.files import (
    digest_files,
    is_file,
    open_file,
    parse_json,
    read_bytes,
    read_json,
)
from autotune.deploy.passed import Interface, Passed
from autotune.deploy.records import Amount, BareName, Text, Whole, from_plain, read
from autotune.errors import FormatError, RequestError, shown
from autotune.facts.feeds import Feed, load_samples

_MOST_PROCESSES = 1000
_LARGEST_LINES_BYTES = 64 << 20
_MOST_CHUNKS = 1000
_LARGEST_END_BYTES = 1 << 10
# What a tuned application holds beside the folders of its sessions.
_RESERVED = frozenset(
    {
        *("", "studies", "provider-cache", "application.json", "application-front.json"),
        *("report.html", "together.db"),
    }
)
_CALLS = np.dtype(
    [
        *(("shape", "<u4"), ("flags", "<u4"), ("thread", "<u8"), ("began_ns", "<u8")),
        *(("ended_ns", "<u8"), ("cpu_began_ns", "<u8"), ("cpu_ended_ns", "<u8")),
        ("own_ns", "<u8"),
    ]
)
assert _CALLS.itemsize == CALL.size


@dataclass(frozen=True, kw_only=True)
class End:
    """What became of the command: its exit code, and how long it took."""

    exit_code: int
    wall_s: Amount


@dataclass(frozen=True, kw_only=True)
class _ProcessLine:
    kind: Text
    pid: Whole
    parent: Whole
    program: Text
    onnxruntime: Text
    began_ns: Whole
    available: tuple[Text, ...]


@dataclass(frozen=True, kw_only=True)
class OpenedSession:
    """A session as a process opened it.

    Attributes:
        kind: Of the line: ``session``.
        number: Its number in the process.
        sha256: Digest of the model's file or bytes.
        size_bytes: Their size.
        path: The model's absolute path; empty where it came as bytes.
        is_copied: Whether the recording holds a copy of the model.
        passed: What the application passed beside the model.
        providers: The execution providers that it uses.
        interface: What it saw of the session.
        load_ns: Time to open it.
        held_kib: What the process held before; 0 where it is not known.
        events: The number by which its openings and closings are calls.
    """

    kind: Text
    number: Whole
    sha256: Text
    size_bytes: Whole
    path: Text
    is_copied: bool
    passed: Passed
    providers: tuple[Text, ...]
    interface: Interface
    load_ns: Whole
    held_kib: Whole
    events: Whole


@dataclass(frozen=True, kw_only=True)
class InputShape:
    """Name, type and shape of an input."""

    name: Text
    dtype: Text
    shape: tuple[Whole, ...]


@dataclass(frozen=True, kw_only=True)
class Fed:
    """Where an input is in the latest call of a session in the same thread.

    Attributes:
        session: The session's number in the process.
        place: The number of an output; or the name of an input that was fed so itself.
    """

    session: Whole
    place: Whole | Text


@dataclass(frozen=True, kw_only=True)
class _ShapeLine:
    kind: Text
    number: Whole
    session: Whole
    inputs: tuple[InputShape, ...]
    outputs: tuple[Text, ...] | None
    run_options: Mapping[Text, Text]
    fed: Mapping[Text, Fed]


@dataclass(frozen=True, kw_only=True)
class _VariesLine:
    kind: Text
    shape: Whole


@dataclass(frozen=True, kw_only=True)
class _InputLine:
    kind: Text
    shape: Whole
    file: BareName


@dataclass(frozen=True, kw_only=True)
class _LeftOutLine:
    kind: Text
    shape: Whole
    size_bytes: Whole


@dataclass(frozen=True, kw_only=True)
class _UnknownLine:
    kind: Text
    reason: Text


_LINES: Mapping[str, type] = {
    "process": _ProcessLine,
    "session": OpenedSession,
    "shape": _ShapeLine,
    "varies": _VariesLine,
    "input": _InputLine,
    "left_out": _LeftOutLine,
    "unknown": _UnknownLine,
}


@dataclass(kw_only=True)
class Shape:
    """A shape with which a session was called.

    Attributes:
        inputs: Its inputs.
        outputs: The outputs that are asked for; None for all.
        run_options: Entries of the run options, by name.
        files: Inputs that were kept, by the names of their files.
        fed: Inputs of a chain, which earlier calls returned. Their shapes vary: `inputs` has those
            of the first call, and `files` of further calls may lack them.
        left_out: How many were not kept because there was no room.
        calls: How often it came.
        seconds: Time of all its calls.
    """

    inputs: tuple[InputShape, ...]
    outputs: tuple[str, ...] | None = None
    run_options: Mapping[str, str] = field(default_factory=dict)
    fed: Mapping[str, Fed] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    left_out: int = 0
    calls: int = 0
    seconds: float = 0.0

    def feeds(self) -> Iterator[Feed]:
        """Yields the inputs that were kept.

        Raises:
            DataError: a file is damaged.
        """
        for file in self.files:
            yield from load_samples(file)


@dataclass(kw_only=True)
class RecordedSession:
    """All sessions of the application with one model and one set of options.

    Attributes:
        name: A name for people and files.
        opened: One of them.
        shapes: What it was called with: inputs, and the outputs and run options that it asked for.
        count: How many of them were open at once, added up over all processes.
        openings: How often it was opened.
        opening_s: How long that took.
        is_asynchronous: Whether it was called with ``run_async``, which needs two threads at least.
        is_forked: Whether a fork of the process that opened it called it.
    """

    name: str
    opened: OpenedSession
    shapes: dict[object, Shape] = field(default_factory=dict)
    count: int = 0
    openings: int = 0
    opening_s: float = 0.0
    is_asynchronous: bool = False
    is_forked: bool = False

    @property
    def calls(self) -> int:
        """How often it was called."""
        return sum(shape.calls for shape in self.shapes.values())

    @property
    def seconds(self) -> float:
        """Time of all calls."""
        return sum(shape.seconds for shape in self.shapes.values())

    @property
    def is_reopened(self) -> bool:
        """Whether it was opened again after it was closed, such as for each request."""
        return self.openings > self.count


@dataclass(frozen=True, kw_only=True)
class Process:
    """What one process did.

    Attributes:
        program: The name of its program.
        onnxruntime: Version of its ONNX Runtime; empty where that is unknown.
        calls: Its calls in order of their begin, a row each; ``shape`` is a number in `shapes`.
        shapes: Session and shape of each number.
        numbers: For each of them the session's number: equal sessions that are open at one time
            have several.
        base_mib: What it held before its first session; 0 where that is unknown.
        events: Openings and closings in their order, a row each; ``shape`` is the session's number.
        available: The execution providers that its ONNX Runtime lists.
    """

    program: str
    onnxruntime: str
    calls: NDArray[Any]
    shapes: Sequence[tuple[RecordedSession, Shape]]
    numbers: Sequence[int]
    base_mib: float = 0.0
    events: NDArray[Any] = field(default_factory=lambda: np.empty(0, _CALLS))
    available: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Recording:
    """What an application did.

    Attributes:
        folder: Where it lies.
        settings: What `autotune record` was asked for.
        end: What became of the command; None where the recording was cut.
        processes: Its processes that opened a session, the one with most time in calls first.
        sessions: Its sessions, the one with most time first.
        unknown: Why sessions could not be recorded, a sentence each.
    """

    folder: Path
    settings: Settings
    end: End | None
    processes: tuple[Process, ...]
    sessions: tuple[RecordedSession, ...]
    unknown: tuple[str, ...]

    @property
    def wall_s(self) -> float:
        """How long the command took; where it was cut, until its last call."""
        if self.end is not None:
            return self.end.wall_s
        ends = [int(item.calls["ended_ns"].max()) for item in self.processes if len(item.calls)]
        return max([0, *(end - self.settings.began_ns for end in ends)]) / 1e9

    def model_path(self, session: RecordedSession) -> Path:
        """Returns where the model of a session is: the application's file, or a copy of it.

        Weights in files of their own lie beside the application's file alone.
        """
        opened, original = session.opened, Path(session.opened.path)
        if not opened.is_copied:
            return original
        with contextlib.suppress(OSError):
            if is_file(original) and digest_files([original]) == opened.sha256:
                return original
        return self.folder / MODELS / f"{opened.sha256}.onnx"

    @classmethod
    def read(cls, folder: Path) -> "Recording":
        """Returns the recording in a folder.

        Raises:
            RequestError: there is none, it is of another version, or it is damaged.
        """
        try:
            settings = Settings.read(folder)
        except FormatError as error:
            raise RequestError(
                f"{folder} is no recording: {error}; make one with "
                f"`autotune record -o {folder.name or 'app.rec'} -- python app.py`"
            ) from None
        end = None
        if is_file(folder / END):
            end = from_plain(End, read_json(folder / END, _LARGEST_END_BYTES), END)
        return _Reader(folder, settings, end).recording()


@dataclass(kw_only=True)
class _Lines:
    """What the lines of a process say.

    Attributes:
        opened: Its sessions by their numbers.
        shapes: Sessions and shapes by the numbers of the shapes.
        owners: The sessions' numbers by those of the shapes.
        events: The sessions' numbers by those of their openings and closings.
        fed: What earlier calls returned, by the numbers of the shapes.
        varying: The numbers of sessions that are fed returned arrays of varying shapes.
    """

    process: _ProcessLine | None = None
    base_kib: int = 0
    opened: dict[int, RecordedSession] = field(default_factory=dict)
    shapes: dict[int, tuple[RecordedSession, Shape]] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)
    events: dict[int, int] = field(default_factory=dict)
    fed: dict[int, Mapping[str, Fed]] = field(default_factory=dict)
    varying: set[int] = field(default_factory=set)

    def with_chains(self) -> Self:
        """Returns the lines with what is fed to the shapes of chains.

        A chain ends in a session that is fed returned arrays of varying shapes, such as the step of
        a decoder, and begins with the sessions that these arrays come from. Elsewhere the copies of
        a few calls stand for all of them, as a recurrent state does.
        """
        chained, varying = set[int](), self.varying
        while varying:
            chained |= varying
            own = (self.fed[number] for number, owner in self.owners.items() if owner in varying)
            varying = {item.session for fed in own for item in fed.values()} - chained
        for number, owner in self.owners.items():
            if owner in chained:
                self.shapes[number][1].fed = self.fed[number]
        return self

    def with_calls(self, rows: NDArray[Any]) -> Process:
        """Returns the process with its calls, which are added to its sessions."""
        numbers = sorted(self.shapes)
        calls = _numbered(rows[rows["flags"] < OPENED], numbers)
        for place, number in enumerate(numbers):
            own = calls[calls["shape"] == place]
            session, shape = self.shapes[number]
            session.is_asynchronous |= bool((own["flags"] == KINDS.index("run_async")).any())
            shape.calls += len(own)
            shape.seconds += _seconds(own)
        known = sorted(self.events)
        events = _numbered(rows[np.isin(rows["flags"], (OPENED, CLOSED))], known)
        events["shape"] = np.array([self.events[number] for number in known], int)[events["shape"]]
        for number, session in self.opened.items():
            own = events[(events["shape"] == number) & (events["flags"] == OPENED)]
            session.openings += len(own)
            session.opening_s += _seconds(own)
        process = self.process
        return Process(
            program="" if process is None else process.program,
            onnxruntime="" if process is None else process.onnxruntime,
            calls=calls,
            shapes=tuple(self.shapes[number] for number in numbers),
            numbers=tuple(self.owners[number] for number in numbers),
            base_mib=self.base_kib / 1024,
            events=events,
            available=() if process is None else process.available,
        )


class _Reader:
    """Reads the files of all processes, and puts equal sessions together."""

    def __init__(self, folder: Path, settings: Settings, end: End | None) -> None:
        self._folder = folder
        self._settings = settings
        self._end = end
        self._sessions: dict[str, RecordedSession] = {}
        self._opened: set[tuple[str, int, int]] = set()
        self._unknown: list[str] = []

    def recording(self) -> Recording:
        files = sorted(self._folder.glob("process-*.jsonl"))
        files.sort(key=lambda file: file.lstat().st_size, reverse=True)  # small ones did least
        readable = map(self._process, files[:_MOST_PROCESSES])
        processes = [process for process in readable if process is not None]
        for session in self._sessions.values():  # a shape of calls that failed has none
            session.shapes = {key: own for key, own in session.shapes.items() if own.calls}
        return Recording(
            folder=self._folder,
            settings=self._settings,
            end=self._end,
            processes=tuple(sorted(processes, key=lambda item: _seconds(item.calls), reverse=True)),
            sessions=tuple(sorted(self._sessions.values(), key=lambda s: -s.seconds)),
            unknown=tuple(dict.fromkeys(self._unknown)),
        )

    def _process(self, file: Path) -> Process | None:
        own = _Lines()
        for line in _lines(file):
            match line:
                case _ProcessLine():
                    own.process = line
                case OpenedSession():
                    own.base_kib = own.base_kib if own.opened else line.held_kib
                    own.opened[line.number] = self._session(line)
                    own.events[line.events] = line.number
                case _ShapeLine() if line.session in own.opened:
                    session = own.opened[line.session]
                    asked = Shape(
                        inputs=line.inputs, outputs=line.outputs, run_options=line.run_options
                    )
                    key = (
                        *(line.inputs, line.outputs, tuple(line.run_options.items())),
                        tuple(line.fed.items()),
                    )
                    own.shapes[line.number] = session, session.shapes.setdefault(key, asked)
                    own.owners[line.number] = line.session
                    own.fed[line.number] = line.fed
                case _VariesLine() if line.shape in own.shapes:
                    own.varying.add(own.owners[line.shape])
                case _InputLine() if line.shape in own.shapes:
                    path = self._folder / INPUTS / line.file
                    if is_file(path):
                        own.shapes[line.shape][1].files.append(path)
                case _LeftOutLine() if line.shape in own.shapes:
                    own.shapes[line.shape][1].left_out += 1
                case _UnknownLine():
                    self._unknown.append(line.reason)
                case _:
                    pass
        if not own.opened:
            return None
        return own.with_chains().with_calls(_rows(self._folder, file.stem.removeprefix("process-")))

    def _session(self, line: OpenedSession) -> RecordedSession:
        key = f"{line.sha256} {line.passed} {line.providers}"
        if key not in self._sessions:
            stem = _stem(line)
            taken = {session.name for session in self._sessions.values()}
            count = 2
            name = stem
            while name in taken:
                name, count = f"{stem}-{count}", count + 1
            self._sessions[key] = RecordedSession(name=name, opened=line)
        session = self._sessions[key]
        session.count += 1
        opening = (key, line.number, line.load_ns)
        session.is_forked |= opening in self._opened  # a fork writes its parent's line again
        self._opened.add(opening)
        return session


def _stem(line: OpenedSession) -> str:
    """Returns the name of a session's model: its folder in a tuned application has that name."""
    try:
        stem: str = read(BareName, Path(line.path).stem, "path")
    except FormatError:  # it came as bytes, or the recording is a stranger's
        stem = ""
    return f"model-{line.sha256[:8]}" if stem in _RESERVED else stem


def _seconds(rows: NDArray[Any]) -> float:
    """Returns the time of all rows."""
    return float((rows["ended_ns"] - rows["began_ns"]).sum()) / 1e9


def _lines(file: Path) -> Iterator[Any]:
    """Yields the lines of a process; the last one may be cut.

    Raises:
        RequestError: another line is damaged.
    """
    try:
        texts = read_bytes(file, _LARGEST_LINES_BYTES, links=False).split(b"\n")
    except FormatError as error:
        raise RequestError(f"cannot read {file}: {error}; record the application again") from None
    for number, text in enumerate(texts, start=1):
        if not text:
            continue
        try:
            data = parse_json(text.decode())
            kind = read(str, data.get("kind") if isinstance(data, dict) else None, "kind")
            if kind not in _LINES:
                raise FormatError(f"{shown(kind)} is no kind of line")
            yield from_plain(_LINES[kind], data)
        except (FormatError, UnicodeDecodeError) as error:
            if number == len(texts):  # the process was killed while it wrote
                return
            raise RequestError(
                f"{file}, line {number}: {error}; record the application again"
            ) from None


def _rows(folder: Path, token: str) -> NDArray[Any]:
    """Returns all that a process wrote as calls and did not fail, in the order of their begin."""
    parts = []
    for number in range(_MOST_CHUNKS):
        path = folder / f"calls-{token}-{number}.bin"
        if not is_file(path):
            break
        with open_file(path, links=False) as file:
            data = file.read(CHUNK_CALLS * CALL.size)
        parts.append(np.frombuffer(data[: len(data) // CALL.size * CALL.size], _CALLS))
    rows = np.concatenate(parts) if parts else np.empty(0, _CALLS)
    rows = rows[(rows["ended_ns"] >= rows["began_ns"]) & (rows["flags"] < FAILED)]
    return rows[np.argsort(rows["began_ns"], kind="stable")]


def _numbered(rows: NDArray[Any], numbers: Sequence[int]) -> NDArray[Any]:
    """Returns the rows of these numbers, with the places of their numbers."""
    known = np.isin(rows["shape"].astype(np.int64) - 1, numbers)
    own = rows[known & (rows["shape"] > 0)].copy()
    own["shape"] = np.searchsorted(np.asarray(numbers, np.int64), own["shape"].astype(np.int64) - 1)
    return own
