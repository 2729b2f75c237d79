"""Stand-ins that tests of several modules share: a measurer without processes, and small spaces."""

from collections.abc import Callable
from dataclasses import replace

from autotune.deploy.config import Interval
from autotune.deploy.options import Value
from autotune.measure.outcome import (
    SEARCH,
    Effort,
    Failure,
    Fidelity,
    IsBeaten,
    Measurement,
    Memory,
    Outcome,
    never_beaten,
)
from autotune.space.candidate import Candidate
from autotune.space.parameters import PARAMETERS
from autotune.space.space import Condition, Parameter, Space

Cost = Callable[[Candidate], tuple[float, float] | Failure]
"""Latency in ms and peak memory in MiB of a candidate, or why it fails."""

REFERENCE_MS = 10.0


def measurement(latency_ms: float, memory_mib: float = 100.0, error: float = 0.0) -> Measurement:
    """Returns a measurement with these numbers, free of noise."""
    ratio = latency_ms / REFERENCE_MS
    return Measurement(
        ratio=Interval(value=ratio, low=ratio, high=ratio),
        latency_ms=latency_ms,
        memory=Memory(
            base_mib=50.0,
            load_peak_mib=50.0,
            run_peak_mib=50.0 + memory_mib,
            resident_mib=50.0 + memory_mib,
            anonymous_mib=None,
            growth_mib=0.0,
        ),
        fidelity=Fidelity(error=error, cosine=1.0, max_difference=error, agreement=None),
        p50_ms=latency_ms,
        p90_ms=None,
        p95_ms=None,
        p99_ms=None,
        load_ms=1.0,
        first_run_ms=latency_ms,
        cpu_s=2 * latency_ms / 1e3,
        runs=40,
        turns=20,
        quiet_turns=20,
        contaminated_turns=1,
        steady=True,
        raced=False,
        spent_s={"candidate": 0.2},
        samples=None,
    )


def refusal(message: str = "not on this machine") -> Failure:
    """Returns the failure of a candidate that ONNX Runtime refuses."""
    return Failure(kind="refused", phase="open", message=message)


class FakeMeasurer:
    """A measurer that computes instead of measuring.

    Attributes:
        searched: Candidates measured in the search, in order.
        raced: Candidates measured in the run-off, in order.
        renewals: How often the reference was started again.
        closed: Whether it was closed.
    """

    def __init__(self, cost: Cost) -> None:
        self.searched: list[Candidate] = []
        self.raced: list[Candidate] = []
        self.renewals = 0
        self.closed = False
        self._cost = cost

    @property
    def reference_ms(self) -> float:
        """Latency of the imagined baseline."""
        return REFERENCE_MS

    def measure(
        self, candidate: Candidate, effort: Effort, is_beaten: IsBeaten = never_beaten
    ) -> Outcome:
        """Returns what the cost function says; marked where the search would have given it up."""
        (self.searched if effort == SEARCH else self.raced).append(candidate)
        told = self._cost(candidate)
        if isinstance(told, Failure):
            return told
        found = measurement(*told)
        return replace(found, raced=is_beaten(found))

    def canonical(self, candidate: Candidate) -> Candidate:
        """Every candidate stands for itself."""
        return candidate

    def rescale(self, reference_ms: float) -> None:
        """Ignores it."""

    def renew(self) -> None:
        """Counts."""
        self.renewals += 1

    def close(self) -> None:
        """Notes it."""
        self.closed = True


def thread_cost(candidate: Candidate) -> tuple[float, float] | Failure:
    """Returns a cost with a clear best: four threads, spinning, an arena that grows little."""
    values = candidate.to_json()
    latency = {0: 10.0, 1: 16.0, 2: 9.0, 4: 6.0}.get(int(values.get("intra_op_num_threads", 0)), 12)
    latency += {"on": 0.0, "stop_after_run": 0.5, "off": 1.5}[str(values.get("spinning", "on"))]
    memory = {"on": 100.0, "off": 80.0, "same_as_requested": 60.0}[str(values.get("arena", "on"))]
    return latency, memory


def parameter(name: str, *values: Value, unless: Condition | None = None) -> Parameter:
    """Returns a parameter of a space made by hand."""
    return Parameter(
        name=name,
        values=values,
        default=PARAMETERS[name].default,
        when={},
        unless=unless or {},
        needs=(),
    )


def space(*parameters: Parameter) -> Space:
    """Returns a resolved space of these parameters."""
    return Space(name="made", description="made by hand", parameters=parameters, left_out={})


def thread_space() -> Space:
    """Returns a space of thirty candidates, with a condition."""
    return space(
        parameter("intra_op_num_threads", 0, 1, 2, 4),
        parameter("spinning", "on", "stop_after_run", "off", unless={"intra_op_num_threads": (1,)}),
        parameter("arena", "on", "off", "same_as_requested"),
    )
