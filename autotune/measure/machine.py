"""What the kernel reports of the machine's neighbours: the time that the host gave to others."""

from pathlib import Path

_STAT = Path("/proc/stat")


def stolen_ticks() -> int:
    """Returns in how many scheduler ticks the host ran others on our virtual cores.

    The count starts with the machine; the difference of two counts says what happened between them.
    It is always 0 where the system does not tell.
    """
    try:
        with _STAT.open(encoding="ascii") as file:
            return parse_stolen(file.readline())
    except OSError:
        return 0


def parse_stolen(line: str) -> int:
    """Returns the eighth counter of the first line of ``/proc/stat`` (proc_stat(5))."""
    words = line.split()
    return int(words[8]) if len(words) > 8 and words[0] == "cpu" else 0
