"""Limited child processes that speak JSON lines: the parent's end.

A model comes from a stranger and ONNX Runtime can abort, so parsers, graph passes and sessions run
in a child with its own limits; the parent only hashes bytes and reads numbers. The channel is the
child's stdin and a private copy of its stdout. The child's end is
:func:`autotune.process.child_end.serve`.
"""

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import psutil

from autotune.deploy.records import Json, Text, from_plain, read
from autotune.deploy.telemetry import OFF, VARIABLE
from autotune.errors import FormatError, StorageError
from autotune.process import scratch
from autotune.process.child_end import Message, printable
from autotune.process.memory import free_mib
from autotune.process.signals import signals_later

_KEPT = re.compile(
    r"PATH|HOME|USER|LANG|LC_.*|TZ|TMPDIR|TEMP|TMP|SYSTEMROOT|VIRTUAL_ENV"
    r"|PYTHON(PATH|HOME|DONTWRITEBYTECODE)|LD_(LIBRARY_PATH|PRELOAD)|DYLD_.*|MALLOC_.*|CUDA_.*|NVIDIA_.*"
    r"|VK_.*|ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"  # which driver of Vulkan WebGPU takes
)
_SET = {
    # also where the user has it on: its thread and its uploads would disturb what is measured
    VARIABLE: OFF,
    # numpy's pools; the study tunes ONNX Runtime's own pool
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}
# What the user set of these holds for an application, and for what is measured.
_POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


# In parts of a name; a part is what underscores separate.
_SECRET = re.compile(
    r"(.*_)?(API|ACCESS|ACCOUNT|AUTH|COOKIE|CREDENTIALS?|DSN|KEYS?|LICENSE|PASS|PASSPHRASE|PASSWD"
    r"|PASSWORD|PAT|PRIVATE|PWD|SAS|SECRETS?|SIGNATURE|TOKENS?)(_.*)?"
    r"|.*(APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?",
    re.IGNORECASE,
)
_WITH_PASSWORD = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]*:[^/\s]*@", re.IGNORECASE)
# The hook and the recorder of autotune itself are for applications.
_OF_AUTOTUNE = "AUTOTUNE_"


def child_environment(site: Path | None = None, *, measures: bool = False) -> dict[str, str]:
    """Returns the environment of a child, by name.

    Args:
        measures: Whether a session is measured in it: then it is the user's environment, without
            what looks like a secret, because libraries and drivers read variables of any name. Any
            other child reads files of strangers, and has the few variables that its tools need.
    """
    if measures:
        kept = {name: text for name, text in os.environ.items() if not _is_secret(name, text)}
        chosen = {**_SET, **{name: kept[name] for name in _POOLS if name in kept}}
    else:
        kept = {name: text for name, text in os.environ.items() if _KEPT.fullmatch(name)}
        chosen = _SET
    if site is not None:
        paths = [str(site), *filter(None, [kept.get("PYTHONPATH")])]
        kept["PYTHONPATH"] = os.pathsep.join(paths)
    return {**kept, **chosen}


def _is_secret(name: str, text: str) -> bool:
    """Returns whether a variable is none of a child's business."""
    return (
        name.startswith(_OF_AUTOTUNE)
        or _SECRET.fullmatch(name) is not None
        or _WITH_PASSWORD.search(text) is not None
    )


R = TypeVar("R")

# A reply is numbers and names; anything longer is not one of ours.
_LONGEST_LINE_BYTES = 4 << 20
_STDERR = "stderr.txt"
_STDERR_KEPT_BYTES = 64 << 10
# A fault of a reply may quote all of it.
_LONGEST_FAULT = 500
# Every system's pipe holds so much that nobody has read.
_PIPE_BYTES = 4 << 10
# There is one reply to a message, and the end of them; a child that floods the channel has to wait.
_MOST_WAITING = 4
# To end the thread that reads, each of 10 ms.
_MOST_TRIES = 200


