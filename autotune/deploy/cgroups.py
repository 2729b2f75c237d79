"""What the control groups of this process leave to it, on Linux. Standard library only.

A limit may stand in the group of the process or in any group above it, and the smallest counts. In
a container without a namespace of its own for groups, ``/proc/self/cgroup`` names the group as the
host sees it, while the file system of groups begins at the container's.
"""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
"""Where ``proc`` and ``sys`` lie."""

_GROUPS = "sys/fs/cgroup"


def cpu_quota(root: Path = ROOT) -> float | None:
    """Returns the CPU quota in cores, such as 1.5; None where there is none."""
    quotas = []
    for folder, version in _groups("cpu", root):
        if version == 2:
            limit, _, period = _read(folder / "cpu.max").partition(" ")
        else:
            limit = _read(folder / "cpu.cfs_quota_us")
            period = _read(folder / "cpu.cfs_period_us")
        # no quota is "max" in version 2, and -1 in version 1
        if _is_number(limit) and _is_number(period) and int(limit) and int(period):
            quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def throttled_us(root: Path = ROOT) -> int:
    """Returns for how long the quota has stopped this process and its groups, in µs.

    Only its growth has a meaning. It is always 0 where there is no quota.
    """
    total_ns = 0
    for folder, version in _groups("cpu", root):
        name, unit_ns = ("throttled_usec", 1000) if version == 2 else ("throttled_time", 1)
        total_ns += unit_ns * _entry(folder / "cpu.stat", name)
    return total_ns // 1000


def memory_limit_bytes(root: Path = ROOT) -> int | None:
    """Returns the most memory that this process and its groups may take; None without a limit."""
    return min((limit for limit, _ in _memory(root)), default=None)


def free_memory_bytes(root: Path = ROOT) -> int | None:
    """Returns how much more memory the groups may take; None without a limit.

    Pages of files that were not read for a while count as free: the kernel gives them up first.
    """
    return min((max(0, limit - used) for limit, used in _memory(root)), default=None)


def _memory(root: Path) -> Iterator[tuple[int, int]]:
    """Yields the limit of each group that has one, and what it uses, in bytes."""
    for folder, version in _groups("memory", root):
        if version == 2:
            names = ("memory.max", "memory.current", "inactive_file")
        else:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        limit, used = (_read(folder / name) for name in names[:2])
        # version 1 writes a number near 2^63 where there is none
        if _is_number(limit) and int(limit) < 1 << 60:
            given_up = _entry(folder / "memory.stat", names[2])
            yield int(limit), (int(used) if _is_number(used) else 0) - given_up


def _groups(controller: str, root: Path) -> Iterator[tuple[Path, int]]:
    """Yields the folder of each group of this process from its own upwards, and the version."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if not controllers:
            top, version = root / _GROUPS, 2
        elif controller in controllers.split(","):
            top, version = root / _GROUPS / controller, 1
        else:
            continue
        parts = [part for part in group.split("/") if part not in ("", "..")]
        # the file system may begin at any group above that of the process
        own = next(
            (top.joinpath(*parts[i:]) for i in range(len(parts)) if _is_there(top, parts[i:])), top
        )
        while True:
            yield own, version
            if own == top:
                break
            own = own.parent


def _is_there(top: Path, parts: list[str]) -> bool:
    try:
        return top.joinpath(*parts).is_dir()
    except OSError:
        return False


def _entry(path: Path, name: str) -> int:
    """Returns the number behind a name in a file of such pairs; 0 where there is none."""
    for line in _read(path).splitlines():
        key, _, number = line.partition(" ")
        if key == name and _is_number(number):
            return int(number)
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
