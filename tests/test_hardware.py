"""What the kernel says about this machine, read with care."""

import pytest

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
