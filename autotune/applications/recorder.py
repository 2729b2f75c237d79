"""The recorder inside an application: writes what its sessions are and what they are called with.

It imports the standard library until the application has imported onnxruntime, and all that it
needs at that moment: an application may allow no imports later. Calls go to files that are mapped
into memory, and everything else is one line of text appended to a file, so a process that is killed
leaves all that it recorded. What can fail raises; :mod:`autotune.applications.watching` keeps it
from the application.
"""

import fcntl
import itertools
import json
import os
import shutil
import struct
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from autotune.applications.inputs import array_of, described_input, dtype_of
from autotune.applications.layout import (
    BUDGET,
    CALL,
    CHUNK_CALLS,
    CLOSED,
    INPUTS,
    MODELS,
    OPENED,
    Settings,
)
from autotune.applications.returned import FedBy, Returned
from autotune.deploy.guard import guarded, say, swallow
from autotune.deploy.records import to_plain

# The 1st, 2nd, 4th, 8th ... input of a shape are kept, so that they spread over the whole time.
_MOST_INPUTS = 8
# Further inputs of a shape leave this share of the room to shapes that come later.
_SHARE_OF_FURTHER = 0.5
# What is remembered of a process stays small, whatever it calls.
_MOST_SHAPES = 5000
_MOST_FAULTS = 20
# bound once: they are called for each call of a session
_pack_into, _CALL_BYTES = CALL.pack_into, CALL.size
_following = threading.Lock()


class Watched:
    """A session that is recorded: its line, and a cell for each shape that it was called with.

    A cell holds the shape's number, how often it came, when its next input is kept, and the shapes
    of what was returned by earlier calls; None once these shapes have varied. An equal session that
    is opened after this one is gone takes its place: an application may open one for each request.
    """

    __slots__ = ("cells", "events", "line", "session", "token")

    def __init__(self, line: Mapping[str, Any]) -> None:
        self.line = line
        self.token = ""
        self.events = 0
        self.session: Any = None
        self.cells: dict[object, list[Any]] = {}

    def as_array(self, name: str, value: Any) -> Any:
        """Returns an input that is a list of lists, or a number, as ONNX Runtime takes it."""
        if hasattr(value, "shape"):
            return value
        import numpy as np  # the application has imported it with onnxruntime

        inputs = self.line["interface"]["inputs"]
        words = next(text for text in inputs if text.startswith(f"{name} "))
        return np.asarray(value, dtype_of(words.removeprefix(f"{name} ").split(" ")[0]))


