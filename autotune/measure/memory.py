"""A process's own memory by phase: what it holds now, and the most that it held.

The peak is the system's high-water mark. Never ``ru_maxrss`` on Linux, where it starts at the
parent's peak, and never USS while timing: walking the pages of a large process takes milliseconds.

Only Linux can set the mark back. On Windows it is the highest since the process started, and where
psutil tells no peak it is what the process holds when it is asked.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.deploy.records import MeasuredAmount

_STATUS = Path("/proc/self/status")
_SMALLEST_BYTES = 128 << 10  # glibc's threshold when a process starts
_LARGEST_BYTES = 32 << 20  # freed blocks above this leave the threshold as it is
# Multiples of it, without their whole part, are spread evenly however many there are.
_GOLDEN_RATIO = 0.6180339887498949
_SMALL_BLOCKS = 64
_SMALL_STEP_BYTES = 208


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Memory of a process; the reply to ``held``.

    Attributes:
        resident_mib: The memory that it holds now.
        peak_mib: The most that it held since :func:`reset_peak` (or since its start, where the
            system cannot reset).
        anonymous_mib: The part of `resident_mib` that is not page cache; None where the system does
            not tell.
    """

    resident_mib: MeasuredAmount
    peak_mib: MeasuredAmount
    anonymous_mib: MeasuredAmount | None


def usage() -> Usage:
    """Returns the memory of this process."""
    if sys.platform == "linux":
        return parse_status(_STATUS.read_text(encoding="ascii", errors="replace"))
    # each child pays for what this module imports, and on Linux psutil is not needed
    import psutil

    info = psutil.Process().memory_info()
    peak_bytes = getattr(info, "peak_wset", info.rss)
    return Usage(resident_mib=info.rss / 2**20, peak_mib=peak_bytes / 2**20, anonymous_mib=None)


def parse_status(text: str) -> Usage:
    """Returns the memory in the text of ``/proc/PID/status``."""
    sizes = {name: int(kib) / 1024 for name, kib in re.findall(r"(\w+):\s+([0-9]+) kB", text)}
    return Usage(
        resident_mib=sizes["VmRSS"], peak_mib=sizes["VmHWM"], anonymous_mib=sizes.get("RssAnon")
    )


def reset_peak() -> bool:
    """Sets the high-water mark back to the memory held now; returns whether the system can."""
    if sys.platform != "linux":
        return False
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def live_through(history: int) -> list[bytearray]:
    """Allocates and frees blocks; returns those that a process keeps for as long as it lives.

    glibc takes a large block from the heap, where it may leave a hole, once a block of that size
    was mapped and freed: the threshold between both kinds grows with each freed mapping, up to
    32 MiB (mallopt(3), M_MMAP_THRESHOLD). So the peak of a session depends on what its process did
    before, by a tenth and up to a third. An application has read files and images before it opens a
    session, and nobody knows which; so the rounds of a final comparison have processes with
    different histories.

    A history writes to no large block (``bytearray`` would fill it with zeros), so it adds next to
    nothing to the memory that a process holds.

    Args:
        history: Number of the history; 0 is that of a process that did nothing.
    """
    if history == 0:
        return []
    share = history * _GOLDEN_RATIO % 1
    freed = np.empty(int(_SMALLEST_BYTES * (_LARGEST_BYTES / _SMALLEST_BYTES) ** share), np.uint8)
    del freed
    # every second of some small blocks is freed again, so that other addresses follow
    small = [bytearray(_SMALL_STEP_BYTES * (history + n)) for n in range(_SMALL_BLOCKS)]
    return small[::2]
