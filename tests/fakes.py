"""Stand-ins that tests of several modules share: a measurer without processes, and small spaces.

:func:`build_search` builds every search of the tests, and :class:`FakeWorld` every study.
"""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import small_spaces
from optuna.samplers import BaseSampler

from autotune.deploy.config import Interval
from autotune.deploy.loaded import Environment
from autotune.deploy.options import Value
from autotune.facts.providers import CPU_STATE
from autotune.facts.workload import Workload
from autotune.graph.prepare import Preparer
from autotune.measure.judging import Judgement
from autotune.measure.outcome import (
    SEARCH,
    Effort,
    Failure,
    Fidelity,
    IsDominated,
    Measurement,
    Measurer,
    Memory,
    Outcome,
    never_dominated,
)
from autotune.results.result import StudyResult
from autotune.search.context import Context
from autotune.search.objective import DEFAULT, find
from autotune.search.proposer import Observation, Prior, Proposer, observe
from autotune.search.record import Record
from autotune.search.sampler import EffectsSampler
from autotune.search.start import portfolio
from autotune.search.trial import Limits, Trial
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.parameters import PARAMETERS
from autotune.space.space import Condition, Parameter, Space
from autotune.storage.database import Clock, Place, open_storage
from autotune.study.loop import Search
from autotune.study.measured_trial import MeasuredTrial
from autotune.study.options import StudyOptions
from autotune.study.other_builds import OtherBuilds
from autotune.study.progress import OnProgress
from autotune.study.run import run_study
from autotune.study.seams import Seams

Cost = Callable[[Configuration], tuple[float, float] | Failure]
"""Latency in ms and peak memory in MiB of a configuration, or why it fails."""

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
        undisturbed_turns=20,
        contaminated_turns=1,
        steady=True,
        stopped_early=False,
        spent_s={"configuration": 0.2},
        samples=None,
    )


def judged(trial: int, words: str = "", *, admitted: bool) -> Judgement:
    """Returns what all samples say of a member: within the limit, or far beyond it."""
    return Judgement(
        trial=trial,
        words=words,
        decision="within" if admitted else "beyond",
        samples=120,
        available=120,
        error=0.0 if admitted else 0.5,
        metric=None,
        reference_metric=None,
        drop=None,
        worst=(),
        companions=(),
        reason="",
        admitted=admitted,
    )


def under_load(single: Measurement, clients: int) -> Measurement:
    """Returns a measurement as one of several clients, whose 99th percentile is twice the mean."""
    mean_ms = single.latency_ms
    return replace(single, clients=clients, mean_ms=mean_ms, p99_ms=2 * mean_ms)


def refusal(message: str = "not on this machine") -> Failure:
    """Returns the failure of a configuration that ONNX Runtime refuses."""
    return Failure(kind="refused", phase="open", message=message)


class FakeMeasurer:
    """A measurer that computes instead of measuring; its function may return whole outcomes."""

    def __init__(
        self,
        cost: Cost | Callable[[Configuration], Outcome],
        clients: int = 1,
        smallest_batch: int | None = None,
    ) -> None:
        self._clients = clients
        self._smallest_batch = smallest_batch
        self.searched: list[Configuration] = []
        self.compared: list[Configuration] = []
        self.renewals = 0
        self.closed = False
        self._cost = cost

    @property
    def reference_ms(self) -> float:
        return REFERENCE_MS

    def measure(
        self,
        configuration: Configuration,
        effort: Effort,
        is_dominated: IsDominated = never_dominated,
    ) -> Outcome:
        """Returns what the cost function says; marked where the search would have given it up."""
        (self.searched if effort == SEARCH else self.compared).append(configuration)
        cost = self._cost(configuration)
        if isinstance(cost, Failure):
            return cost
        outcome = cost if isinstance(cost, Measurement) else measurement(*cost)
        if self._clients > 1:
            outcome = under_load(outcome, self._clients)
        if self._smallest_batch is not None:
            batch = configuration.batch(self._smallest_batch)
            outcome = replace(outcome, batch=batch, p99_ms=2 * outcome.latency_ms)
        return replace(outcome, stopped_early=is_dominated(outcome))

    def canonical(self, configuration: Configuration) -> Configuration:
        return configuration

    def answers_of(self, config: Path) -> Fidelity | Failure:
        assert config.is_file()
        return Fidelity(error=0.0, cosine=1.0, max_difference=0.0, agreement=None)

    def rescale(self, reference_ms: float) -> None:
        """Ignores it."""

    def renew(self) -> None:
        self.renewals += 1

    def close(self) -> None:
        self.closed = True


def thread_cost(configuration: Configuration) -> tuple[float, float] | Failure:
    """Returns a cost with a clear best: four threads, spinning, an arena that grows little."""
    values = configuration.to_json()
    latency = {0: 10.0, 1: 16.0, 2: 9.0, 4: 6.0}.get(int(values.get("intra_op_num_threads", 0)), 12)
    latency += {"on": 0.0, "stop_after_run": 0.5, "off": 1.5}[str(values.get("spinning", "on"))]
    memory = {"on": 100.0, "off": 80.0, "same_as_requested": 60.0}[str(values.get("arena", "on"))]
    return latency, memory


