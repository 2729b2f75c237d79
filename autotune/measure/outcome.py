"""What a measurement gives: numbers, or a failure that is data. And the seam to what measures."""

from dataclasses import asdict, dataclass
from typing import Any, Protocol

from autotune.config import Interval
from autotune.space.candidate import Candidate


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """How far outputs are from those of the unoptimised model, worst output.

    Attributes:
        error: Relative L2 error, mean over the validation samples; of integers, strings and
            booleans the share that differs. Infinite where NaN or Inf appeared.
        cosine: Smallest cosine similarity.
        max_difference: Largest absolute difference.
        agreement: Share of equal arg-max along the last axis, where that looks like classes.
    """

    error: float
    cosine: float
    max_difference: float
    agreement: float | None


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of the measuring process, by phase.

    Attributes:
        base_mib: Before the session was created: interpreter, libraries and inputs.
        load_peak_mib: The most that it held while the session was created.
        run_peak_mib: The most that it held in the first runs over all inputs.
        resident_mib: What it held after them.
        anonymous_mib: What of that is not page cache; None where the system does not tell.
    """

    base_mib: float
    load_peak_mib: float
    run_peak_mib: float
    resident_mib: float
    anonymous_mib: float | None

    @property
    def peak_mib(self) -> float:
        """What the session added at its highest: the objective."""
        return max(self.load_peak_mib, self.run_peak_mib) - self.base_mib


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The numbers of one candidate.

    Attributes:
        ratio: Latency in runs of the reference, with its 95 % interval.
        latency_ms: `ratio` times the study's reference latency; comparable within a study.
        memory: Memory by phase.
        fidelity: How far the answers are from the unoptimised model's.
        p50_ms: Median of the candidate's own runs, as a clock saw them.
        p90_ms: As MLPerf estimates it; None where there were too few runs. Likewise p95, p99.
        p95_ms: See `p90_ms`.
        p99_ms: See `p90_ms`.
        load_ms: Creating the session.
        first_run_ms: The first run.
        cpu_ms: CPU time of a run, all threads.
        runs: Timed runs.
        turns: Timed turns.
        quiet_turns: Turns that the estimate rests on.
    """

    ratio: Interval
    latency_ms: float
    memory: Memory
    fidelity: Fidelity
    p50_ms: float
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    load_ms: float
    first_run_ms: float
    cpu_ms: float
    runs: int
    turns: int
    quiet_turns: int

    @property
    def peak_memory_mib(self) -> float:
        """The memory objective; see :class:`Memory`."""
        return self.memory.peak_mib

    def to_json(self) -> dict[str, Any]:
        """Returns the record as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Measurement":
        """Returns the record that :meth:`to_json` gave."""
        nested = {
            "ratio": Interval(**data["ratio"]),
            "memory": Memory(**data["memory"]),
            "fidelity": Fidelity(**data["fidelity"]),
        }
        return cls(**{**data, **nested})


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a candidate has no numbers.

    Attributes:
        kind: ``wrong_answers``, ``refused`` (ONNX Runtime said no), ``crashed``, ``killed``,
            ``timeout``, ``out_of_memory``, ``protocol`` or ``prepare`` (the model could not be
            made).
        phase: ``prepare``, ``open``, ``run``, ``answers`` or ``turns``.
        message: What happened, in a sentence.
        error: The fidelity error, where that is why.
    """

    kind: str
    phase: str
    message: str
    error: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the record as JSON values."""
        return asdict(self)


Outcome = Measurement | Failure


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much a measurement may cost.

    Attributes:
        time_cap_s: Longest time of the duet.
        half_width: The duet ends early once its interval is this narrow, relative to its value.
    """

    time_cap_s: float
    half_width: float


SEARCH = Effort(time_cap_s=1.6, half_width=0.01)
RUN_OFF = Effort(time_cap_s=1.6, half_width=0.005)


class Measurer(Protocol):
    """The one seam to the outside world: a candidate in, an outcome out."""

    @property
    def reference_ms(self) -> float:
        """Latency of the baseline that ratios are multiplied with."""

    def measure(self, candidate: Candidate, effort: Effort) -> Outcome:
        """Returns the outcome of measuring `candidate`.

        Raises:
            CannotMeasureError: it is not the candidate that fails: the baseline itself does.
        """

    def renew(self) -> None:
        """Starts the reference again, so that the luck of one process does not colour a round."""

    def close(self) -> None:
        """Ends every process. What was measured is not touched."""
