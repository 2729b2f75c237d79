"""The recorder inside an application: writes what its sessions are and what they are called with.

It imports the standard library until the application has imported onnxruntime, and changes nothing
that the application sees. Calls go to files that are mapped into memory, and everything else is one
line of text appended to a file, so a process that is killed leaves all that it recorded.
"""

import fcntl
import functools
import itertools
import json
import mmap
import os
import struct
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.applications.inputs import (
    BOUND,
    Listed,
    array_of,
    described_input,
    patch_binding,
)
from autotune.applications.layout import (
    BUDGET,
    CALL,
    CHUNK_CALLS,
    FAILED,
    INPUTS,
    KINDS,
    LONG_NS,
    MODELS,
    Settings,
)
from autotune.deploy.hook import when_imported

# The 1st, 2nd, 4th, 8th ... input of a shape are kept, so that they spread over the whole time.
_MOST_INPUTS = 8
# Further inputs of a shape leave this share of the room to shapes that come later.
_SHARE_OF_FURTHER = 0.5
_ATTRIBUTE = "_autotune_watched"
# bound once: they are called for each call of a session
_thread = threading.get_ident
_pack_into, _CALL_BYTES = CALL.pack_into, CALL.size


def start(folder: str) -> None:
    """Records this process into `folder` from the moment when it imports onnxruntime."""
    recorder = Recorder(Path(folder))

    def patch(module: ModuleType) -> None:
        from autotune.deploy.passed import watch

        recorder.begin(module)
        watch(module)
        patch_sessions(module, recorder)
        os.register_at_fork(after_in_child=recorder.begin_in_child)

    when_imported(patch)


class _Watched:
    """A session that is recorded: its line, and a cell for each shape that it was called with.

    A cell holds the shape's number, how often it came, and when its next input is kept. An equal
    session that is opened after this one is gone takes its place: an application may open one for
    each request.
    """

    __slots__ = ("cells", "line", "session", "token")

    def __init__(self, line: Mapping[str, Any], token: str, session: Any) -> None:
        self.line = line
        self.token = token
        self.session = weakref.ref(session)
        self.cells: dict[object, list[Any]] = {}

    def listed(self, name: str, value: Any) -> Any:
        """Returns an input with its shape, where it is a list of lists or a number."""
        if hasattr(value, "shape"):
            return value
        inputs = self.line["interface"]["inputs"]
        words = next(text for text in inputs if text.startswith(f"{name} "))
        return Listed(value, words.removeprefix(f"{name} ").split(" ")[0])