class ChildFailure(Exception):
    """A child did not answer as it should. Data for the caller, not an error of the user.

    Attributes:
        kind: ``crashed``, ``killed``, ``timeout``, ``out_of_memory``, ``protocol`` (its answer is
            not what was asked for), ``failed`` (it may go well another time) or ``refused`` (it
            answered with an error).
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


def memory_limit() -> int:
    """Returns a limit in MiB that keeps the machine usable: four fifths of the free memory."""
    return max(512, int(free_mib() * 0.8))


class Child:
    """A process of our own that runs `module` and answers one message at a time.

    It lives in a session and a private working directory of its own. It dies with the thread that
    started it (Linux), or when its stdin closes.

    Args:
        module: The module that it runs, which calls :func:`autotune.process.child_end.serve`.
        memory_mib: Its private memory at most (RLIMIT_DATA on Linux; no limit elsewhere); None for
            no limit.
        site: A folder whose packages come before those of the user's environment: the ONNX Runtime
            of :mod:`autotune.runtimes`. None for the user's own.
        measures: Whether it measures sessions; see :func:`child_environment`.
    """

    def __init__(
        self,
        module: str,
        memory_mib: int | None,
        site: Path | None = None,
        *,
        measures: bool = False,
    ) -> None:
        self._sent = 0
        self._frozen = False
        self._ended = False
        self._replies: queue.Queue[bytes | None] = queue.Queue(_MOST_WAITING)
        self._reader = threading.Thread(target=self._read_replies, daemon=True)
        self._folder = scratch.make()
        self._stderr = (self._folder / _STDERR).open("w+b")
        orders: dict[str, object] = {"memory_mib": memory_mib, "parent": os.getpid()}
        if site is not None:
            orders["site"] = str(site)
        try:
            self._process = subprocess.Popen(
                # -P: a file named onnxruntime.py beside the model must not be imported
                [sys.executable, "-P", "-X", "faulthandler", "-m", module, json.dumps(orders)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                cwd=self._folder,
                env={**child_environment(site, measures=measures), scratch.MARK: str(self._folder)},
                start_new_session=True,  # the terminal's Ctrl-C is the parent's
            )
        except BaseException:
            # Ctrl-C may come when there is a process already
            scratch.end_processes(self._folder)
            self._remove_files()
            raise
        try:
            self._handle = psutil.Process(self._process.pid)
            self._reader.start()
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

    def request(self, message: Message, timeout_s: float, reply: type[R]) -> R:
        """Sends `message` and returns the child's reply as a record of the class `reply`.

        Raises:
            ChildFailure: there was no answer within `timeout_s`, it says that the child failed, or
                it does not describe such a record. The child is gone afterwards, unless it says
                itself that it failed (the kinds ``refused`` and ``out_of_memory``).
            StorageError: a disk is full.
        """
        self.send(message)
        return self.receive(timeout_s, reply)

    def send(self, message: Message) -> None:
        """Sends `message`; a child that is gone shows itself in :meth:`receive`."""
        self._sent += 1
        line = json.dumps({**message, "number": self._sent}).encode() + b"\n"
        if len(line) <= _PIPE_BYTES:
            self._write(line)
        else:  # a child that does not read it must not hold up this process: see `receive`
            threading.Thread(target=self._write, args=(line,), daemon=True).start()

    def receive(self, timeout_s: float, reply: type[R]) -> R:
        """Returns the next reply; see :meth:`request`."""
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
            return self._reply(line, reply)
        except (ValueError, FormatError) as error:
            self._kill()
            fault = printable(str(error)[:_LONGEST_FAULT])
            raise ChildFailure("protocol", f"its answer breaks the protocol: {fault}") from None

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

    def empty_folder(self) -> bool:
        """Removes what the child wrote into its folder; returns whether all of it is gone."""
        try:
            for path in self._folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != _STDERR:
                    path.unlink()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        """Ends the process and all processes that it started, and removes its folder."""
        with signals_later():  # half of it would leave the other half behind
            self._kill()
            self._remove_files()

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _reply(self, line: bytes, reply: type[R]) -> R:
        """Returns the reply in `line`.

        Raises:
            ValueError: `line` is no answer to the last message; the text says why.
            FormatError: the reply is no record of the class `reply`.
            ChildFailure: it is an answer, and says that the child failed.
            StorageError: it says that a disk is full.
        """
        try:
            answer = json.loads(line)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(answer, dict):
            raise ValueError("not an object")  # noqa: TRY004  # as JSON's own faults are
        if answer.get("number") != self._sent:
            raise ValueError("not to the last message")
        if "failure" in answer:
            raise _failure(answer)
        return from_plain(reply, answer.get("reply"))

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        # ValueError: the pipe is closed, for the child was stopped
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line)
            self._process.stdin.flush()

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
        """Returns the last line with a reason of what the process wrote to stderr."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - _STDERR_KEPT_BYTES))
        lines = self._stderr.read().decode(errors="replace").splitlines()
        reasons = [line for line in lines if line.startswith(("Fatal", "terminate", "  what()"))]
        for line in reasons or lines[-1:]:
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
            with contextlib.suppress(queue.Empty):  # it may wait until a reply is taken
                self._replies.get(timeout=0.01)
        # an unknown process holds the channel: closing it would wait for that process

    def _remove_files(self) -> None:
        self._stderr.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _failure(answer: Json) -> ChildFailure:
    """Returns the failure that the child reports.

    Raises:
        ValueError: a child does not report such a failure.
        FormatError: the failure has no text.
        StorageError: a disk is full.
    """
    if answer.get("kind") not in ("refused", "failed", "out_of_memory", "disk_full"):
        raise ValueError("a failure of an unknown kind")
    text = printable(read(Text, answer["failure"], "failure"))
    if answer["kind"] == "disk_full":
        # no fault of the model or the config: another time it goes well
        raise StorageError(
            f"a disk is full: {text}. Make room in the folder of the study and in "
            f"{tempfile.gettempdir()}, and type the same command again"
        )
    return ChildFailure(answer["kind"], text)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # one of the real-time signals, which have no names
        return f"signal {number}"


