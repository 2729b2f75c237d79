"""A measurer that answers from a recorded table, with the noise that was recorded."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from recording import Luck, Numbers, Recording

from autotune.deploy.config import Interval
from autotune.measure.outcome import (
    FINAL_COMPARISON,
    Effort,
    Failure,
    Fidelity,
    IsDominated,
    Measurement,
    Memory,
    Outcome,
    never_dominated,
)
from autotune.space.configuration import BASELINE, Configuration


class ReplayMeasurer:
    """Answers from `recording`; see :class:`autotune.measure.outcome.Measurer`.

    Each answer is the recorded truth times luck, drawn from that of all recorded measurements, the
    longer ones for a final comparison: most are within a per cent or two, some far off. The same
    seed gives a configuration the same luck.

    Args:
        recording: The table.
        seed: Of the luck.

    Attributes:
        measured: How often each configuration was measured.
    """

    def __init__(self, recording: Recording, seed: int) -> None:
        self.measured: dict[Configuration, int] = {}
        self._recording = recording
        self._seed = seed

    @property
    def reference_ms(self) -> float:
        """Latency of the recorded baseline."""
        return self._recording.truth[BASELINE].latency_ms

    def measure(
        self,
        configuration: Configuration,
        effort: Effort,
        is_dominated: IsDominated = never_dominated,
    ) -> Outcome:
        """Returns what was recorded, with luck.

        Raises:
            KeyError: the configuration is not in the table.
        """
        count = self.measured[configuration] = self.measured.get(configuration, 0) + 1
        configuration = self.canonical(configuration)
        if configuration in self._recording.failed:
            return self._recording.failed[configuration]
        numbers = self._recording.truth[configuration]
        limit = 4 * self._recording.header.max_error
        if numbers.error > limit:
            message = f"error {numbers.error:.2g} is above {limit:g}"
            return Failure(
                kind="wrong_answers", phase="answers", message=message, error=numbers.error
            )
        is_long = effort.half_width <= FINAL_COMPARISON.half_width
        luck = self._recording.long_luck if is_long else self._recording.short_luck
        measurement = _measurement(
            self._with(luck, numbers, f"{configuration.key} {count}"), self.reference_ms
        )
        return replace(measurement, stopped_early=is_dominated(measurement))

    def _with(self, luck: Sequence[Luck], numbers: Numbers, name: str) -> Numbers:
        random = np.random.default_rng([self._seed, *name.encode()])
        drawn = luck[int(random.integers(len(luck)))]
        return replace(numbers, **{key: getattr(numbers, key) * by for key, by in drawn.items()})

    def canonical(self, configuration: Configuration) -> Configuration:
        """Returns the configuration that stands for `configuration` in the table."""
        return self._recording.duplicates.get(configuration, configuration)

    def answers_of(self, _: Path) -> Fidelity | Failure:
        """Returns right answers: there is no model whose answers could be wrong."""
        return Fidelity(error=0.0, cosine=1.0, max_difference=0.0, agreement=None)

    def rescale(self, reference_ms: float) -> None:
        """Does nothing: the table has its scale."""

    def renew(self) -> None:
        """Does nothing: there is no reference."""

    def close(self) -> None:
        """Does nothing: there is no process."""


def _measurement(numbers: Numbers, reference_ms: float) -> Measurement:
    """Returns recorded numbers as a measurement of a quiet machine."""
    ratio = numbers.latency_ms / reference_ms
    return Measurement(
        ratio=Interval(
            value=ratio, low=ratio * (1 - numbers.half_width), high=ratio * (1 + numbers.half_width)
        ),
        latency_ms=numbers.latency_ms,
        memory=Memory(
            base_mib=0.0,
            load_peak_mib=0.0,
            run_peak_mib=numbers.peak_memory_mib,
            resident_mib=numbers.peak_memory_mib,
            anonymous_mib=None,
            growth_mib=0.0,
        ),
        fidelity=Fidelity(
            error=numbers.error, cosine=1.0, max_difference=numbers.error, agreement=None
        ),
        p50_ms=numbers.latency_ms,
        p90_ms=None,
        p95_ms=None,
        p99_ms=None,
        load_ms=numbers.load_ms,
        first_run_ms=numbers.latency_ms,
        cpu_s=numbers.cpu_s,
        runs=40,
        turns=20,
        undisturbed_turns=20,
        contaminated_turns=0,
        steady=True,
        stopped_early=False,
        spent_s={},
        samples=None,
    )
