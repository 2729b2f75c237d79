"""What a measuring process reports: records that both ends of the channel import.

The child is :mod:`autotune.measure.measure_child`.
"""

from dataclasses import dataclass

from autotune.deploy.placement import Placement
from autotune.deploy.records import MeasuredAmount, MeasuredPositive, PositiveWhole, Several, Whole
from autotune.measure.device_memory import DeviceUsage
from autotune.measure.lengths import LengthTimes
from autotune.measure.memory import Usage


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The reply to ``open``.

    Attributes:
        base: Memory before that: interpreter, libraries and inputs.
        loaded: Memory once the session exists; its peak is that of the creation.
        peak_was_reset: Whether the system could set the peak back before the session. If not, the
            peaks are upper bounds: they count what the process held while it started.
        placement: The nodes of each execution provider; None where the CPU provider is the only
            one.
    """

    load_ms: MeasuredAmount
    base: Usage
    loaded: Usage
    peak_was_reset: bool = True
    placement: Placement | None = None


@dataclass(frozen=True, kw_only=True)
class FirstRuns:
    """The reply to ``first_runs``.

    Attributes:
        first_run_ms: Time of the first run.
        run_ms: Median time of the others.
        after: Memory after all of them; its peak is that of the runs.
        copy_ms: Time of the copies to the device and back that the runs leave out; None where there
            are none.
        device: Memory of the device after them; None where it was not measured.
        lengths: The times of a generation after each prompt; empty where a sample is run as it is.
            `run_ms` is that of a step then.
    """

    first_run_ms: MeasuredPositive
    run_ms: MeasuredPositive
    after: Usage
    copy_ms: MeasuredAmount | None = None
    device: DeviceUsage | None = None
    lengths: tuple[LengthTimes, ...] = ()

    @property
    def ttft_ms(self) -> float:
        """The mean time of a prompt."""
        return sum(item.ttft_ms for item in self.lengths) / max(1, len(self.lengths))


@dataclass(frozen=True, kw_only=True)
class Done:
    """The reply where there is nothing to say: a config is open, or answers are written."""


@dataclass(frozen=True, kw_only=True)
class SliceTimes:
    """The reply to ``slice``.

    Attributes:
        run_ns: The time of each run.
        cpu_ns: The CPU time of all threads in all of them.
    """

    run_ns: Several[PositiveWhole]
    cpu_ns: Whole