class Recorder:
    """Writes the recording of one process; a forked child goes on with files of its own.

    Args:
        folder: The folder of the recording, which exists.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sessions = itertools.count()
        self._watched: dict[str, list[_Watched]] = {}
        self._module: Any = None
        self._settings: Any = None
        self._digests: Any = None

    def _reset(self) -> None:
        self.token = f"{os.getpid()}-{time.monotonic_ns():x}"
        self._shapes = itertools.count()
        self._slots = itertools.count()
        self._chunks: list[mmap.mmap] = []
        self._lock = threading.Lock()
        self._is_broken = False

    def begin(self, module: ModuleType) -> None:
        """Begins to write, once onnxruntime is there."""
        from autotune.deploy.passed import Digests

        self._module = module
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

    def _write_process(self) -> None:
        self.write(
            {
                "kind": "process",
                "pid": os.getpid(),
                "parent": os.getppid(),
                "program": Path(sys.argv[0] if getattr(sys, "argv", None) else "").name,
                "onnxruntime": sys.modules["onnxruntime"].__dict__.get("__version__", ""),
                "began_ns": time.monotonic_ns(),
            }
        )

    def write(self, line: Mapping[str, Any]) -> None:
        """Appends a line; a disk that is full ends the recording, and the application goes on."""
        if self._is_broken:
            return
        try:
            # opened for each line: an application may close descriptors that it does not know
            with (self._folder / f"process-{self.token}.jsonl").open("ab") as file:
                file.write(json.dumps(line).encode() + b"\n")
        except OSError:
            self._is_broken = True

    def session(self, session: Any, call: Any, sha256: str, *, load_ns: int, held_kib: int) -> None:
        """Watches a session from now on; writes it unless an equal one is gone."""
        from autotune.deploy.passed import interface_of
        from autotune.deploy.records import to_plain

        is_path = isinstance(call.model, str)
        line = {
            "kind": "session",
            "sha256": sha256,
            "size_bytes": Path(call.model).stat().st_size if is_path else len(call.model),
            "path": str(Path(call.model).absolute()) if is_path else "",
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
                line["number"] = next(self._sessions)
                watched = _Watched(line, self.token, session)
                equal.append(watched)
                self.write(line)
            else:
                watched.session = weakref.ref(session)
        session.__dict__[_ATTRIBUTE] = watched

    def _copy(self, model: str | bytes, sha256: str) -> bool:
        """Copies a model that may be gone after the run; returns whether it is in the recording."""
        temporary = os.environ.get("TMPDIR", "/tmp")
        if isinstance(model, str) and not Path(model).absolute().is_relative_to(temporary):
            return False
        copy = self._folder / MODELS / f"{sha256}.onnx"
        if not copy.exists():
            part = copy.with_suffix(f".{self.token}")
            part.write_bytes(model if isinstance(model, bytes) else Path(model).read_bytes())
            part.replace(copy)
        return True

    def digest(self, model: str | bytes) -> str:
        """Returns the digest of a model."""
        return str(self._digests.of(model))

    def call(
        self,
        watched: _Watched,
        feed: Any,
        flags: int,
        began_ns: int,
        ended_ns: int,
        cpu_began_ns: int = 0,
        cpu_ended_ns: int = 0,
    ) -> None:
        """Writes a call, and now and then its inputs; never raises.

        Args:
            watched: The session.
            feed: Its inputs by name.
            flags: Number of its kind, and whether it failed.
            began_ns: When it began.
            ended_ns: When it ended.
            cpu_began_ns: The thread's CPU time when it began; 0 where unknown.
            cpu_ended_ns: The thread's CPU time when it ended; 0 where unknown.
        """
        try:
            try:
                key: object = (*feed, *[value.shape for value in feed.values()])
            except AttributeError:  # lists, which ONNX Runtime takes as well
                feed = {name: watched.listed(name, value) for name, value in feed.items()}
                key = (*feed, *[value.shape for value in feed.values()])
            cell = watched.cells.get(key)
            if cell is None:
                if flags & FAILED:  # a shape that the model does not take
                    return
                cell = self._new_shape(watched, feed, key)
            cell[1] += 1
            slot = next(self._slots)
            try:
                chunk = self._chunks[slot // CHUNK_CALLS]
            except IndexError:
                chunk = self._grow(slot // CHUNK_CALLS)
            _pack_into(
                chunk,
                slot % CHUNK_CALLS * _CALL_BYTES,
                cell[0] + 1,
                flags,
                _thread(),
                began_ns,
                ended_ns,
                cpu_began_ns,
                cpu_ended_ns,
            )
            if cell[1] >= cell[2] and not flags & FAILED:
                self._keep(cell, feed)
        except Exception:  # noqa: BLE001  # an input of an unknown kind, or a disk that is full
            return

    def _grow(self, number: int) -> mmap.mmap:
        """Maps files until there is one of this number, and returns that one.

        Raises:
            OSError: the disk is full. The room is reserved before, since writing to a mapped file
                that has none would end the process.
        """
        with self._lock:
            while len(self._chunks) <= number:
                if self._is_broken:
                    raise OSError
                name = f"calls-{self.token}-{len(self._chunks)}.bin"
                size = CHUNK_CALLS * CALL.size
                try:
                    with (self._folder / name).open("x+b") as file:
                        os.posix_fallocate(file.fileno(), 0, size)
                        self._chunks.append(mmap.mmap(file.fileno(), size))
                except OSError:
                    self._is_broken = True
                    raise
            return self._chunks[number]

    def _new_shape(self, watched: _Watched, feed: Any, key: object) -> list[Any]:
        described = [described_input(name, value) for name, value in feed.items()]
        key = (
            str(described) if any(callable(getattr(v, "shape", 0)) for v in feed.values()) else key
        )
        if key in watched.cells:
            return watched.cells[key]
        with self._lock:
            if watched.token != self.token:  # it was opened before this process was forked
                self.write(watched.line)
                watched.token = self.token
        cell = [next(self._shapes), 0, 1 if self._settings.keep_inputs else sys.maxsize]
        number = watched.line["number"]
        self.write({"kind": "shape", "number": cell[0], "session": number, "inputs": described})
        watched.cells[key] = cell
        return cell

    def _keep(self, cell: list[Any], feed: Any) -> None:
        """Keeps the inputs of this call, if there is room for them."""
        count = cell[1]
        cell[2] = 2 * count if count < 2 ** (_MOST_INPUTS - 1) else sys.maxsize
        arrays = {name: array_of(value) for name, value in feed.items()}
        size = sum(array.nbytes for array in arrays.values())
        share = 1.0 if count == 1 else _SHARE_OF_FURTHER
        if not self._reserve(size, int(share * (self._settings.max_mib << 20))):
            self.write({"kind": "left_out", "shape": cell[0], "size_bytes": size})
            return
        from autotune.facts.feeds import save_samples

        name = f"{self.token}-{cell[0]}-{count}.npz"
        part = self._folder / INPUTS / f"part-{name}"
        save_samples([arrays], part)
        part.replace(self._folder / INPUTS / name)
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


def patch_sessions(module: ModuleType, recorder: Recorder) -> None:
    """Lets sessions that are opened from now on, and their calls, be recorded."""
    kind: Any = module.__dict__["InferenceSession"]
    kind.__init__ = _recording_open(module, kind.__init__, recorder)
    for number, name in enumerate(KINDS):
        if not hasattr(kind, name):
            continue
        if name == "run_async":
            setattr(kind, name, _recording_async(getattr(kind, name), recorder, number))
        else:
            takes_binding = name == "run_with_iobinding"
            wrap = _recording_bound if takes_binding else _recording_run
            setattr(kind, name, wrap(getattr(kind, name), recorder, number))
    binding = module.__dict__.get("IOBinding")
    if binding is not None:
        patch_binding(binding)


def _recording_open(module: ModuleType, original: Any, recorder: Recorder) -> Any:
    from autotune.deploy.passed import understand

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
        call, sha256 = None, ""
        try:  # what is passed may change while the session is opened
            call = understand(module, arguments, named)
            sha256 = recorder.digest(call.model)
        except Exception as fault:  # noqa: BLE001  # the application gets ONNX Runtime's own words
            recorder.write({"kind": "unknown", "reason": f"{type(fault).__name__}: {fault}"[:500]})
        held_kib = _held_kib()
        began = time.monotonic_ns()
        original(self, *arguments, **named)
        if call is None or not sha256:
            return
        try:
            load_ns = time.monotonic_ns() - began
            recorder.session(self, call, sha256, load_ns=load_ns, held_kib=held_kib)
        except Exception as fault:  # noqa: BLE001  # whatever it is, the application has its session
            recorder.write({"kind": "unknown", "reason": f"{type(fault).__name__}: {fault}"[:500]})

    return __init__


def _held_kib() -> int:
    """Returns the memory that this process holds; 0 where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") >> 10
    except (OSError, ValueError, IndexError):
        return 0