# A child that has grown beyond this would take memory from what is measured.
_MOST_KEPT_MIB = 512


class LastingChild:
    """The child that takes one task after another, while it is kept."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._is_kept = False
        self._idle: Child | None = None
        self._site: Path | None = None

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Keeps the child from one task to the next until the end of the block.

        A child takes half a second of computing to import its tools. An idle one is suspended: it
        takes no time from what is measured, whatever threads a tool left behind.
        """
        self._is_kept = True
        try:
            yield
        finally:
            self._is_kept = False
            if child := self._take_idle():
                child.stop()

    @contextlib.contextmanager
    def at_work(self, site: Path | None = None) -> Iterator[Child]:
        """Gives the child for one task; its folder is empty.

        Args:
            site: A folder whose packages come before the user's own. Another one than that of the
                last task takes another child.

        After an exception in the block the child is stopped: what failed may leave things behind,
        and an answer that nobody waited for would be taken for that to the next message.
        """
        if site != self._site and (other := self._take_idle()):
            other.stop()
        self._site = site
        child = self._take_idle() or Child(self._module, memory_limit(), site)
        try:
            yield child
            if self._is_kept and _may_stay(child) and child.empty_folder():
                child.freeze()
                self._idle = child
        finally:
            if child is not self._idle:
                child.stop()

    def _take_idle(self) -> Child | None:
        child, self._idle = self._idle, None
        if child and not child.is_running():
            child.stop()
            return None
        if child:
            child.thaw()
        return child


def _may_stay(child: Child) -> bool:
    """Returns whether the child is small and has left no process of its own."""
    try:
        process = psutil.Process(child.pid)
        return process.memory_info().rss < _MOST_KEPT_MIB << 20 and not process.children()
    except psutil.Error:  # it is gone
        return False
