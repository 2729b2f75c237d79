"""A worker that misbehaves as the file ``fault.json`` in the scratch folder of its driver says.

The file is read when the process starts: ``{"do": the message that it fails at, "fault": one of
the functions below, "after": how many such messages are answered as they should be before}``, and
whatever else the fault wants to know. Without the file it is the real worker.
"""

import contextlib
import ctypes
import gc
import json
import os
import signal
import time
from pathlib import Path

from autotune.measure.measure_child import Worker
from autotune.process.child_end import Handler, Message, serve

# serve() takes a private copy of stdout for its replies; this is another
CHANNEL = os.dup(1)
LONG_S = 600


def segfault(_: Message, __: Message) -> None:
    ctypes.string_at(0)


def hang(_: Message, __: Message) -> None:
    """Does not answer, and does not mind being told to end."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(LONG_S)


def allocate(_: Message, plan: Message) -> None:
    """Takes more memory than it may."""
    bytearray(plan["mib"] << 20)


def no_file(message: Message, _: Message) -> None:
    Path(message["to"]).unlink()


def other_file(message: Message, plan: Message) -> None:
    Path(message["to"]).write_bytes(plan["text"].encode())


def pipe(message: Message, _: Message) -> None:
    """Puts a pipe there, from which nothing ever comes."""
    Path(message["to"]).unlink()
    os.mkfifo(message["to"])


def wild_clock(_: Message, __: Message) -> None:
    """Lets the wall clock step to and fro for the rest of the process."""
    steps = iter(range(10**9))
    time.time = lambda: 1e9 * (next(steps) % 3)
    time.time_ns = lambda: 10**18 * (next(steps) % 3)


# what happens after the handler did its work; the others happen in its place
_AFTERWARDS = (no_file, other_file, pipe)


def _misbehaving(handler: Handler, plan: Message) -> Handler:
    calls = 0

    def handle(message: Message) -> object:
        nonlocal calls
        calls += 1
        if calls <= plan.get("after", 0):
            return handler(message)
        if plan["fault"] == "lie":  # a reply with other fields; None removes one
            fields = {**vars(handler(message)), **plan["fields"]}
            return {name: value for name, value in fields.items() if name not in plan["without"]}
        fault = globals()[plan["fault"]]
        if fault not in _AFTERWARDS:
            fault(message, plan)
            return handler(message)
        reply = handler(message)
        fault(message, plan)
        return reply

    return handle


def main() -> None:
    """Serves as :mod:`autotune.measure.measure_child` does, but for the fault."""
    gc.disable()
    handlers = Worker().handlers()
    with contextlib.suppress(FileNotFoundError):
        plan = json.loads((Path.cwd().parent / "fault.json").read_text(encoding="utf-8"))
        handlers[plan["do"]] = _misbehaving(handlers[plan["do"]], plan)
    serve(handlers)


if __name__ == "__main__":
    main()
