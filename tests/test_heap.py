"""Histories of the heap: what a process allocated and freed before it opens a session."""

import pytest

from autotune.measure import heap


class _Blocks:
    """Stands for ``bytearray``; notes the sizes that were asked for."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, size: int) -> bytearray:
        self.sizes.append(size)
        return bytearray()


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> _Blocks:
    """Blocks that take no memory."""
    made = _Blocks()
    monkeypatch.setattr(heap, "bytearray", made, raising=False)
    return made


def test_the_first_history_is_none(blocks: _Blocks) -> None:
    """The search measures processes that did nothing before."""
    assert heap.live(0) == []
    assert blocks.sizes == []


def test_half_of_the_small_blocks_stay() -> None:
    """What stays between the holes moves what is allocated later to other addresses."""
    kept = heap.live(3)
    assert len(kept) == 32
    assert sum(map(len, kept)) < 2**20


def test_histories_cover_the_thresholds(blocks: _Blocks) -> None:
    """Three rounds free a block of some 100 KiB, one of some MiB and a larger one."""
    for history in range(1, 8):
        heap.live(history)
    large = [size for size in blocks.sizes if size >= 128 << 10]
    assert len(large) == 7
    assert max(large) <= 32 << 20
    first = sorted(large[:3])
    assert first[0] < 1 << 20 < first[1] < 8 << 20 < first[2]


def test_a_history_repeats(blocks: _Blocks) -> None:
    """All processes of a round have the same history."""
    heap.live(2)
    heap.live(2)
    half = len(blocks.sizes) // 2
    assert blocks.sizes[:half] == blocks.sizes[half:]
