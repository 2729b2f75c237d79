"""What a process holds, and the most that it held."""

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from autotune.measure.memory import Usage, parse_status, reset_peak, usage

_STATUS = """Name:\tpython3
VmPeak:\t  204800 kB
VmHWM:\t  102400 kB
VmRSS:\t   51200 kB
RssAnon:\t   30720 kB
Threads:\t1
"""


def test_the_status_is_read() -> None:
    """The kernel's kibibytes become mebibytes under their names."""
    assert parse_status(_STATUS) == Usage(resident_mib=50.0, peak_mib=100.0, anonymous_mib=30.0)


def test_old_kernels_do_not_tell_anonymous_memory() -> None:
    """Without the kernel's line there is no number."""
    lines = [line for line in _STATUS.splitlines() if not line.startswith("RssAnon")]
    assert parse_status("\n".join(lines)).anonymous_mib is None


def test_usage_of_this_process_is_sensible() -> None:
    """A Python process holds more than a megabyte, and less than the machine has."""
    now = usage()
    assert now.resident_mib > 1
    assert now.peak_mib > 1
    assert now.resident_mib < 1 << 20


@pytest.mark.process
@pytest.mark.skipif(
    sys.platform != "linux" or not os.access("/proc/self/clear_refs", os.W_OK),
    reason="only Linux can set the mark back",
)
def test_reset_peak_forgets_what_was_freed() -> None:
    """After the reset the peak no longer counts an allocation that is gone."""
    script = (
        "from autotune.measure import memory\n"
        "block = bytearray(b'x') * (300 << 20)\n"
        "del block\n"
        "before = memory.usage().peak_mib\n"
        "done = memory.reset_peak()\n"
        "print(int(done), before, memory.usage().peak_mib)\n"
    )
    words = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    done, before, after = int(words[0]), float(words[1]), float(words[2])
    assert before > 300
    assert done
    assert after < before - 250


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is nothing to refuse")
def test_a_system_that_cannot_reset_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel's file may not be written the peak stays, and that is told."""

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError

    monkeypatch.setattr("pathlib.Path.write_text", refuse)
    assert not reset_peak()


def _pretend(patched: pytest.MonkeyPatch, platform: str, **memory_info: int) -> None:
    """Makes it look as if this were another system, whose psutil says that."""
    answer = SimpleNamespace(**memory_info)
    patched.setattr(psutil, "Process", lambda: SimpleNamespace(memory_info=lambda: answer))
    patched.setattr(sys, "platform", platform)


def test_windows_tells_the_peak_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows the peak is that of the working set, which cannot be set back."""
    with monkeypatch.context() as patched:
        _pretend(patched, "win32", rss=50 << 20, peak_wset=80 << 20)
        now = usage()
        can_reset = reset_peak()
    assert now == Usage(resident_mib=50.0, peak_mib=80.0, anonymous_mib=None)
    assert not can_reset


def test_macos_counts_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On macOS the peak is ru_maxrss in bytes, which cannot be set back either."""
    resource = pytest.importorskip("resource")
    with monkeypatch.context() as patched:
        _pretend(patched, "darwin", rss=50 << 20)
        patched.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=80 << 20))
        now = usage()
        can_reset = reset_peak()
    assert now == Usage(resident_mib=50.0, peak_mib=80.0, anonymous_mib=None)
    assert not can_reset
