"""What an application can set for its whole process: the thresholds of glibc's allocator.

glibc maps large blocks and gives them back to the system when they are freed, until one of some
size was freed once: from then on it serves such blocks from its heap, where they leave holes. Both
thresholds stay what they are once one of them was set (mallopt(3)), so the peak of a process gets
lower and repeats. It changes every allocation of the process, so nothing sets it unless the
application asks for it. Standard library only.
"""

import os
from dataclasses import dataclass
from typing import Annotated

from autotune.errors import ConfigError

SMALLEST_BYTES = 4 << 10
"""The smallest threshold: a page."""

LARGEST_BYTES = 32 << 20
"""The largest threshold; glibc refuses a larger one of mappings."""

# From glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def _threshold(value: int) -> str | None:
    if SMALLEST_BYTES <= value <= LARGEST_BYTES:
        return None
    return f"must be from {SMALLEST_BYTES} to {LARGEST_BYTES}"


Threshold = Annotated[int, _threshold]
"""A threshold of the allocator in bytes: from 4 KiB to 32 MiB."""


@dataclass(frozen=True, kw_only=True)
class ProcessOptions:
    """Options of a process.

    Attributes:
        malloc_mmap_threshold_bytes: A larger block is mapped, and goes back to the system when it
            is freed.
        malloc_trim_threshold_bytes: So much free memory at the end of the heap goes back as well.
    """

    malloc_mmap_threshold_bytes: Threshold
    malloc_trim_threshold_bytes: Threshold

    @property
    def environment(self) -> dict[str, str]:
        """The same as environment variables, which a program in any language can be given."""
        return {
            "MALLOC_MMAP_THRESHOLD_": str(self.malloc_mmap_threshold_bytes),
            "MALLOC_TRIM_THRESHOLD_": str(self.malloc_trim_threshold_bytes),
        }


STEADY_HEAP = ProcessOptions(
    malloc_mmap_threshold_bytes=128 << 10, malloc_trim_threshold_bytes=128 << 10
)
"""The thresholds with which glibc starts a process, fixed."""


def has_glibc() -> bool:
    """Returns whether the C library of this process is glibc."""
    try:
        return str(os.confstr("CS_GNU_LIBC_VERSION")).startswith("glibc")
    except (AttributeError, ValueError, OSError):  # Windows, macOS, musl
        return False


def set_process_options(chosen: ProcessOptions) -> None:
    """Sets the options in this process.

    Raises:
        ConfigError: the C library is another one than glibc, or refuses a value.
    """
    if not has_glibc():
        raise ConfigError("options of the process need glibc, and this is another C library")
    import ctypes  # numpy has imported it in most applications

    mallopt = ctypes.CDLL(None).mallopt
    for parameter, value in (
        (_M_MMAP_THRESHOLD, chosen.malloc_mmap_threshold_bytes),
        (_M_TRIM_THRESHOLD, chosen.malloc_trim_threshold_bytes),
    ):
        if not mallopt(parameter, value):
            raise ConfigError(f"the C library refuses {value} bytes as a threshold of its heap")
