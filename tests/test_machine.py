"""What the kernel reports of the machine's neighbours."""

from pathlib import Path

import pytest

from autotune.measure import machine
from autotune.measure.machine import parse_stolen, stolen_ticks


def test_stolen_time_is_the_eighth_counter() -> None:
    """As proc_stat(5) has it; older or other systems tell nothing."""
    assert parse_stolen("cpu  393088 0 27355 2011620 1630 0 651 223 0 0\n") == 223
    assert parse_stolen("cpu  393088 0 27355 2011620\n") == 0
    assert parse_stolen("") == 0


def test_stolen_time_never_shrinks() -> None:
    """A later count is at least as high as an earlier one."""
    first = stolen_ticks()
    assert stolen_ticks() >= first >= 0


def test_a_system_without_the_file_has_no_stolen_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where there is no ``/proc/stat`` the count is 0."""
    monkeypatch.setattr(machine, "_STAT", tmp_path / "absent")
    assert stolen_ticks() == 0
