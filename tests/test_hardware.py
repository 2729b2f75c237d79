"""What the kernel says about this machine, read with care."""

import pytest

from autotune.facts import hardware
from autotune.facts.hardware import doubts


@pytest.mark.parametrize("text", ["", "\u00b2", "nr_throttled \u0664", "-1", "9" * 5000, "\ufffd"])
def test_odd_files_of_the_kernel_are_no_numbers(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """The doubts are told all the same."""
    machine = hardware.hardware()
    monkeypatch.setattr(hardware, "_read", lambda _: text)
    monkeypatch.setattr(hardware, "_THROTTLE_COUNTS", "cpu[0-9]*")
    warnings = " ".join(doubts(machine))
    assert "has stopped this container" not in warnings
    assert "throttled for heat" not in warnings
