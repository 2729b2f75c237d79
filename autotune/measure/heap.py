"""What an application may have done to the heap before it opens a session.

glibc takes a large block from the heap, where it may leave a hole, once a block of that size was
mapped and freed: the threshold between both kinds grows with each freed mapping, up to 32 MiB
(mallopt(3), M_MMAP_THRESHOLD). So the peak of a session depends on what its process did before, by
a tenth and up to a third. An application has read files and images before it opens a session, and
nobody knows which; so the rounds of a final comparison have processes with different histories.

A history allocates and frees; it writes to no block, so it adds next to nothing to the memory that
a process holds. Each child pays for what this module imports.
"""

_SMALLEST_BYTES = 128 << 10  # glibc's threshold when a process starts
_LARGEST_BYTES = 32 << 20  # freed blocks above this leave the threshold as it is
# Multiples of it, without their whole part, are spread evenly however many there are.
_GOLDEN_RATIO = 0.6180339887498949
_SMALL_BLOCKS = 64
_SMALL_STEP_BYTES = 208


def live(history: int) -> list[bytearray]:
    """Allocates and frees blocks; returns those that a process keeps for as long as it lives.

    Args:
        history: Number of the history; 0 is that of a process that did nothing.
    """
    if history == 0:
        return []
    share = history * _GOLDEN_RATIO % 1
    freed = bytearray(int(_SMALLEST_BYTES * (_LARGEST_BYTES / _SMALLEST_BYTES) ** share))
    del freed
    # every second of some small blocks is freed again, so that other addresses follow
    small = [bytearray(_SMALL_STEP_BYTES * (history + n)) for n in range(_SMALL_BLOCKS)]
    return small[::2]