class _LastCall(threading.local):
    """When the last call of a thread ended."""

    ended = 0


_last = _LastCall()


def _recording_run(original: Any, recorder: Recorder, kind: int) -> Any:
    now_ns, cpu_ns, note, last = time.monotonic_ns, time.thread_time_ns, recorder.call, _last

    @functools.wraps(original)
    def run(self: Any, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        watched = self.__dict__.get(_ATTRIBUTE)
        if watched is None:
            return original(self, output_names, input_feed, run_options)
        began = now_ns()
        cpu_began = cpu_ns() if began - last.ended > LONG_NS else 0
        try:
            result = original(self, output_names, input_feed, run_options)
        except BaseException:
            note(watched, input_feed, kind | FAILED, began, now_ns(), cpu_began)
            raise
        last.ended = ended = now_ns()
        cpu_ended = cpu_ns() if ended - began > LONG_NS else 0
        note(watched, input_feed, kind, began, ended, cpu_began, cpu_ended)
        return result

    if kind == KINDS.index("run_with_ort_values"):

        @functools.wraps(original)
        def run_with_ort_values(
            self: Any, output_names: Any, input_dict_ort_values: Any, run_options: Any = None
        ) -> Any:
            return run(self, output_names, input_dict_ort_values, run_options)

        return run_with_ort_values
    return run


def _recording_bound(original: Any, recorder: Recorder, kind: int) -> Any:
    now_ns, cpu_ns = time.monotonic_ns, time.thread_time_ns

    @functools.wraps(original)
    def run_with_iobinding(self: Any, iobinding: Any, run_options: Any = None) -> Any:
        watched = self.__dict__.get(_ATTRIBUTE)
        feed = getattr(iobinding, BOUND, {})
        if watched is None or feed is None:  # None: the shapes of its inputs are not known
            return original(self, iobinding, run_options)
        cpu_began, began = cpu_ns(), now_ns()
        try:
            result = original(self, iobinding, run_options)
        except BaseException:
            recorder.call(watched, feed, kind | FAILED, began, now_ns(), cpu_began, cpu_ns())
            raise
        recorder.call(watched, feed, kind, began, now_ns(), cpu_began, cpu_ns())
        return result

    return run_with_iobinding


def _recording_async(original: Any, recorder: Recorder, kind: int) -> Any:
    now_ns = time.monotonic_ns

    @functools.wraps(original)
    def run_async(
        self: Any,
        output_names: Any,
        input_feed: Any,
        callback: Any,
        user_data: Any,
        run_options: Any = None,
    ) -> Any:
        watched = self.__dict__.get(_ATTRIBUTE)
        if watched is None or not callable(callback):
            return original(self, output_names, input_feed, callback, user_data, run_options)
        began = now_ns()

        def called(results: Any, user_data: Any, fault: str) -> Any:
            flags = kind | (FAILED if fault else 0)
            recorder.call(watched, input_feed, flags, began, now_ns())
            return callback(results, user_data, fault)

        return original(self, output_names, input_feed, called, user_data, run_options)

    return run_async
