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


@pytest.mark.parametrize(
    ("work", "latency_ms", "bound", "roof_ms", "is_complete"),
    [
        # two million operations at a billion a second take 2 ms
        ({"float_operations": 2_000_000, "weight_bytes": 100}, 4.0, "arithmetic", 2.0, True),
        # a million bytes at a hundred million a second take 10 ms
        ({"float_operations": 1000, "boundary_bytes": 1_000_000}, 20.0, "memory", 10.0, True),
        # both kinds of arithmetic add up
        (
            {"float_operations": 1_000_000, "int8_operations": 4_000_000},
            4.0,
            "arithmetic",
            2.0,
            True,
        ),
        ({"float_operations": 2_000_000, "unknown": 1}, 4.0, "arithmetic", 2.0, False),
    ],
    ids=["arithmetic", "memory", "eight bits", "uncounted nodes"],
)
def test_the_slower_of_arithmetic_and_memory_is_the_roof(
    work: dict[str, int], latency_ms: float, bound: str, roof_ms: float, is_complete: bool
) -> None:
    room = headroom(_work(**work), PEAKS, latency_ms)
    assert (room.bound, room.is_complete) == (bound, is_complete)
    assert room.roof_ms == pytest.approx(roof_ms)
    assert room.share == pytest.approx(0.5)
