"""Peaks of memory as a person reads them: with the range of other processes, and without noise."""

from autotune.deploy.config import Interval
from autotune.results.result import Member
from autotune.results.score import SMALLEST_GAIN, is_gain, is_loss

_SMALLEST_RANGE_MIB = 0.1


def memory(mib: float, expected: Interval | None) -> str:
    """Returns a size in MiB, with the range in which another process lies: ``41.2 (38.0–44.1)``.

    Args:
        mib: The size.
        expected: The range; None, or one without any width, is left out.
    """
    if expected is None or expected.high - expected.low < _SMALLEST_RANGE_MIB:
        return f"{mib:.1f}"
    return f"{mib:.1f} ({expected.low:.1f}–{expected.high:.1f})"


def memory_change(member: Member) -> float:
    """Returns how much more memory it needs than the default, relative; 0 within the noise."""
    evidence, gain = member.evidence, member.gains.get("peak_memory_mib")
    own, default = evidence.peak_memory_mib, evidence.baseline_peak_memory_mib
    floor = evidence.memory_noise_floor
    if floor is None or gain is None:
        # an earlier version wrote 0 where a tiny model added no memory that could be seen
        change = own / default - 1 if default else 0.0
        return change if abs(change) >= SMALLEST_GAIN else 0.0
    is_other = is_gain(gain, floor) or is_loss(gain, floor)
    return 1 / gain.value - 1 if is_other else 0.0
