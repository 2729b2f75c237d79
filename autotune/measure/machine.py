"""What the kernel says of the neighbours: time stolen by the host, and waiting for a core."""

import re
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")
_PRESSURE = Path("/proc/pressure/cpu")


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """Counters since the machine was started; differences of two are what counts.

    Attributes:
        stolen_ticks: Scheduler ticks in which the host ran somebody else on our virtual cores; 0
            where the system does not tell.
        pressure_us: Time in which some thread of this machine waited for a core; 0 likewise.
    """

    stolen_ticks: int
    pressure_us: int

    def since(self, earlier: "Disturbance") -> "Disturbance":
        """Returns what was added after `earlier`."""
        return Disturbance(
            stolen_ticks=self.stolen_ticks - earlier.stolen_ticks,
            pressure_us=self.pressure_us - earlier.pressure_us,
        )


def disturbance() -> Disturbance:
    """Returns the counters now."""
    return Disturbance(
        stolen_ticks=parse_stolen(_first_line(_STAT)),
        pressure_us=parse_pressure(_first_line(_PRESSURE)),
    )


def parse_stolen(line: str) -> int:
    """Returns the eighth counter of the first line of ``/proc/stat`` (proc_stat(5))."""
    words = line.split()
    return int(words[8]) if len(words) > 8 and words[0] == "cpu" else 0


def parse_pressure(line: str) -> int:
    """Returns the total of the line ``some`` of ``/proc/pressure/cpu`` (kernel, PSI)."""
    found = re.fullmatch(r"some .*total=(\d+)\s*", line)
    return int(found[1]) if found else 0


def _first_line(path: Path) -> str:
    try:
        with path.open(encoding="ascii") as file:
            return file.readline()
    except OSError:
        return ""
