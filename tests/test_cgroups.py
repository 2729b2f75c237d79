"""What the control groups leave to a process, read from trees like those of real machines."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.deploy import cgroups

V2 = "0::/kubepods.slice/pod1/work\n"
V1 = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n0::/docker/abc\n"
_NO_LIMIT_OF_V1 = "9223372036854771712\n"


def _root(folder: Path, groups: str, files: Mapping[str, str]) -> Path:
    """Returns a root with these groups of the process, and files of the file system of groups."""
    texts = {"proc/self/cgroup": groups} | {f"sys/fs/cgroup/{n}": t for n, t in files.items()}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="ascii")
    return folder


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        # a container with a namespace of its own sees its group as the root
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5),
        # the smallest of the group's own and those above it
        (
            V2,
            {
                "kubepods.slice/cpu.max": "400000 100000\n",
                "kubepods.slice/pod1/cpu.max": "200000 100000\n",
                "kubepods.slice/pod1/work/cpu.max": "max 100000\n",
            },
            2.0,
        ),
        # no group of that path: the file system begins at the container's own
        (V2, {"cpu.max": "50000 100000\n"}, 0.5),
        # it begins in the middle of the path
        (V2, {"work/cpu.max": "50000 100000\n", "cpu.max": "100000 100000\n"}, 0.5),
        # outside of the namespace
        ("0::/../other\n", {"cpu.max": "50000 100000\n"}, 0.5),
        (
            V1,
            {
                "cpu/docker/abc/cpu.cfs_quota_us": "-1\n",
                "cpu/docker/abc/cpu.cfs_period_us": "100000\n",
                "cpu/docker/cpu.cfs_quota_us": "50000\n",
                "cpu/docker/cpu.cfs_period_us": "100000\n",
            },
            0.5,
        ),
        (V2, {"kubepods.slice/pod1/work/cpu.max": "a few\n"}, None),
        (V2, {}, None),
        ("", {}, None),
    ],
)
def test_the_smallest_quota_of_all_groups_counts(
    tmp_path: Path, groups: str, files: dict[str, str], quota: float | None
) -> None:
    """A container's share of the cores decides how many threads are of use."""
    assert cgroups.cpu_quota(_root(tmp_path, groups, files)) == quota


@pytest.mark.parametrize(
    ("groups", "files", "limit", "free"),
    [
        (
            V2,
            {
                "kubepods.slice/pod1/memory.max": "1000\n",
                "kubepods.slice/pod1/memory.current": "900\n",
                "kubepods.slice/pod1/memory.stat": "anon 1\ninactive_file 200\n",
                "kubepods.slice/pod1/work/memory.max": "max\n",
            },
            1000,
            300,
        ),
        # the group of the smallest limit is not the one with the least left
        (
            V2,
            {
                "kubepods.slice/memory.max": "5000\n",
                "kubepods.slice/memory.current": "4990\n",
                "kubepods.slice/pod1/memory.max": "1000\n",
                "kubepods.slice/pod1/memory.current": "100\n",
                "kubepods.slice/pod1/work/memory.max": "max\n",
            },
            1000,
            10,
        ),
        (
            V1,
            {
                "memory/memory.limit_in_bytes": _NO_LIMIT_OF_V1,
                "memory/docker/abc/memory.limit_in_bytes": "1000\n",
                "memory/docker/abc/memory.usage_in_bytes": "400\n",
                "memory/docker/abc/memory.stat": "total_inactive_file 100\n",
            },
            1000,
            700,
        ),
        (V1, {"memory/memory.limit_in_bytes": _NO_LIMIT_OF_V1}, None, None),
        (V2, {}, None, None),
    ],
)
def test_the_smallest_limit_of_memory_counts(
    tmp_path: Path, groups: str, files: dict[str, str], limit: int | None, free: int | None
) -> None:
    """What children, inputs and batches may take follows from it."""
    root = _root(tmp_path, groups, files)
    assert (cgroups.memory_limit_bytes(root), cgroups.free_memory_bytes(root)) == (limit, free)


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        ("0::/pod1\n", {"pod1/cpu.stat": "usage_usec 9\nthrottled_usec 70\n"}),
        (V1, {"cpu/docker/abc/cpu.stat": "nr_throttled 3\nthrottled_time 70000\n"}),
    ],
)
def test_the_time_for_which_a_quota_stopped_the_process(
    tmp_path: Path, groups: str, files: dict[str, str]
) -> None:
    """A time slice in which it grows says nothing about the configuration."""
    assert cgroups.throttled_us(_root(tmp_path, groups, files)) == 70
    assert cgroups.throttled_us(tmp_path / "elsewhere") == 0
