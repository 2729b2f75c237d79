"""A candidate with its outcome, and the limits that it has to keep."""

from dataclasses import dataclass

from autotune.measure.outcome import Failure, Measurement, Outcome
from autotune.space.candidate import Candidate


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits that an emitted configuration keeps; None means no limit.

    Attributes:
        max_error: Largest relative L2 error of an output.
        max_memory_mib: Largest peak memory that the session adds.
        max_latency_ms: Longest run.
        max_drop: By how much the user's own metric may fall.
    """

    max_error: float = 0.05
    max_memory_mib: float | None = None
    max_latency_ms: float | None = None
    max_drop: float | None = None

    @property
    def bounds(self) -> dict[str, float]:
        """The upper bounds of measured quantities, by name."""
        bounds = {"latency_ms": self.max_latency_ms, "peak_memory_mib": self.max_memory_mib}
        return {name: bound for name, bound in bounds.items() if bound is not None}

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
            "memory": _excess(outcome.peak_memory_mib, self.max_memory_mib),
            "latency": _excess(outcome.latency_ms, self.max_latency_ms),
        }

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
        self, latency_ms: float, peak_memory_mib: float, error: float, drop: float | None = None
    ) -> bool:
        """Returns whether these numbers keep all limits."""
        return (
            self.admit_answers(error, drop)
            and _excess(peak_memory_mib, self.max_memory_mib) <= 0
            and _excess(latency_ms, self.max_latency_ms) <= 0
        )


def _excess(value: float, limit: float | None) -> float:
    return -1.0 if limit is None else value / limit - 1


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial of a study.

    Attributes:
        number: Its number in the study.
        candidate: The candidate that was measured.
        outcome: The measurement, or the failure.
    """

    number: int
    candidate: Candidate
    outcome: Outcome

    @property
    def measurement(self) -> Measurement | None:
        """The numbers, or None where the candidate failed."""
        return self.outcome if isinstance(self.outcome, Measurement) else None
