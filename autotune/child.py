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
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import psutil

Message = dict[str, Any]

# A reply is numbers and names; anything longer is not one of ours.
_LONGEST_LINE_BYTES = 4 << 20
_STDERR_KEPT_BYTES = 64 << 10
_PR_SET_PDEATHSIG = 1

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
            with something that is no message) or ``refused`` (it answered with an error).
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
    started it (Linux) or when its stdin closes.
    """

    def __init__(self, module: str, limits: Limits) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="autotune-"))
        self._frozen = False
        self._replies: queue.Queue[bytes | None] = queue.Queue()
        try:
            self._stderr = (self._folder / "stderr.txt").open("w+b")
            orders = {"memory_mib": limits.memory_mib, "parent": os.getpid()}
            self._process = subprocess.Popen(
                # -P: a file named onnxruntime.py beside the model must not be imported
                [sys.executable, "-P", "-X", "faulthandler", "-m", module, json.dumps(orders)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                cwd=self._folder,
                env=_environment(),
                start_new_session=True,
            )
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._handle = psutil.Process(self._process.pid)
        threading.Thread(target=self._read_replies, daemon=True).start()

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
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
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
            reply = json.loads(line, parse_constant=_no_constant)
            if not isinstance(reply, dict):
                raise ValueError("not an object")  # noqa: TRY004  # as JSON's own faults are
        except ValueError as error:
            self._kill()
            raise ChildFailure("protocol", f"an answer that is no message ({error})") from None
        if "failure" in reply:
            raise ChildFailure(str(reply.get("kind", "refused")), str(reply["failure"]))
        return reply

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
        self._stderr.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _read_replies(self) -> None:
        """Passes the child's lines on; None says that there will be no more."""
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while line := self._process.stdout.readline(_LONGEST_LINE_BYTES):
                self._replies.put(line)
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
        if code == -signal.SIGKILL:
            return ChildFailure("killed", "killed from outside (out of memory is the usual cause)")
        if code < 0:
            name = signal.Signals(-code).name
            return ChildFailure("crashed", f"{name}: {last}" if last else name)
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
        with contextlib.suppress(psutil.Error):
            family = self._handle.children(recursive=True)
        if self._process.poll() is None:
            if os.name == "posix":
                with contextlib.suppress(OSError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


def serve(handlers: dict[str, Callable[[Message], Message]]) -> None:
    """Answers messages until stdin closes; the main function of a child.

    A message ``{"do": name, ...}`` goes to the handler of that name. What a handler raises becomes
    a failure of kind ``refused``, or ``out_of_memory`` where that is what it was.
    """
    orders = json.loads(sys.argv[1])
    replies = _private_stdout()
    _die_with_parent(orders["parent"])
    _limit(orders["memory_mib"])
    for line in sys.stdin.buffer:
        message = json.loads(line)
        try:
            reply = handlers[message["do"]](message)
        except MemoryError as error:
            reply = {"failure": f"out of memory {error}".strip(), "kind": "out_of_memory"}
        except Exception as error:  # noqa: BLE001  # the model's faults take any form
            text = printable(str(error)) or type(error).__name__
            memory = any(sign in text for sign in ("bad_alloc", "Failed to allocate memory"))
            reply = {"failure": text[:4000], "kind": "out_of_memory" if memory else "refused"}
        replies.write(json.dumps(_finite(reply)).encode() + b"\n")
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


def _die_with_parent(parent: int) -> None:
    """Lets the kernel kill this process, frozen or not, when its parent is gone (Linux).

    Elsewhere the end of stdin ends the loop of :func:`serve`.
    """
    if sys.platform == "linux":
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
