"""What a measuring process reports: records that both ends of the channel import.

The child is :mod:`autotune.measure.measure_child`.
"""

from dataclasses import dataclass

from autotune.deploy.placement import Placement
from autotune.deploy.records import MeasuredAmount, MeasuredPositive, PositiveWhole, Several, Whole
from autotune.measure.device_memory import DeviceUsage


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The reply to ``open``.

    Attributes:
        load_ms: Time to create the session.
        base_mib: Memory before that: interpreter, libraries and inputs.
        load_peak_mib: The most memory that the process held while the session was created.
        placement: The nodes of each execution provider; None where the CPU provider is the only
            one.
    """

    load_ms: MeasuredAmount
    base_mib: MeasuredAmount
    load_peak_mib: MeasuredAmount
    placement: Placement | None = None


@dataclass(frozen=True, kw_only=True)
class FirstRuns:
    """The reply to ``first_runs``.

    Attributes:
        first_run_ms: Time of the first run.
        run_ms: Median time of the others.
        run_peak_mib: The most memory that the process held in all of them.
        copy_ms: Time of the copies to the device and back that the runs leave out; None where there
            are none.
        device: Memory of the device after them; None where it was not measured.
    """

    first_run_ms: MeasuredPositive
    run_ms: MeasuredPositive
    run_peak_mib: MeasuredAmount
    copy_ms: MeasuredAmount | None = None
    device: DeviceUsage | None = None


@dataclass(frozen=True, kw_only=True)
class Written:
    """The reply to ``answers``: the outputs are in the file that the message named."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The reply to ``load``: the session of the config is open."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """The reply to ``held``.

    Attributes:
        resident_mib: Memory that the process holds now.
        anonymous_mib: The part of it that is not page cache; None where the system does not tell.
    """

    resident_mib: MeasuredAmount
    anonymous_mib: MeasuredAmount | None


@dataclass(frozen=True, kw_only=True)
class TurnTimes:
    """The reply to ``turn``.

    Attributes:
        run_ns: The time of each run.
        cpu_ns: The CPU time of all threads in all of them.
    """

    run_ns: Several[PositiveWhole]
    cpu_ns: Whole
