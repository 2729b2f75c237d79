"""How far a run is from the machine's roof: the roofline model (Williams et al., CACM 52(4), 2009).

No run is faster than its products at the machine's peak, or than one passage of its weights,
inputs and outputs through memory. The peaks are measured, not read from a data sheet: large
products of matrices through ONNX Runtime, in fp32 and in int8, and a copy of as many bytes as the
run moves, so that what fits into a cache is compared with the speed of that cache.
"""

from dataclasses import dataclass

from autotune.deploy.records import Json, MeasuredAmount, MeasuredPositive, Whole, to_plain
from autotune.errors import CannotMeasureError
from autotune.facts.work import Work
from autotune.process.child import Child, ChildFailure, memory_limit

_CHILD = "autotune.inspection.peaks_child"
_TIME_LIMIT_S = 120.0

LARGEST_COPIED_BYTES = 256 << 20
"""More than the caches of most machines hold; a copy of more is no slower."""


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """The peaks of this machine, as ONNX Runtime's default reaches them.

    Attributes:
        float_per_s: Floating-point operations a second, in a large product of fp32 matrices.
        int8_per_s: Operations a second in a large product of eight-bit matrices.
        bytes_per_s: Bytes a second in a copy, read and written.
        moved_bytes: Bytes that this copy reads and writes, 128 KiB for each core at least.
    """

    float_per_s: MeasuredPositive
    int8_per_s: MeasuredPositive
    bytes_per_s: MeasuredPositive
    moved_bytes: Whole


@dataclass(frozen=True, kw_only=True)
class Headroom:
    """A latency beside the machine's roof.

    Attributes:
        arithmetic_ms: Time of the run's operations at the peaks.
        memory_ms: Time to move weights, inputs and outputs once.
        is_complete: Whether all products were counted; otherwise the roof is higher than shown.
    """

    latency_ms: MeasuredPositive
    arithmetic_ms: MeasuredAmount
    memory_ms: MeasuredAmount
    is_complete: bool

    @property
    def roof_ms(self) -> float:
        """The shortest time of a run on this machine."""
        return max(self.arithmetic_ms, self.memory_ms)

    @property
    def share(self) -> float:
        """The share of the roof that the run reaches; 1 means that nothing is left to gain.

        It can be above 1: a convolution may need fewer products than its definition has.
        """
        return self.roof_ms / self.latency_ms

    @property
    def bound(self) -> str:
        """What sets the roof: ``arithmetic`` or ``memory``."""
        return "arithmetic" if self.arithmetic_ms >= self.memory_ms else "memory"

    def to_json(self) -> Json:
        """Returns the fields and what follows from them as JSON values."""
        derived = {"roof_ms": self.roof_ms, "share": self.share, "bound": self.bound}
        return {**to_plain(self), **derived}


def measure_peaks(moved_bytes: int = LARGEST_COPIED_BYTES) -> Peaks:
    """Returns this machine's peaks; it takes three seconds, in a process of its own.

    Args:
        moved_bytes: Bytes that the copy reads and writes; at most :data:`LARGEST_COPIED_BYTES`.

    Raises:
        CannotMeasureError: the process failed.
    """
    request = {"do": "peaks", "moved_bytes": min(moved_bytes, LARGEST_COPIED_BYTES)}
    with Child(_CHILD, memory_limit()) as child:
        try:
            return child.request(request, _TIME_LIMIT_S, Peaks)
        except ChildFailure as failure:
            raise CannotMeasureError(
                f"the machine's peaks cannot be measured: {failure.message}"
            ) from None


def headroom(work: Work, peaks: Peaks, latency_ms: float) -> Headroom:
    """Returns how far a latency is from the roof."""
    arithmetic_s = (
        work.float_operations / peaks.float_per_s + work.int8_operations / peaks.int8_per_s
    )
    return Headroom(
        latency_ms=latency_ms,
        arithmetic_ms=arithmetic_s * 1e3,
        memory_ms=work.least_bytes / peaks.bytes_per_s * 1e3,
        is_complete=work.is_complete,
    )
