"""The child's end of the channel: limits itself, then answers messages until its stdin closes.

Standard library only: each child pays for what this module imports. The parent's end is
:class:`autotune.process.child.Child`.
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

Message = dict[str, Any]
"""What a parent asks: ``do`` names the handler, ``number`` counts, the rest is the handler's."""

Handler = Callable[[Message], object]
"""Answers one kind of message with a record, or with an object of JSON values."""


_PR_SET_PDEATHSIG = 1
_LONGEST_FAILURE = 4000
# Python and native libraries say the same of a disk that is full.
_FULL = ("No space left on device", "Disk quota exceeded")


class TransientError(Exception):
    """What a handler was asked for failed, and may go well another time."""


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answers messages until stdin closes; the main function of a child.

    A message ``{"do": name, "number": n, ...}`` goes to the handler of that name. The answer is
    ``{"number": n, "reply": {...}}`` with the fields of the record that the handler returned. If
    the handler raises, it is ``{"number": n, "failure": text, "kind": kind}`` with the kind
    ``out_of_memory``, ``disk_full``, ``failed`` (a :class:`TransientError`) or, for every other
    exception, ``refused``.
    """
    orders = json.loads(sys.argv[1])
    channel = _private_stdout()
    _die_with_parent(orders["parent"])
    _limit(orders["memory_mib"])
    _check_site(orders.get("site"))
    for line in sys.stdin.buffer:
        message = json.loads(line)
        answer = {"number": message["number"], **_answer(handlers, message)}
        # JSON does not know a record: its fields are written
        channel.write(json.dumps(answer, default=vars).encode() + b"\n")
        channel.flush()


def _check_site(site: str | None) -> None:
    """Ends a process whose ONNX Runtime is not the one of the folder that it was started with.

    Where that folder is gone, Python would take the user's own without a word.
    """
    if site is None:
        return
    spec = importlib.util.find_spec("onnxruntime")
    if spec is None or not Path(spec.origin or "").is_relative_to(site):
        sys.exit(f"Fatal: there is no ONNX Runtime in {site}")


def _answer(handlers: Mapping[str, Handler], message: Message) -> dict[str, object]:
    try:
        return {"reply": handlers[message["do"]](message)}
    except MemoryError as error:
        return {"failure": f"out of memory {error}".strip(), "kind": "out_of_memory"}
    except Exception as error:  # noqa: BLE001  # the model's faults take any form
        text = printable(str(error)) or type(error).__name__
        memory = any(sign in text for sign in ("bad_alloc", "Failed to allocate memory"))
        kind = "failed" if isinstance(error, TransientError) else "refused"
        if memory:
            kind = "out_of_memory"
        if any(sign in text for sign in _FULL):
            kind = "disk_full"
        return {"failure": text[:_LONGEST_FAILURE], "kind": kind}


def printable(text: str) -> str:
    """Returns `text` on one line without control characters: it may come from a model's file."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _private_stdout() -> BinaryIO:
    """Returns the channel to the parent and points descriptor 1 at stderr.

    ONNX Runtime and other native code print to descriptor 1.
    """
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return channel


def _die_with_parent(parent: int) -> None:
    """Lets the kernel kill this process, suspended or not, when its parent is gone; Linux alone."""
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
