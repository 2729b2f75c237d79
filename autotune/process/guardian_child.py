"""The guardian's own process; see :mod:`autotune.process.guardian`.

It reads process numbers from stdin, a line each: a positive one is watched, a negative one is no
longer watched. At the end of stdin it kills the processes that it watches, and their descendants.
"""

import contextlib
import sys

import psutil


def main() -> None:
    """Watches until stdin closes, then kills."""
    watched: dict[int, psutil.Process] = {}
    for line in sys.stdin:
        number = int(line)
        if number < 0:
            watched.pop(-number, None)
            continue
        with contextlib.suppress(psutil.Error):
            # it also holds the start time: another process of the same number is not killed
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
