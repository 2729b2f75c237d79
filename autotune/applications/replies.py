"""What the replaying child replies."""

from dataclasses import dataclass

from autotune.deploy.passed import Interface
from autotune.deploy.records import MeasuredAmount, MeasuredPositive, Whole


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How many blocks of work a thread does in a second."""

    blocks_per_s: MeasuredPositive


@dataclass(frozen=True, kw_only=True)
class OpenedSessions:
    """All sessions are open.

    Attributes:
        load_s: Time to open them.
        interfaces: What an application sees of each.
    """

    load_s: MeasuredAmount
    interfaces: tuple[Interface, ...]


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """One replay of all calls.

    Attributes:
        seconds: How long it took.
        cpu_s: CPU time of the process.
        peak_mib: The most memory so far, above what the process held before its sessions.
        held_mib: Memory that it holds now, above the same.
    """

    seconds: MeasuredPositive
    cpu_s: MeasuredAmount
    peak_mib: MeasuredAmount
    held_mib: MeasuredAmount


@dataclass(frozen=True, kw_only=True)
class Saved:
    """All calls were made, and what was asked for is written.

    Attributes:
        input_bytes: The size of the inputs of each call; 0 of openings and closings.
    """

    input_bytes: tuple[Whole, ...]
