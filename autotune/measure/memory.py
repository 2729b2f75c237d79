"""A process's own memory by phase: what it holds now, and the most that it held.

The peak is the system's high-water mark. Never ``ru_maxrss`` on Linux, where it starts at the
parent's peak, and never USS while timing: walking the pages of a large process takes milliseconds.

Only Linux can set the mark back. On macOS and Windows it is the highest since the process started:
the peak of the runs is then at least that of loading, and a session that holds less than the
process did while it imported libraries seems to need nothing above that. The largest of both
phases, which is the objective, holds there too.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path

_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Memory of this process.

    Attributes:
        resident_mib: The memory that it holds now.
        peak_mib: The most that it held since :func:`reset_peak` (or since its start, where the
            system cannot reset).
        anonymous_mib: The part of `resident_mib` that is not page cache; None where the system does
            not tell.
    """

    resident_mib: float
    peak_mib: float
    anonymous_mib: float | None


def usage() -> Usage:
    """Returns the memory of this process."""
    if sys.platform == "linux":
        return parse_status(_STATUS.read_text(encoding="ascii", errors="replace"))
    # each child pays for what this module imports, and on Linux psutil is not needed
    import psutil

    info = psutil.Process().memory_info()
    if sys.platform == "win32":
        return Usage(
            resident_mib=info.rss / 2**20, peak_mib=info.peak_wset / 2**20, anonymous_mib=None
        )
    import resource

    # macOS counts ru_maxrss in bytes and starts it anew at exec
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Usage(resident_mib=info.rss / 2**20, peak_mib=peak / 2**20, anonymous_mib=None)


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
