"""A process that survives its driver for a moment, to take the driver's children with it.

On Linux the kernel does that (``PR_SET_PDEATHSIG``). Elsewhere a driver that is killed leaves its
children behind: a running one reads the end of its stdin sooner or later, a frozen one never. The
guardian reads from a pipe whose other end is the driver's alone; when that is closed, by whatever
end of the driver, it kills the children that it was told of and that are still there.
"""

import atexit
import contextlib
import functools
import subprocess
import sys
import tempfile
from typing import Any

import psutil


def apart() -> dict[str, Any]:
    """Returns the arguments that keep the terminal's Ctrl-C from a new process."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
    return {"start_new_session": True}


class Guardian:
    """The driver's end of the pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "autotune.process.guardian"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=tempfile.gettempdir(),
            **apart(),
        )

    @property
    def pid(self) -> int:
        """The guardian's process number."""
        return self._process.pid

    def watch(self, pid: int) -> None:
        """Has the child killed when this process ends."""
        self._write(f"{pid}\n")

    def forget(self, pid: int) -> None:
        """Takes that back; the child has ended and its number may be used again."""
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
    made = Guardian()
    atexit.register(made.close)
    return made


def main() -> None:
    """Watches until the driver is gone; what the guardian runs."""
    watched: dict[int, psutil.Process] = {}
    for line in sys.stdin:
        number = int(line)
        if number < 0:
            watched.pop(-number, None)
            continue
        with contextlib.suppress(psutil.Error):
            # holds the time at which it started as well: another of that number is not killed
            watched[number] = psutil.Process(number)
    for process in watched.values():
        _end(process)


def _end(process: psutil.Process) -> None:
    family = [process]
    with contextlib.suppress(psutil.Error):
        family += process.children(recursive=True)
    for member in family:
        with contextlib.suppress(psutil.Error):
            member.kill()


if __name__ == "__main__":
    main()
