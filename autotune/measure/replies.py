"""What a measuring process reports: records and words that both ends of the channel import.

The child is :mod:`autotune.measure.measure_child`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.deploy.config import LengthTimes
from autotune.deploy.placement import Placement
from autotune.deploy.records import (
    MeasuredAmount,
    MeasuredPositive,
    PositiveWhole,
    Several,
    Text,
    Whole,
)
from autotune.facts.output_parts import Producer
from autotune.measure.device_memory import DeviceUsage
from autotune.measure.memory import Usage

STEPS, PROMPTS = "steps", "prompts"
"""The two parts of a generation that are timed, each in a duet of its own."""

TOKENS = "tokens"
"""Name of the array of a window of text."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """The reply to ``open``.

    Attributes:
        base: Memory before that: interpreter, libraries and inputs.
        loaded: Memory once the session exists; its peak is that of the creation.
        inputs: Names of the inputs that must be fed, in their order.
        optional: Names of those with a default value.
    """

    load_ms: MeasuredAmount
    base: Usage
    loaded: Usage
    peak_was_reset: bool = True
    placement: Placement | None = None
    inputs: tuple[Text, ...] = ()
    optional: tuple[Text, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FirstRuns:
    """The reply to ``first_runs``.

    Attributes:
        run_ms: Median time of the others.
        after: Memory after all of them; its peak is that of the runs.
        lengths: The times of a generation after each prompt; empty where a sample is run as it is.
            `run_ms` is that of a step then.
        too_slow: Whether the first steps took longer than they may, and nothing more was run.
    """

    first_run_ms: MeasuredPositive
    run_ms: MeasuredPositive
    after: Usage
    copy_ms: MeasuredAmount | None = None
    device: DeviceUsage | None = None
    lengths: tuple[LengthTimes, ...] = ()
    too_slow: bool = False

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
        run_ns: The time of each run of a sample.
        round: How many runs one after another belong together: one of each sample where these
            differ in shape.
    """

    run_ns: Several[PositiveWhole]
    cpu_ns: Whole
    round: PositiveWhole = 1


@dataclass(frozen=True, kw_only=True)
class Producers:
    """The reply to ``producers``: the producers of each output of a model."""

    of_outputs: Mapping[str, tuple[Producer, ...]]
