"""A trial as the models of the search see it: numbers by name, and which limits it breaks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.measure.outcome import Failure
from autotune.search.objective import Objective, values
from autotune.search.trial import Limits, Trial
from autotune.space.configuration import Configuration


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What one trial tells the models.

    Attributes:
        values: Its positive numbers, each smaller the better it is, by the name of the quantity;
            None where it failed.
        violations: How far it breaks each limit; above 0 is a violation. ``valid`` and ``error``
            are always there.
        is_unmade: Whether its model file could not be made.
    """

    configuration: Configuration
    values: Mapping[str, float] | None
    violations: Mapping[str, float]
    is_unmade: bool = False

    @property
    def is_admitted(self) -> bool:
        """Whether it keeps all limits."""
        return max(self.violations.values()) <= 0


def observe(trial: Trial, objectives: Sequence[Objective], limits: Limits) -> Observation:
    """Returns the observation of a trial of a study with these objectives and limits."""
    measurement, outcome = trial.measurement, trial.outcome
    numbers = None
    if measurement is not None:
        own = values(measurement, objectives)
        numbers = {
            "p99_ms": measurement.tail_ms,
            **{o.name: o.cost(own[o.name]) for o in objectives if o.name in own},
            "latency_ms": measurement.latency_ms,
            "peak_memory_mib": measurement.peak_memory_mib,
            "held_memory_mib": measurement.held_memory_mib,
        }
    return Observation(
        configuration=trial.configuration,
        values=numbers,
        violations=limits.violations(outcome),
        is_unmade=isinstance(outcome, Failure) and outcome.phase == "prepare",
    )
