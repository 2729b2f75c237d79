"""What the kernel says about this machine, read with care."""

from pathlib import Path

import pytest

from autotune.deploy.cpu import cgroup_quota
from autotune.facts import hardware
from autotune.facts.hardware import timing_warnings


@pytest.mark.parametrize("text", ["", "\u00b2", "\u0664", "-1", "9" * 5000, "\ufffd"])
def test_odd_files_of_the_kernel_are_no_numbers(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    machine = hardware.hardware()
    monkeypatch.setattr(hardware, "_read", lambda _: text)
    monkeypatch.setattr(hardware, "_THROTTLE_COUNTS", "cpu[0-9]*")
    warnings = " ".join(timing_warnings(machine))
    assert "throttled for heat" not in warnings


def test_a_kernel_that_resets_no_peak_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = hardware.hardware()
    monkeypatch.setattr("sys.platform", "linux")
    for is_writable in (True, False):
        monkeypatch.setattr("os.access", lambda *_, answer=is_writable: answer)
        warned = any("peak memory" in warning for warning in timing_warnings(machine))
        assert warned is not is_writable


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu.max": "a few\n"}, None),
        ({}, None),
    ],
)
def test_the_quota_of_both_versions_of_cgroups(
    tmp_path: Path, files: dict[str, str], quota: float | None
) -> None:
    """A container's share of the cores decides how many threads are of use."""
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="ascii")
    assert cgroup_quota(tmp_path) == quota
