"""What a process holds, and the most that it held."""

import os
import sys
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from command_line import printed

from autotune.measure import memory
from autotune.measure.memory import Usage, parse_status, reset_peak, usage

_STATUS = """Name:\tpython3
VmPeak:\t  204800 kB
VmHWM:\t  102400 kB
VmRSS:\t   51200 kB
RssAnon:\t   30720 kB
Threads:\t1
"""


def test_the_status_is_read() -> None:
    assert parse_status(_STATUS) == Usage(resident_mib=50.0, peak_mib=100.0, anonymous_mib=30.0)


@pytest.mark.process
@pytest.mark.skipif(
    sys.platform != "linux" or not os.access("/proc/self/clear_refs", os.W_OK),
    reason="only Linux can set the mark back",
)
def test_reset_peak_forgets_what_was_freed() -> None:
    script = (
        "from autotune.measure import memory\n"
        "block = bytearray(b'x') * (300 << 20)\n"
        "del block\n"
        "before = memory.usage().peak_mib\n"
        "done = memory.reset_peak()\n"
        "print(int(done), before, memory.usage().peak_mib)\n"
    )
    done, before, after = map(float, printed(script).split())
    assert before > 300
    assert done
    assert after < before - 250


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is nothing to refuse")
def test_a_system_that_cannot_reset_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise PermissionError

    monkeypatch.setattr("pathlib.Path.write_text", refuse)
    assert not reset_peak()


def _pretend(patched: pytest.MonkeyPatch, platform: str, **memory_info: int) -> None:
    """Makes it look as if this were another system, whose psutil says that."""
    answer = SimpleNamespace(**memory_info)
    patched.setattr(psutil, "Process", lambda: SimpleNamespace(memory_info=lambda: answer))
    patched.setattr(sys, "platform", platform)


@pytest.mark.parametrize(
    ("platform", "peak", "peak_mib"),
    [("win32", {"peak_wset": 80 << 20}, 80.0), ("darwin", {}, 50.0)],
)
def test_elsewhere_psutil_is_asked(
    monkeypatch: pytest.MonkeyPatch, platform: str, peak: dict[str, int], peak_mib: float
) -> None:
    """The peak is the one that it tells, if any, and cannot be set back."""
    with monkeypatch.context() as patched:
        _pretend(patched, platform, rss=50 << 20, **peak)
        now = usage()
        can_reset = reset_peak()
    assert now == Usage(resident_mib=50.0, peak_mib=peak_mib, anonymous_mib=None)
    assert not can_reset


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's variables")
def test_a_history_leaves_no_memory_behind() -> None:
    """Not even where the thresholds are fixed, so that a freed block stays in the heap."""
    script = (
        "import numpy\n"
        "from autotune.measure import memory\n"
        "before = memory.usage().resident_mib\n"
        "kept = [memory.live_through(history) for history in range(1, 8)]\n"
        "print(memory.usage().resident_mib - before)"
    )
    fixed = {"MALLOC_MMAP_THRESHOLD_": str(64 << 20), "MALLOC_TRIM_THRESHOLD_": str(128 << 20)}
    assert float(printed(script, **fixed)) < 8


def test_histories_cover_the_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds free a block of some 100 KiB, one of some MiB and a larger one."""
    large: list[int] = []

    def empty(size: int, _: object) -> bytearray:
        large.append(size)
        return bytearray()

    monkeypatch.setattr(np, "empty", empty)
    for history in range(1, 8):
        memory.live_through(history)
    assert len(large) == 7
    assert max(large) <= 32 << 20
    first = sorted(large[:3])
    assert first[0] < 1 << 20 < first[1] < 8 << 20 < first[2]