class Recorder:
    """Writes the recording of one process; a forked child goes on with files of its own.

    Args:
        folder: The folder of the recording, which exists.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sessions = itertools.count()
        self._watched: dict[str, list[Watched]] = {}
        self._settings: Any = None
        self._digests: Any = None
        self.is_broken = False
        self.has_ended = False

    def _reset(self) -> None:
        self.pid = os.getpid()
        self.token = f"{os.getpid()}-{time.monotonic_ns():x}"
        self._shapes = itertools.count()
        self._slots = itertools.count()
        self._chunks: list[Any] = []
        self._faults: set[str] = set()
        self.returned = Returned()
        # a signal handler or the garbage collector may come back in the middle
        self._lock = threading.RLock()

    def end(self) -> None:
        """Ends the recording: what is closed from now on is closed by the end of Python."""
        self.has_ended = True

    def begin(self) -> None:
        """Begins to write, once onnxruntime is there.

        Raises:
            AutotuneError: the folder is no recording any more.
        """
        import ctypes  # noqa: F401  # later imports may be forbidden
        import hashlib  # noqa: F401

        import autotune.facts.feeds  # noqa: F401
        from autotune.deploy.passed import Digests

        self._digests = Digests()
        self._reset()  # this process may be one of several that were forked meanwhile
        self._settings = Settings.read(self._folder)
        self._write_process()

    def begin_in_child(self) -> None:
        """Goes on with new files in a process that was forked."""
        self._reset()
        for equal in self._watched.values():
            equal[:] = [watched for watched in equal if watched.session() is not None]
            for watched in equal:
                watched.cells = {}
        self._write_process()

    def follow_fork(self) -> None:
        """Goes on with new files in a process that C code forked: uwsgi calls no hook of Python."""
        with _following:
            if os.getpid() != self.pid:
                self.begin_in_child()

    def _write_process(self) -> None:
        native = sys.modules["onnxruntime.capi.onnxruntime_inference_collection"].__dict__["C"]
        self.write(
            {
                "kind": "process",
                "pid": os.getpid(),
                "parent": os.getppid(),
                "program": os.path.basename((getattr(sys, "argv", None) or [""])[0]),  # noqa: PTH119
                "onnxruntime": sys.modules["onnxruntime"].__dict__.get("__version__", ""),
                "available": native.get_available_providers(),
                "began_ns": time.monotonic_ns(),
            }
        )

    def write(self, line: Mapping[str, Any]) -> None:
        """Appends a line; a disk that is full ends the recording, and the application goes on."""
        if self.is_broken:
            return
        path = os.path.join(self._folder, f"process-{self.token}.jsonl")  # noqa: PTH118
        try:
            # opened for each line: an application may close descriptors that it does not know
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, json.dumps(line).encode() + b"\n")
            finally:
                os.close(descriptor)
        except OSError as fault:
            self.give_up(fault)

    def give_up(self, fault: OSError) -> None:
        """Ends the recording of this process, and says so once.

        Raises:
            BaseException: the fault is the application's.
        """
        swallow(fault)  # the alarm of an application may raise TimeoutError, which is an OSError
        if not self.is_broken:
            self.is_broken = True
            say(
                f"cannot write the recording {self._folder} any more ({fault.strerror}); the "
                "application goes on without it"
            )

    def fault(self, fault: Exception) -> None:
        """Writes why something could not be recorded, each reason once."""
        reason = f"{type(fault).__name__}: {fault}"[:500]
        if reason not in self._faults and len(self._faults) < _MOST_FAULTS:
            self._faults.add(reason)
            self.write({"kind": "unknown", "reason": reason})

    def digest(self, model: str | bytes) -> str:
        """Returns the digest of a model."""
        return str(self._digests.of(model))

    def session(self, session: Any, call: Any, sha256: str, *, load_ns: int, held_kib: int) -> Any:
        """Returns the record of a new session; writes it unless an equal one is gone."""
        from autotune.deploy.passed import interface_of

        is_path = isinstance(call.model, str)
        line = {
            "kind": "session",
            "sha256": sha256,
            "size_bytes": os.stat(call.model).st_size if is_path else len(call.model),  # noqa: PTH116
            "path": os.path.abspath(call.model) if is_path else "",  # noqa: PTH100
            "is_copied": self._copy(call.model, sha256),
            "passed": to_plain(call.passed),
            "providers": session.get_providers(),
            "interface": to_plain(interface_of(session)),
            "load_ns": load_ns,
            "held_kib": held_kib,
        }
        with self._lock:
            equal = self._watched.setdefault(f"{sha256} {line['passed']} {line['providers']}", [])
            watched = next((item for item in equal if item.session() is None), None)
            if watched is None:
                watched = Watched({**line, "number": next(self._sessions)})
                equal.append(watched)
            watched.session = weakref.ref(
                session, guarded(lambda _: None if self.has_ended else self._closed(watched))
            )
            self._introduce(watched)
        return watched

    def _introduce(self, watched: Watched) -> None:
        """Writes the line of a session, unless this process has written it."""
        if watched.token != self.token:
            watched.token, watched.events = self.token, next(self._shapes)
            self.write({**watched.line, "events": watched.events})

    def _closed(self, watched: Watched) -> None:
        """Writes that a session is gone; the garbage collector calls it at any moment."""
        if watched.token == self.token:
            now = time.monotonic_ns()
            self.put(watched.events, CLOSED, now, now)

    def opened(self, watched: Watched, began_ns: int, ended_ns: int, own_ns: int) -> None:
        """Writes that a session was opened."""
        self.put(watched.events, OPENED, began_ns, ended_ns, own_ns=own_ns)

    def _copy(self, model: str | bytes, sha256: str) -> bool:
        """Copies a model that may be gone after the run; returns whether it is in the recording."""
        temporary = os.environ.get("TMPDIR", "/tmp")
        if isinstance(model, str) and not Path(model).absolute().is_relative_to(temporary):
            return False
        copy = self._folder / MODELS / f"{sha256}.onnx"
        part = copy.with_suffix(f".{self.token}")
        try:
            if not copy.exists():
                if isinstance(model, bytes):
                    part.write_bytes(model)
                else:
                    shutil.copyfile(model, part)
                part.replace(copy)
        except OSError as fault:
            with suppress(OSError):
                part.unlink()
            swallow(fault)
            return False
        return True

    def cell_of(
        self, watched: Watched, feed: Any, asked: tuple[Any, Any], fed: Mapping[str, FedBy]
    ) -> tuple[Any, Any]:
        """Returns the cell of a call's shape, and its inputs with their shapes.

        What an earlier call returned grows with each token: it has its place there for a shape.

        Args:
            watched: The session.
            feed: Its inputs by name.
            asked: The names of the outputs that are asked for, and entries of the run options.
            fed: Which of the inputs were returned by earlier calls.
        """
        try:
            key = self._key(feed, asked, fed)
        except AttributeError:  # lists, which ONNX Runtime takes as well
            feed = {name: watched.as_array(name, value) for name, value in feed.items()}
            key = self._key(feed, asked, fed)
        cell = watched.cells.get(key)
        if cell is None:
            cell = self._new_shape(watched, feed, asked, fed, key)
        if fed and cell[3] is not None and cell[3] != _shapes_of(feed, fed):
            cell[3] = None
            self.write({"kind": "varies", "shape": cell[0]})
        return cell, feed

    def _key(self, feed: Any, asked: tuple[Any, Any], fed: Mapping[str, FedBy]) -> object:
        # the shape of an array takes longer than its place
        shapes = [fed[n] if n in fed else value.shape for n, value in feed.items()]  # noqa: SIM401
        return (asked, *feed, *shapes)

    def _new_shape(
        self,
        watched: Watched,
        feed: Any,
        asked: tuple[Any, Any],
        fed: Mapping[str, FedBy],
        key: object,
    ) -> list[Any]:
        described = [described_input(name, value) for name, value in feed.items()]
        if any(callable(getattr(value, "shape", 0)) for value in feed.values()):
            key = f"{asked} {[fed.get(item['name'], item) for item in described]}"
        if key in watched.cells:
            return watched.cells[key]
        if len(watched.cells) >= _MOST_SHAPES:
            raise ValueError(f"a session has more than {_MOST_SHAPES} shapes; others are left out")
        with self._lock:
            self._introduce(watched)  # it may have been opened before this process was forked
        next_kept = 1 if self._settings.keep_inputs else sys.maxsize
        cell = [next(self._shapes), 0, next_kept, _shapes_of(feed, fed)]
        outputs, entries = asked
        self.write(
            {
                "kind": "shape",
                "number": cell[0],
                "session": watched.line["number"],
                "inputs": described,
                "outputs": None if outputs is None else [str(name) for name in outputs],
                "run_options": dict(entries),
                "fed": {
                    name: {"session": session, "place": place}
                    for name, (session, place) in fed.items()
                },
            }
        )
        watched.cells[key] = cell
        return cell

    def put(
        self,
        number: int,
        flags: int,
        began_ns: int,
        ended_ns: int,
        thread: int = 0,
        cpu_ns: tuple[int, int] = (0, 0),
        own_ns: int = 0,
    ) -> None:
        """Writes a call.

        Args:
            number: That of its shape.
            flags: Number of its kind, and whether it failed.
            began_ns: When it began.
            ended_ns: When it ended.
            thread: The thread that called; 0 stands for this one.
            cpu_ns: The thread's CPU time when it began and when it ended; 0 where unknown.
            own_ns: Time of the recorder in this thread since the last call.

        Raises:
            OSError: the disk is full.
        """
        slot = next(self._slots)
        try:
            chunk = self._chunks[slot // CHUNK_CALLS]
        except IndexError:
            chunk = self._grow(slot // CHUNK_CALLS)
        place = slot % CHUNK_CALLS * _CALL_BYTES
        caller = thread or threading.get_ident()
        _pack_into(chunk, place, number + 1, flags, caller, began_ns, ended_ns, *cpu_ns, own_ns)

    def _grow(self, number: int) -> Any:
        """Maps files until there is one of this number, and returns that one.

        Raises:
            OSError: the disk is full. The room is reserved before, since writing to a mapped file
                that has none would end the process.
        """
        with self._lock:
            while len(self._chunks) <= number:
                if self.is_broken:
                    raise OSError("the recording has ended")
                name = f"calls-{self.token}-{len(self._chunks)}.bin"
                try:
                    self._chunks.append(_mapped(self._folder / name, CHUNK_CALLS * CALL.size))
                except OSError as fault:
                    self.give_up(fault)
                    raise
            return self._chunks[number]

    def keep(self, cell: list[Any], feed: Any, fed: Mapping[str, FedBy]) -> str:
        """Keeps the inputs of a call that is about to begin; returns the name of their file.

        The name is empty where there is no room for them. Of what earlier calls returned the first
        call keeps a copy, and further ones only where the shapes stay the same.
        """
        count = cell[1] + 1
        cell[2] = 2 * count if count < 2 ** (_MOST_INPUTS - 1) else sys.maxsize
        left_out = fed if cell[3] is None else {}
        arrays = {name: array_of(value) for name, value in feed.items() if name not in left_out}
        size = sum(array.nbytes for array in arrays.values())
        share = 1.0 if count == 1 else _SHARE_OF_FURTHER
        if not self._reserve(size, int(share * (self._settings.max_mib << 20))):
            self.write({"kind": "left_out", "shape": cell[0], "size_bytes": size})
            return ""
        from autotune.facts.feeds import save_samples

        name = f"{self.token}-{cell[0]}-{count}.npz"
        part = self._folder / INPUTS / f"part-{name}"
        try:
            save_samples([arrays], part)
            part.replace(self._folder / INPUTS / name)
        except OSError as fault:
            self.give_up(fault)
            raise
        return name

    def kept(self, cell: list[Any], name: str, *, is_failed: bool) -> None:
        """Notes inputs whose call has ended; those of a call that failed are removed."""
        if is_failed:
            (self._folder / INPUTS / name).unlink()
        else:
            self.write({"kind": "input", "shape": cell[0], "file": name})

    def _reserve(self, size_bytes: int, most_bytes: int) -> bool:
        """Takes room for inputs from what all processes of the recording share."""
        with self._lock, (self._folder / BUDGET).open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)  # until the file is closed
            (used,) = struct.unpack("<Q", file.read(8))
            if used + size_bytes > most_bytes:
                return False
            file.seek(0)
            file.write(struct.pack("<Q", used + size_bytes))
        return True


def _shapes_of(feed: Any, names: Iterable[str]) -> list[tuple[int, ...]]:
    """Returns the shapes of these inputs."""
    shapes = [feed[name].shape for name in names]
    return [tuple(shape() if callable(shape) else shape) for shape in shapes]


def _mapped(path: Path, size: int) -> Any:
    """Returns the bytes of a new file, mapped into memory, of which no descriptor stays open.

    Python's own mmap keeps one (before 3.13), which it closes at a moment when an application that
    closed it itself may have given the number to a file of its own.

    Raises:
        OSError: the file cannot be made or mapped.
    """
    import ctypes

    system = ctypes.CDLL(None, use_errno=True)
    system.mmap.restype = ctypes.c_void_p
    system.mmap.argtypes = [
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_long,
    ]
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        read_write, shared = 3, 1
        address = system.mmap(None, size, read_write, shared, descriptor, 0)
        if address == ctypes.c_void_p(-1).value:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(descriptor)
    return (ctypes.c_char * size).from_address(address)
