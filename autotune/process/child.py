"""Limited child processes that speak JSON lines. Everything native runs in one.

A model comes from a stranger and ONNX Runtime can abort, so parsers, graph passes and sessions run
in a child with its own limits; the parent only hashes bytes and reads numbers. Both ends are here:
:class:`Child` is the parent's, :func:`serve` the child's.

The channel is the child's stdin and a private copy of its stdout; descriptor 1 itself is turned
into stderr before anything native is imported, because ONNX Runtime prints to it.
"""

import contextlib
import ctypes
import json
import math
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from autotune.process import reply, scratch
from autotune.process.guardian import apart, guardian

Message = dict[str, Any]

# A reply is numbers and names; anything longer is not one of ours.
_LONGEST_LINE_BYTES = 4 << 20
_STDERR_KEPT_BYTES = 64 << 10
# There is one reply to a message, and the end of them; a child that floods the channel has to wait.
_MOST_WAITING = 4
# To end the thread that reads, each of 10 ms.
_MOST_TRIES = 200
_PR_SET_PDEATHSIG = 1
# Whether the kernel ends children with their parent; elsewhere the guardian does.
_KERNEL_ENDS_CHILDREN = sys.platform == "linux"

# What a child may know of our environment: enough to find its interpreter and libraries. Storage
# URLs, tokens and ONNX Runtime's own overrides (ORT_INTRA_OP_NUM_THREADS resizes pools) stay out.
_ENVIRONMENT_KEPT = re.compile(
    r"PATH|HOME|USER|LANG|LC_.*|TZ|TMPDIR|TEMP|TMP|SYSTEMROOT|VIRTUAL_ENV|PYTHON(PATH|HOME)"
    r"|LD_(LIBRARY_PATH|PRELOAD)|DYLD_.*|MALLOC_.*|CUDA_.*|NVIDIA_.*"
)
_ENVIRONMENT_SET = {
    # on by default in wheels since 1.29: a thread, a database in the home directory, an upload
    "ORT_DISABLE_TELEMETRY": "1",
    # numpy's pools; ONNX Runtime's own pool is what is being tuned
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class ChildFailure(Exception):
    """A child did not answer as it should. Data for the caller, not an error of the user.

    Attributes:
        kind: ``crashed``, ``killed``, ``timeout``, ``out_of_memory``, ``protocol`` (it answered
            with something that is no answer) or ``refused`` (it answered with an error).
        message: What happened, in a sentence.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a child may take.

    Attributes:
        memory_mib: Private memory (RLIMIT_DATA on Linux; no limit elsewhere); None for no limit.
    """

    memory_mib: int | None = None


def memory_limit() -> Limits:
    """Returns limits that keep the machine usable: four fifths of the memory that is free now."""
    free_mib = psutil.virtual_memory().available >> 20
    return Limits(memory_mib=max(512, int(free_mib * 0.8)))


class Child:
    """A process of our own that runs `module` and answers one message at a time.

    It lives in a session and a private working directory of its own and dies with the thread that
    started it (Linux), with the process that did (elsewhere), or when its stdin closes.

    Args:
        module: What it runs; the module calls :func:`serve`.
        limits: What it may take.
        replies: The fields of its reply to each kind of message. A reply that lacks one, or holds
            something else there, breaks the protocol.
    """

    def __init__(
        self,
        module: str,
        limits: Limits,
        replies: Mapping[str, Mapping[str, reply.Shape]] | None = None,
    ) -> None:
        self._shapes = replies or {}
        self._sent = 0
        self._expected: Mapping[str, reply.Shape] = {}
        self._frozen = False
        self._ended = False
        self._replies: queue.Queue[bytes | None] = queue.Queue(_MOST_WAITING)
        self._folder = scratch.make()
        self._stderr = (self._folder / "stderr.txt").open("w+b")
        orders = {
            "memory_mib": limits.memory_mib,
            "parent": os.getpid() if _KERNEL_ENDS_CHILDREN else None,
        }
        try:
            self._process = subprocess.Popen(
                # -P: a file named onnxruntime.py beside the model must not be imported
                [sys.executable, "-P", "-X", "faulthandler", "-m", module, json.dumps(orders)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                cwd=self._folder,
                env={**_environment(), scratch.MARK: str(self._folder)},
                **apart(),
            )
        except BaseException:
            # Ctrl-C may come when there is a process already
            scratch.end_processes(self._folder)
            self._remove_files()
            raise
        self._reader = threading.Thread(target=self._read_replies, daemon=True)
        try:
            self._handle = psutil.Process(self._process.pid)
            self._reader.start()
            if not _KERNEL_ENDS_CHILDREN:
                guardian().watch(self._process.pid)
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """The process number."""
        return self._process.pid

    @property
    def folder(self) -> Path:
        """The child's private working directory, removed by :meth:`stop`."""
        return self._folder

    def request(self, message: Message, timeout_s: float) -> Message:
        """Sends `message` and returns the answer.

        Raises:
            ChildFailure: there was none within `timeout_s`, or it says that it failed; unless the
                kind is ``refused`` the child is gone afterwards.
        """
        self.send(message)
        return self.receive(timeout_s)

    def send(self, message: Message) -> None:
        """Sends `message`; a child that is gone shows itself in :meth:`receive`."""
        assert self._process.stdin is not None
        self._sent += 1
        self._expected = self._shapes.get(message["do"], {})
        line = json.dumps({**message, "number": self._sent})
        # ValueError: the pipe is closed, for the child was stopped
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def receive(self, timeout_s: float) -> Message:
        """Returns the next answer; see :meth:`request`."""
        try:
            line = self._replies.get(timeout=timeout_s)
        except queue.Empty:
            self._kill()
            raise ChildFailure("timeout", f"no answer within {timeout_s:.0f} s") from None
        if line is None:
            failure = self._end()
            self._kill()
            raise failure
        try:
            return self._checked(line)
        except ValueError as error:
            self._kill()
            raise ChildFailure("protocol", f"an answer that is none ({error})") from None

    def is_running(self) -> bool:
        """Returns whether the process is alive, frozen or not."""
        return self._process.poll() is None

    def freeze(self) -> None:
        """Suspends the process: an idle thread pool would go on spinning on the others' cores."""
        if not self._frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._handle.suspend()
            self._frozen = True

    def thaw(self) -> None:
        """Resumes the process."""
        if self._frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._handle.resume()
            self._frozen = False

    def stop(self) -> None:
        """Ends the process and everything that it started, and removes its folder."""
        self._kill()
        self._remove_files()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _checked(self, line: bytes) -> Message:
        """Returns the reply in `line`.

        Raises:
            ValueError: it is no reply to what was sent last; the message says why.
            ChildFailure: it is one, and says that the child could not do it.
        """
        try:
            found = json.loads(line, parse_constant=_no_constant)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(found, dict):
            raise ValueError("not an object")  # noqa: TRY004  # as JSON's own faults are
        if found.pop("number", None) != self._sent:
            raise ValueError("not to the last question")
        if "failure" in found:
            kind, failure = found.get("kind"), found["failure"]
            if kind not in ("refused", "out_of_memory") or not reply.text(failure):
                raise ValueError("a failure of no known kind")
            raise ChildFailure(kind, printable(failure))
        if wrong := reply.wrong_fields(found, self._expected):
            raise ValueError(f"{', '.join(wrong)} missing or wrong")
        return found

    def _read_replies(self) -> None:
        """Passes the child's lines on; None says that there will be no more."""
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while line := self._process.stdout.readline(_LONGEST_LINE_BYTES):
                if self._ended:  # a flood leaves thousands of lines in the pipe
                    break
                self._replies.put(line)  # waits where there are many already, and so does the child
                if not line.endswith(b"\n"):
                    break
        self._replies.put(None)

    def _end(self) -> ChildFailure:
        """Returns how the process ended, after it closed its side of the channel."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return ChildFailure("protocol", "the channel was closed while the process went on")
        last = self._last_words()
        if sys.platform != "win32" and code == -signal.SIGKILL:
            return ChildFailure("killed", "killed from outside (out of memory is the usual cause)")
        if code < 0:
            name = _signal_name(-code)
            # the interpreter's own words say no more than the signal's name
            says_more = last and not last.startswith("Fatal Python error")
            return ChildFailure("crashed", f"{name}: {last}" if says_more else name)
        if "MemoryError" in last or "bad_alloc" in last:
            return ChildFailure("out_of_memory", last)
        return ChildFailure(
            "crashed", f"ended with exit code {code}" + (f": {last}" if last else "")
        )

    def _last_words(self) -> str:
        """Returns the last telling line of what the process wrote to stderr."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _STDERR_KEPT_BYTES))
        lines = self._stderr.read().decode(errors="replace").splitlines()
        telling = [line for line in lines if line.startswith(("Fatal", "terminate", "  what()"))]
        for line in telling or lines[-1:]:
            return printable(line)[:500]
        return ""

    def _kill(self) -> None:
        family = []
        if self._process.poll() is None:
            with contextlib.suppress(psutil.Error):
                family = psutil.Process(self._process.pid).children(recursive=True)
            if sys.platform != "win32":
                with contextlib.suppress(OSError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._process.wait()
        scratch.end_processes(self._folder)
        if not _KERNEL_ENDS_CHILDREN:
            guardian().forget(self._process.pid)
        self._close_channel()

    def _close_channel(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._ended = True
        for _ in range(_MOST_TRIES):
            if not self._reader.is_alive():
                self._process.stdout.close()
                return
            with contextlib.suppress(queue.Empty):  # it may wait for somebody to take a reply
                self._replies.get(timeout=0.01)
        # somebody who could not be found holds the channel: closing it would wait for them

    def _remove_files(self) -> None:
        self._stderr.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def serve(handlers: dict[str, Callable[[Message], Message]]) -> None:
    """Answers messages until stdin closes; the main function of a child.

    A message ``{"do": name, "number": n, ...}`` goes to the handler of that name; the reply carries
    its number. What a handler raises becomes a failure of kind ``refused``, or ``out_of_memory``
    where that is what it was.
    """
    orders = json.loads(sys.argv[1])
    replies = _private_stdout()
    _die_with_parent(orders["parent"])
    _limit(orders["memory_mib"])
    for line in sys.stdin.buffer:
        message = json.loads(line)
        try:
            found = handlers[message["do"]](message)
        except MemoryError as error:
            found = {"failure": f"out of memory {error}".strip(), "kind": "out_of_memory"}
        except Exception as error:  # noqa: BLE001  # the model's faults take any form
            text = printable(str(error)) or type(error).__name__
            memory = any(sign in text for sign in ("bad_alloc", "Failed to allocate memory"))
            found = {"failure": text[:4000], "kind": "out_of_memory" if memory else "refused"}
        replies.write(_line(found, message["number"]))
        replies.flush()


def printable(text: str) -> str:
    """Returns `text` on one line without control characters: it may come from a model's file."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _environment() -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if _ENVIRONMENT_KEPT.fullmatch(name)}
    return {**kept, **_ENVIRONMENT_SET}


def _private_stdout() -> BinaryIO:
    """Returns the channel to the parent and points descriptor 1 at stderr."""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return channel


def _die_with_parent(parent: int | None) -> None:
    """Lets the kernel kill this process, frozen or not, when its parent is gone.

    Where `parent` is None the kernel cannot, and :mod:`autotune.process.guardian` does it.
    """
    if sys.platform == "linux" and parent is not None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)


def _limit(memory_mib: int | None) -> None:
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # RLIMIT_DATA counts private memory alone; RLIMIT_AS would count mapped weights too, and
    # RLIMIT_RSS has no effect on Linux.
    if memory_mib is not None and sys.platform == "linux":
        limit = memory_mib << 20
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        with contextlib.suppress(OSError):  # when memory runs out all the same, take this one
            Path("/proc/self/oom_score_adj").write_text("800", encoding="ascii")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals, which have no names
        return f"signal {number}"


def _line(found: Message, number: int) -> bytes:
    return json.dumps({**_finite(found), "number": number}).encode() + b"\n"


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _finite(value: Any) -> Any:
    """Returns `value` with None for every number that JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