def parameter(name: str, *values: Value, unless: Condition | None = None) -> Parameter:
    return Parameter(
        name=name,
        values=values,
        default=PARAMETERS[name].default,
        when={},
        unless=unless or {},
        needs=(),
    )


def space(*parameters: Parameter) -> Space:
    return Space(name="made", description="made by hand", parameters=parameters, left_out={})


def thread_space() -> Space:
    return space(
        parameter("intra_op_num_threads", 0, 1, 2, 4),
        parameter("spinning", "on", "stop_after_run", "off", unless={"intra_op_num_threads": (1,)}),
        parameter("arena", "on", "off", "same_as_requested"),
    )


def setting(within: Space, **changes: Any) -> Context:
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
    return Context(**{**facts, **changes})


def build_proposer(
    within: Space,
    objectives: Sequence[str] = DEFAULT,
    limits: Limits | None = None,
    seed: int = 0,
    prior: Prior | None = None,
) -> Proposer:
    names = [objective.name for objective in find(objectives)]
    return Proposer(within, names, (limits or Limits()).bounds, seed, prior)


def observed(
    trials: Sequence[Trial], objectives: Sequence[str] = DEFAULT, limits: Limits | None = None
) -> list[Observation]:
    return [observe(trial, find(objectives), limits or Limits()) for trial in trials]


def build_search(
    measurer: Measurer,
    within: Space | None = None,
    *,
    study: optuna.Study | None = None,
    objectives: Sequence[str] = DEFAULT,
    limits: Limits | None = None,
    seed: int = 0,
    first: Sequence[Configuration] = (),
    early_stop: bool = True,
    budget: int = 100,
    report: OnProgress = lambda _: None,
    clock: Clock | None = None,
    worker: str = "",
    sampler: BaseSampler | None = None,
) -> Search:
    """Returns a search over a space of threads, in a new study in memory, unless told otherwise.

    Args:
        budget: How many trials the sampler counts on.
        worker: The name of this worker, where there are several.
        sampler: What proposes configurations; the model of effects if None.
    """
    study = study or optuna.create_study(directions=["minimize"] * len(objectives))
    within, limits, found = within or thread_space(), limits or Limits(), find(objectives)
    record = Record(found, limits)
    ctx = setting(within, objectives=found, limits=limits, folder=Path())
    clock = clock or Clock()
    objective = MeasuredTrial(study, ctx, record, measurer, report, worker, clock)
    search = Search(study, objective, [BASELINE, *first, *portfolio(within)], clock)
    if sampler is None:
        seed += len(study.get_trials(deepcopy=False))
        sampler = search.effects = EffectsSampler(
            within,
            found,
            limits,
            record,
            seed=seed,
            names=objective.names,
            budget=budget,
            early_stop=early_stop,
        )
    study.sampler = sampler
    return search


class MemoryStorage(optuna.storages.InMemoryStorage):
    """A storage without a disk, which gives attributes back as JSON does."""

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        super().set_study_user_attr(study_id, key, json.loads(json.dumps(value)))

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        super().set_trial_user_attr(trial_id, key, json.loads(json.dumps(value)))


STORAGES: dict[str, MemoryStorage] = {}
"""Those of this process by place: the next world of a test goes on with its studies."""


class FakeWorld:
    """The outside world of studies whose measurers compute.

    Args:
        cost: What configurations cost.
        on_disk: Whether studies have a database, for tests that look into it; it takes most of the
            time of a study that computes.
    """

    def __init__(self, cost: Cost, *, on_disk: bool = False) -> None:
        self.cost = cost
        self.on_disk = on_disk
        self.measurers: list[FakeMeasurer] = []
        self.reference_ms: list[float | None] = []

    def measurer(self, ctx: Context, _: Preparer, reference_ms: float | None) -> FakeMeasurer:
        smallest = None if ctx.batching is None else ctx.batching.smallest
        self.measurers.append(FakeMeasurer(self.cost, ctx.clients, smallest))
        self.reference_ms.append(reference_ms)
        return self.measurers[-1]

    @property
    def searched(self) -> list[Configuration]:
        return [configuration for measurer in self.measurers for configuration in measurer.searched]

    def seams(self, **others: Any) -> Seams:
        """Returns this world for a study, with `others` in place of some of it."""
        known = {
            "measurer": self.measurer,
            "lock": _no_lock,
            "storage": open_storage if self.on_disk else in_memory,
            "judge": _no_judge,
            "providers": lambda: (CPU_STATE,),
            "firing": lambda _: (),
            "other_builds": _NoOtherBuilds,
        }
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


def in_memory(place: Place, *_: object) -> nullcontext[MemoryStorage]:
    """Opens the storage of a place without a disk, as :func:`open_storage` opens the real one."""
    return nullcontext(STORAGES.setdefault(place.text, MemoryStorage()))


class _NoOtherBuilds(OtherBuilds):
    """Stands for a machine for which there is one build of ONNX Runtime."""

    _added = ()
    _missing = ()


def _no_judge(*_: object) -> Callable[[object], None]:
    return lambda finalist: None


def _no_lock(folder: Path, *_: object, **__: object) -> nullcontext[None]:
    """A computing measurer does not need the machine for itself."""
    folder.mkdir(parents=True, exist_ok=True)
    return nullcontext()
