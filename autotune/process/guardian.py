"""A process that outlives this one for a moment, to end the children that this one leaves behind.

On Linux the kernel ends them (``PR_SET_PDEATHSIG``). Elsewhere the children of a killed process go
on: a running child reads the end of its stdin sooner or later, a frozen one never. The guardian
(:mod:`autotune.process.guardian_child`) reads from a pipe whose other end belongs to this process
alone. When that end closes, the guardian kills the children that it watches and that still run.
"""

import atexit
import contextlib
import functools
import subprocess
import sys
import tempfile
from typing import Any

from autotune.process.environment import child_environment


def apart() -> dict[str, Any]:
    """Returns the arguments that keep the terminal's Ctrl-C from a new process."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


class Guardian:
    """This process's end of the pipe; the guardian starts with it."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "autotune.process.guardian_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=tempfile.gettempdir(),
            env=child_environment(),
            **apart(),
        )

    @property
    def pid(self) -> int:
        """The guardian's process number."""
        return self._process.pid

    def watch(self, pid: int) -> None:
        """Has the child `pid` killed when this process ends."""
        self._write(f"{pid}\n")

    def forget(self, pid: int) -> None:
        """Stops watching the child: it has ended, and its number may be used again."""
        self._write(f"-{pid}\n")

    def close(self) -> None:
        """Ends the guardian, and the children that it still watches."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(line.encode("ascii"))
            self._process.stdin.flush()


@functools.cache
def guardian() -> Guardian:
    """Returns the one guardian of this process."""
    started = Guardian()
    atexit.register(started.close)
    return started
