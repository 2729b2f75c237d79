"""Options of the process: thresholds of glibc's allocator."""

import os
import subprocess
import sys

import pytest

from autotune.deploy import process_options
from autotune.deploy.process_options import (
    STEADY_HEAP,
    ProcessOptions,
    has_glibc,
    set_process_options,
)
from autotune.deploy.records import from_plain
from autotune.errors import ConfigError, FormatError

glibc = pytest.mark.skipif(not has_glibc(), reason="needs glibc")

# A block of 1 MiB is freed; after that a heap whose threshold grew serves the next one itself.
_SCRIPT = """
import ctypes, re, sys
from autotune.deploy.process_options import STEADY_HEAP, set_process_options
if sys.argv[1] == "set":
    set_process_options(STEADY_HEAP)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.free(libc.malloc(1 << 20))
block = libc.malloc(1 << 19)
heap = next(line for line in open("/proc/self/maps") if line.rstrip().endswith("[heap]"))
first, last = (int(end, 16) for end in heap.split()[0].split("-"))
print("heap" if first <= block < last else "mapped")
"""


def _where(word: str) -> str:
    environment = {n: text for n, text in os.environ.items() if not n.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, word],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@glibc
@pytest.mark.process
def test_large_blocks_stay_out_of_the_heap() -> None:
    """With the options a block is mapped that the heap would serve by itself."""
    assert _where("leave") == "heap"
    assert _where("set") == "mapped"


def test_another_c_library_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_options, "has_glibc", lambda: False)
    with pytest.raises(ConfigError, match="another C library"):
        set_process_options(STEADY_HEAP)


@pytest.mark.parametrize("answer", ["musl", "", None, ValueError("unrecognized")])
def test_other_c_libraries_are_told_apart(monkeypatch: pytest.MonkeyPatch, answer: object) -> None:

    def confstr(_: str) -> object:
        if isinstance(answer, ValueError):
            raise answer
        return answer

    monkeypatch.setattr(os, "confstr", confstr, raising=False)
    assert not has_glibc()


@pytest.mark.parametrize("threshold", [0, 4095, (32 << 20) + 1, -1, "131072", True, 131072.0])
def test_other_thresholds_are_refused(threshold: object) -> None:
    """A config is data of a stranger; no value outside the range reaches the allocator."""
    data = {"malloc_mmap_threshold_bytes": threshold, "malloc_trim_threshold_bytes": 131072}
    with pytest.raises(FormatError, match="malloc_mmap_threshold_bytes"):
        from_plain(ProcessOptions, data)
