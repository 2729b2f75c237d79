"""Stand-ins that tests of several modules share: a measurer without processes, and small spaces.

:func:`build_search` builds every search of the tests, and :class:`FakeWorld` every study.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import small_spaces

from autotune.deploy.config import Environment, Interval
from autotune.deploy.options import Value
from autotune.deploy.process_options import ProcessOptions
from autotune.facts.providers import CPU_STATE
from autotune.facts.workload import Workload
from autotune.measure.outcome import (
    SEARCH,
    Effort,
    Failure,
    Fidelity,
    IsBeaten,
    Measurement,
    Measurer,
    Memory,
    Outcome,
    never_beaten,
)
from autotune.results.result import StudyResult
from autotune.results.setting import Setting
from autotune.search.objective import DEFAULT, find
from autotune.search.observation import Observation, observe
from autotune.search.proposer import Prior, Proposer
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import Candidate
from autotune.space.parameters import PARAMETERS
from autotune.space.space import Condition, Parameter, Space
from autotune.study import builder
from autotune.study.begin import run_study
from autotune.study.loop import Search
from autotune.study.options import StudyOptions
from autotune.study.progress import OnProgress
from autotune.study.seams import MeasurerOptions, Seams

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


def under_load(single: Measurement, clients: int) -> Measurement:
    """Returns a measurement as one of several clients, whose 99th percentile is twice the mean."""
    mean_ms = single.latency_ms
    return replace(single, clients=clients, mean_ms=mean_ms, p99_ms=2 * mean_ms)


def refusal(message: str = "not on this machine") -> Failure:
    """Returns the failure of a candidate that ONNX Runtime refuses."""
    return Failure(kind="refused", phase="open", message=message)


class FakeMeasurer:
    """A measurer that computes instead of measuring.

    Attributes:
        searched: Candidates measured in the search, in order.
        raced: Candidates measured in the run-off, in order.
        processes: Options of the processes that had some, in order.
        renewals: How often the reference was started again.
        closed: Whether it was closed.
    """

    def __init__(self, cost: Cost, clients: int = 1, smallest_batch: int | None = None) -> None:
        self._clients = clients
        self._smallest_batch = smallest_batch
        self.searched: list[Candidate] = []
        self.raced: list[Candidate] = []
        self.processes: list[ProcessOptions] = []
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
        cost = self._cost(candidate)
        if isinstance(cost, Failure):
            return cost
        outcome = measurement(*cost)
        if self._clients > 1:
            outcome = under_load(outcome, self._clients)
        if self._smallest_batch is not None:
            batch = candidate.batch(self._smallest_batch)
            outcome = replace(outcome, batch=batch, p99_ms=2 * outcome.latency_ms)
        return replace(outcome, raced=is_beaten(outcome))

    def measure_with(
        self, candidate: Candidate, effort: Effort, process: ProcessOptions
    ) -> Outcome:
        """Returns what the cost function says, with a fifth less memory."""
        outcome = self.measure(candidate, effort)
        if isinstance(outcome, Failure):
            return outcome
        self.processes.append(process)
        return measurement(
            outcome.latency_ms, 0.8 * outcome.peak_memory_mib, outcome.fidelity.error
        )

    def canonical(self, candidate: Candidate) -> Candidate:
        """Every candidate stands for itself."""
        return candidate

    def answers_of(self, config: Path) -> Fidelity | Failure:
        """Returns right answers for any config that is there."""
        assert config.is_file()
        return Fidelity(error=0.0, cosine=1.0, max_difference=0.0, agreement=None)

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


def setting(within: Space, **changes: Any) -> Setting:
    """Returns the setting of a study over a space, of a model that is made up."""
    facts: dict[str, Any] = {
        "study": "model-0",
        "folder": Path("model.autotune"),
        "model": small_spaces.model(),
        "workload": Workload(feeds=(), source="generated", notes=()),
        "space": within,
        "objectives": find(DEFAULT),
        "limits": Limits(),
        "prefer": "latency",
        "seed": 0,
        "environment": Environment(
            autotune="0", onnxruntime="0", cpu="a cpu", cores=2, fingerprint="0"
        ),
    }
    return Setting(**{**facts, **changes})


def build_proposer(
    within: Space,
    objectives: Sequence[str] = DEFAULT,
    limits: Limits | None = None,
    seed: int = 0,
    prior: Prior | None = None,
) -> Proposer:
    """Returns a proposer for these objectives and limits."""
    tolerances = {objective.name: objective.tolerance for objective in find(objectives)}
    return Proposer(within, tolerances, (limits or Limits()).bounds, seed, prior)


def observed(
    trials: Sequence[Trial], objectives: Sequence[str] = DEFAULT, limits: Limits | None = None
) -> list[Observation]:
    """Returns the trials as a proposer sees them."""
    return [observe(trial, find(objectives), limits or Limits()) for trial in trials]


def build_search(
    measurer: Measurer,
    within: Space | None = None,
    *,
    study: optuna.Study | None = None,
    objectives: Sequence[str] = DEFAULT,
    limits: Limits | None = None,
    **options: Any,
) -> Search:
    """Returns a search over a space of threads, in a new study in memory, unless told otherwise."""
    study = study or optuna.create_study(directions=["minimize"] * len(objectives))
    search = builder.build_search(
        measurer,
        within or thread_space(),
        study=study,
        objectives=find(objectives),
        limits=limits or Limits(),
        **options,
    )
    search.heal()
    return search


class FakeWorld:
    """The outside world of studies whose measurers compute.

    Attributes:
        cost: What the measurers compute.
        measurers: The measurers that were made, in order.
        reference_ms: The scale that each of them was given.
    """

    def __init__(self, cost: Cost) -> None:
        self.cost = cost
        self.measurers: list[FakeMeasurer] = []
        self.reference_ms: list[float | None] = []

    def measurer(self, options: MeasurerOptions) -> FakeMeasurer:
        """Returns a new measurer."""
        smallest = None if options.batching is None else options.batching.smallest
        self.measurers.append(FakeMeasurer(self.cost, options.clients, smallest))
        self.reference_ms.append(options.reference_ms)
        return self.measurers[-1]

    @property
    def searched(self) -> list[Candidate]:
        """The candidates that all of them measured in the search."""
        return [candidate for measurer in self.measurers for candidate in measurer.searched]

    def seams(self, **others: Any) -> Seams:
        """Returns this world for a study, with `others` in place of some of it."""
        known = {"measurer": self.measurer, "lock": _no_lock, "providers": lambda: (CPU_STATE,)}
        return Seams(**{**known, **others})

    def tune(
        self,
        model: str | os.PathLike[str],
        *,
        on_progress: OnProgress = lambda _: None,
        seams: dict[str, Any] | None = None,
        **options: Any,
    ) -> StudyResult:
        """Does the job of :func:`autotune.tune` in this world."""
        record = StudyOptions.of(model, **options)
        return run_study(record, on_progress, self.seams(**(seams or {})))


def _no_lock(*_: object, **__: object) -> nullcontext[None]:
    """A computing measurer does not need the machine for itself."""
    return nullcontext()
