"""A configuration with its outcome, and the limits that it has to keep."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from autotune.measure.outcome import Failure, Measurement, Outcome
from autotune.search.objective import P99_RUNS, THROUGHPUT, held_by_most_mib
from autotune.space.configuration import BASELINE, Configuration

_WORDS = {
    "max_error": ("error", "{:.3g}"),
    "max_drop": ("fall of the metric", "{:.3g}"),
    "max_memory_mib": ("peak memory", "{:.1f} MiB"),
    "max_held_memory_mib": ("held memory up to", "{:.1f} MiB"),
    "max_latency_ms": ("latency", "{:.4g} ms"),
    "max_p99_ms": ("99th percentile", "{:.4g} ms"),
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits that a selected configuration keeps; None means no limit.

    Attributes:
        max_error: Largest relative L2 error of an output.
        max_p99_ms: Longest 99th percentile of the latency, as clients see it under load.
        max_drop: By how much the user's own metric may fall.
        max_held_memory_mib: Most memory that the process may hold after all runs.
    """

    max_error: float = 0.05
    max_memory_mib: float | None = None
    max_latency_ms: float | None = None
    max_drop: float | None = None
    max_p99_ms: float | None = None
    max_held_memory_mib: float | None = None

    @property
    def fewest_runs(self) -> int:
        """The timed runs without which a measurement cannot show that it keeps the limits."""
        return 0 if self.max_p99_ms is None else P99_RUNS

    @property
    def bounds(self) -> dict[str, float]:
        """The upper bounds of measured quantities, by name."""
        bounds = {
            "latency_ms": self.max_latency_ms,
            "peak_memory_mib": self.max_memory_mib,
            "p99_ms": self.max_p99_ms,
            "held_memory_mib": self.max_held_memory_mib,
        }
        return {name: bound for name, bound in bounds.items() if bound is not None}

    @property
    def words(self) -> str:
        """The limits in words."""
        return ", ".join(
            f"{word} {form.format(limit)}"
            for name, (word, form) in _WORDS.items()
            if (limit := getattr(self, name)) is not None and limit < math.inf
        )

    def broken(self, measurement: Measurement) -> str:
        """Returns in words which limits a measurement surely breaks, by the rule of the search."""
        measured = {
            "max_error": measurement.fidelity.error,
            "max_drop": measurement.fidelity.drop or 0.0,
            "max_memory_mib": measurement.peak_memory_mib,
            "max_held_memory_mib": held_by_most_mib(measurement.held_memory_mib),
            "max_latency_ms": measurement.longest_ms,
            "max_p99_ms": measurement.tail_ms,
        }
        return "; ".join(
            f"{word} {form.format(measured[name])}, limit {form.format(limit)}"
            for name, (word, form) in _WORDS.items()
            if (limit := getattr(self, name)) is not None and measured[name] > limit
        )

    def violations(self, outcome: Outcome) -> dict[str, float]:
        """Returns Optuna's constraints, always all of them and in one order; above 0 is violated.

        Some of Optuna's samplers rely on that order, and on no key ever missing.
        """
        if isinstance(outcome, Failure):
            error = 1.0 if outcome.error is None else outcome.error / self.max_error - 1
            wrong = outcome.kind == "wrong_answers"
            # infinite errors come from NaN; a storage holds finite numbers
            return {
                "valid": -1.0 if wrong else 1.0,
                "error": min(error, 1e6) if wrong else -1.0,
                "memory": -1.0,
                "latency": -1.0,
            }
        return {
            "valid": -1.0,
            "error": self._excess_error(outcome.fidelity.error, outcome.fidelity.drop),
            "memory": self.memory_excess(outcome),
            "latency": self.latency_excess(outcome),
        }

    def latency_excess(self, measurement: Measurement) -> float:
        """Returns how far a measurement breaks a limit of latency; above 0 it surely does.

        Where its runs were too few for the 99th percentile, a lower one stands for it.
        """
        return max(
            _excess(measurement.longest_ms, self.max_latency_ms),
            _excess(measurement.tail_ms, self.max_p99_ms),
        )

    def memory_excess(self, measurement: Measurement) -> float:
        """Returns how far a measurement breaks a limit of memory; above 0 it does.

        Of held memory that is the least that the final comparison promises of one that holds it.
        """
        promised_mib = held_by_most_mib(measurement.held_memory_mib)
        return max(
            _excess(measurement.peak_memory_mib, self.max_memory_mib),
            _excess(promised_mib, self.max_held_memory_mib),
        )

    def admit_answers(self, error: float, drop: float | None) -> bool:
        """Returns whether answers with this error, and this fall of the metric, are right."""
        return self._excess_error(error, drop) <= 0

    def _excess_error(self, error: float, drop: float | None) -> float:
        excess = error / self.max_error - 1
        if self.max_drop is None or drop is None:
            return excess
        # a metric on few samples falls in steps, and a limit of 0 allows none
        return max(excess, (drop - self.max_drop) / max(self.max_drop, 0.01))

    def admit(
        self,
        values: Mapping[str, float | None],
        error: float = 0.0,
        drop: float | None = None,
    ) -> bool:
        """Returns whether these numbers keep all limits.

        Args:
            values: Measured quantities, by name. One that is missing or None breaks its limit.
        """
        measured = ((values.get(name), bound) for name, bound in self.bounds.items())
        return self.admit_answers(error, drop) and all(
            value is not None and value <= bound for value, bound in measured
        )

    def admit_measurement(self, measurement: Measurement) -> bool:
        """Returns whether a measurement keeps all limits."""
        values = {name: getattr(measurement, name) for name in self.bounds}
        values["latency_ms"] = measurement.longest_ms
        is_within = self.admit(values, measurement.fidelity.error, measurement.fidelity.drop)
        return is_within and self.memory_excess(measurement) <= 0

    def may_admit(self, measurement: Measurement) -> bool:
        """Returns whether a measurement may keep all limits.

        One whose runs were too few for the 99th percentile may; the final comparison has enough.
        """
        fidelity = measurement.fidelity
        return self.admit_answers(fidelity.error, fidelity.drop) and self.may_admit_cost(
            measurement
        )

    def may_admit_cost(self, measurement: Measurement) -> bool:
        """Returns whether a measurement may keep all limits but those of the answers."""
        return self.latency_excess(measurement) <= 0 and self.memory_excess(measurement) <= 0

    def count(self, trial: "Trial") -> bool:
        """Returns whether a trial counts; one that does not is measured again.

        A failure of the default may have passed. An error that was refused may be within the limit
        now.
        """
        outcome = trial.outcome
        if not isinstance(outcome, Failure):
            return True
        has_right_answers = outcome.error is not None and outcome.error <= self.max_error
        return trial.configuration != BASELINE and not has_right_answers


def latency_limit(
    limits: Limits, objectives: Collection[str], max_latency_ms: float | None
) -> Limits:
    """Returns the limits with the longest latency that a user allows.

    It bounds the run, and in a study of throughput the 99th percentile under load.
    """
    if THROUGHPUT in objectives:
        return replace(limits, max_p99_ms=max_latency_ms)
    return replace(limits, max_latency_ms=max_latency_ms)


def _excess(value: float, limit: float | None) -> float:
    return -1.0 if limit is None else value / limit - 1


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial of a study."""

    number: int
    configuration: Configuration
    outcome: Outcome

    @property
    def measurement(self) -> Measurement | None:
        """The numbers, or None where the configuration failed."""
        return self.outcome if isinstance(self.outcome, Measurement) else None
