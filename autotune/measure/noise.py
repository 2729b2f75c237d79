"""The noise check: how far apart measurements of the same thing come out on this machine."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from autotune.errors import CannotMeasureError
from autotune.facts import sample_models
from autotune.facts.generated import generate
from autotune.facts.model import describe
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import SEARCH, Measurement
from autotune.space.configuration import BASELINE

REPETITIONS = 8


@dataclass(frozen=True, kw_only=True)
class NoiseCheck:
    """How far measurements of the default against itself lie apart.

    Attributes:
        floor: The largest relative difference of a repetition from their median: one measurement
            cannot tell configurations apart that differ by less.
        plain_spread: Largest over smallest median run of the same repetitions by the clock alone:
            the spread in a tool that does not measure in pairs.
        contaminated: Share of the time slices that were disturbed.
    """

    floor: float
    plain_spread: float
    contaminated: float
    repetitions: int


def noise_check(on_step: Callable[[int, int], None]) -> NoiseCheck:
    """Measures the default of a small built model against itself, in fresh processes.

    Raises:
        CannotMeasureError: nothing can be measured here.
    """
    measurements: list[Measurement] = []
    with tempfile.TemporaryDirectory(prefix="autotune-") as folder:
        path = Path(folder) / "check.onnx"
        onnx.save(sample_models.separable_cnn(), path)
        model = describe(path)
        measurer = DuetMeasurer(model, generate(model, {}), max_error=0.05)
        try:
            for repetition in range(REPETITIONS):
                outcome = measurer.measure(BASELINE, SEARCH)
                if not isinstance(outcome, Measurement):
                    raise CannotMeasureError(f"the noise check failed: {outcome.message}")
                measurements.append(outcome)
                on_step(repetition + 1, REPETITIONS)
        finally:
            measurer.close()
    return summarise(measurements)


def summarise(measurements: list[Measurement]) -> NoiseCheck:
    """Returns the noise that `measurements` of one configuration show.

    Args:
        measurements: At least one.
    """
    ratios = np.asarray([m.ratio.value for m in measurements])
    plain = [m.p50_ms for m in measurements]
    # each time slice of the configuration has one of the reference beside it, and one came before
    # them all
    turns = sum(2 * m.turns + 1 for m in measurements)
    return NoiseCheck(
        floor=float(np.max(np.abs(ratios / np.median(ratios) - 1))),
        plain_spread=max(plain) / min(plain),
        contaminated=min(1.0, sum(m.contaminated_turns for m in measurements) / turns),
        repetitions=len(measurements),
    )
