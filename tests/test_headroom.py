"""How far a latency is from the roof."""

import pytest

from autotune.facts.work import Work
from autotune.inspection.headroom import Peaks, headroom, measure_peaks

PEAKS = Peaks(float_per_s=1e9, int8_per_s=4e9, bytes_per_s=1e8, moved_bytes=1000)


def _work(**others: int) -> Work:
    numbers = {
        "float_operations": 0,
        "int8_operations": 0,
        "weight_bytes": 0,
        "boundary_bytes": 0,
        "unknown": 0,
    }
    return Work(**{**numbers, **others}, by_operator={})


def test_arithmetic_sets_the_roof() -> None:
    """Two million operations at a billion a second take 2 ms: a run of 4 ms reaches a half."""
    room = headroom(_work(float_operations=2_000_000, weight_bytes=100), PEAKS, 4.0)
    assert room.roof_ms == pytest.approx(2)
    assert room.share == pytest.approx(0.5)
    assert room.bound == "arithmetic"


def test_memory_sets_the_roof() -> None:
    """A million bytes at a hundred million a second take 10 ms, however few the operations."""
    room = headroom(_work(float_operations=1000, boundary_bytes=1_000_000), PEAKS, 20.0)
    assert room.bound == "memory"
    assert room.share == pytest.approx(0.5)


def test_eight_bit_work_has_a_peak_of_its_own() -> None:
    work = _work(float_operations=1_000_000, int8_operations=4_000_000)
    assert headroom(work, PEAKS, 4.0).arithmetic_ms == pytest.approx(2)


def test_uncounted_nodes_are_said() -> None:
    assert not headroom(_work(unknown=1, float_operations=1), PEAKS, 1.0).is_complete


def test_json_has_what_follows_from_the_fields() -> None:
    """A reader of the JSON need not repeat the formulas."""
    data = headroom(_work(float_operations=2_000_000), PEAKS, 4.0).to_json()
    assert (data["roof_ms"], data["share"], data["bound"]) == (2.0, 0.5, "arithmetic")


@pytest.mark.process
@pytest.mark.slow
def test_peaks_of_this_machine() -> None:
    peaks = measure_peaks(64 << 20)
    assert peaks.float_per_s > 1e8
    assert peaks.int8_per_s > 1e8
    assert peaks.bytes_per_s > 1e8
    assert 0.9 < peaks.moved_bytes / (64 << 20) < 1.1
