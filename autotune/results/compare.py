"""Configurations side by side, here and now: the gate of a build."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from autotune.deploy.config import Coverage, Interval
from autotune.deploy.session import SessionConfig
from autotune.facts.batches import Batching
from autotune.facts.model import Model
from autotune.facts.workload import Workload, workload_for
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import Effort, Failure, Measurement, Outcome
from autotune.results.peaks import SMALLEST_MEMORY_GAIN
from autotune.results.run_off import FINAL, OnStep, Plan, Rounds
from autotune.results.score import Score, is_gain, is_loss
from autotune.results.subjects import Contest, Subject, contest_of
from autotune.search.objective import DEFAULT, P99_RUNS, find

_BASELINE = 0


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The numbers of one configuration beside those of the baseline.

    Attributes:
        name: The configuration as the user named it.
        speedup: How many times faster than the baseline, with its interval; with several clients,
            by how much larger its throughput is.
        latency_ms: Its latency; with several clients, the mean as a client sees it.
        baseline_latency_ms: Latency of the baseline.
        peak_memory_mib: Its peak memory.
        baseline_peak_memory_mib: Peak memory of the baseline.
        error: Its largest fidelity error.
        faster: Whether it is faster by more than the noise.
        slower: Whether it is slower by more than the noise.
        leaner: Whether it needs less memory by more than the luck of the heap.
        better: Whether it is faster, or leaner and not slower.
        noise_floor: Relative difference below which nothing is claimed.
        rounds: Rounds in which it was measured.
        coverage: How much the comparison of the answers proves.
        throughput_per_s: Samples per second of all clients.
        baseline_throughput_per_s: The same of the baseline.
        p50_ms: Median latency, of the runs of all clients.
        baseline_p50_ms: Median latency of the baseline.
        p99_ms: The 99th percentile as MLPerf estimates it; None where there were too few runs.
        baseline_p99_ms: The 99th percentile of the baseline.
        batch: Samples of one run, where a config was tuned for batches; None where none was. The
            latency is then that of a batch, and the speed-up counts samples.
        baseline_batch: The same of the baseline.
        peak_memory_interval_mib: Its peak memory, with the range in which that of another process
            lies with 95 %; None where nothing was measured twice.
        baseline_peak_memory_interval_mib: The same of the baseline.
        memory_noise_floor: Relative difference below which no gain of memory is claimed.
    """

    name: str
    speedup: Interval
    latency_ms: float
    baseline_latency_ms: float
    peak_memory_mib: float
    baseline_peak_memory_mib: float
    error: float
    faster: bool
    slower: bool
    leaner: bool
    better: bool
    noise_floor: float
    rounds: int
    coverage: Coverage | None
    throughput_per_s: float
    baseline_throughput_per_s: float
    p50_ms: float
    baseline_p50_ms: float
    p99_ms: float | None
    baseline_p99_ms: float | None
    batch: int | None = None
    baseline_batch: int | None = None
    peak_memory_interval_mib: Interval | None = None
    baseline_peak_memory_interval_mib: Interval | None = None
    memory_noise_floor: float = SMALLEST_MEMORY_GAIN


@dataclass(frozen=True, kw_only=True)
class Comparisons:
    """The outcome of a comparison.

    Attributes:
        baseline: The baseline as the user named it; ``the default`` is the untouched model under
            default options.
        configs: The configurations that could be measured, in the order of the request.
        failures: Why the others could not, by name.
        model: The model whose answers are the right ones.
        untouched: Whether that is the model that was tuned; otherwise it is the first config's own
            file.
        error_data: ``"user"`` or ``"generated"``: the inputs on which errors were measured.
        clients: How many clients called at once.
    """

    baseline: str
    configs: tuple[Comparison, ...]
    failures: Mapping[str, Failure]
    model: str
    untouched: bool
    error_data: str
    clients: int = 1


class SessionMeasurer(Protocol):
    """The part of a measurer that a comparison uses."""

    def measure_session(
        self,
        path: Path,
        config: SessionConfig,
        effort: Effort,
        *,
        batch: int | None,
        sessions: str,
    ) -> Outcome:
        """Returns the outcome of opening `path` as `config` says."""

    def renew(self) -> None:
        """Starts a fresh reference."""

    def close(self) -> None:
        """Ends all processes."""


def duet_measurer(
    model: Model, workload: Workload, max_error: float, batching: Batching | None, clients: int
) -> SessionMeasurer:
    """Returns the real measurer."""
    return DuetMeasurer(model, workload, max_error=max_error, batching=batching, clients=clients)


MakeMeasurer = Callable[[Model, Workload, float, Batching | None, int], SessionMeasurer]


def compare(
    paths: Sequence[Path],
    source: Path | None = None,
    *,
    baseline: Path | None = None,
    data: Path | None,
    shapes: Mapping[str, tuple[int, ...]],
    max_error: float,
    clients: int | None = None,
    on_step: OnStep,
    make_measurer: MakeMeasurer = duet_measurer,
) -> Comparisons:
    """Returns how tuned configs and models compare with a baseline, by latency and memory.

    The rounds are those of a study's final comparison, retakes on a loud machine included.

    Args:
        paths: Tuned configs, and models (``.onnx``), which are opened with default options.
        source: The untouched model; if None, the one that the study beside a config names, as far
            as it is there and unchanged, or else the first file's own model.
        baseline: A config or model to compare with; if None, the untouched model under default
            options.
        data: Inputs; generated if None.
        shapes: Shapes of generated inputs.
        max_error: Largest fidelity error.
        clients: How many clients call at once, in a closed loop; if None, as many as the configs
            were tuned for.
        on_step: Called after each measurement.
        make_measurer: Makes the measurer.

    Raises:
        ConfigError: a config is wrong, its model files are others than it says, it needs something
            that this machine lacks, or the configs were tuned from different models.
        RequestError: the configs were tuned for different numbers of clients, and `clients` is
            None.
        CannotMeasureError: the baseline fails here, or the model's answers differ from run to run.
    """
    contest = contest_of(paths, source, baseline)
    return compare_subjects(
        contest,
        workload_for(contest.model, data, shapes),
        max_error=max_error,
        clients=clients,
        on_step=on_step,
        make_measurer=make_measurer,
    )


def compare_subjects(
    contest: Contest,
    workload: Workload,
    *,
    max_error: float,
    clients: int | None = None,
    on_step: OnStep,
    plan: Plan = FINAL,
    make_measurer: MakeMeasurer = duet_measurer,
) -> Comparisons:
    """Returns how subjects compare with a baseline; see :func:`compare`.

    Args:
        contest: The subjects and the baseline.
        workload: Inputs of the model.
        max_error: Largest fidelity error.
        clients: How many clients call at once, in a closed loop; if None, as many as the configs
            were tuned for.
        on_step: Called after each measurement.
        plan: How many rounds there are, and how much they cost.
        make_measurer: Makes the measurer.

    Raises:
        RequestError: the configs were tuned for different numbers of clients, and `clients` is
            None.
        CannotMeasureError: as :func:`compare`.
    """
    if clients is None:
        clients = contest.clients or 1
    field = dict(enumerate((contest.baseline, *contest.subjects)))
    measurer = make_measurer(
        contest.model, workload, max_error, contest.batching(workload), clients
    )
    try:
        rounds = Rounds(
            {number: _entrant(measurer, subject) for number, subject in field.items()},
            measurer.renew,
            find(DEFAULT),
            seed=0,
            on_step=on_step,
            plan=plan,
            fewest_runs=0 if clients == 1 else P99_RUNS,
        )
        scores = rounds.play()
    finally:
        measurer.close()
    return Comparisons(
        baseline=contest.baseline.name,
        configs=_comparisons(field, rounds, scores, clients),
        failures={field[number].name: failure for number, failure in rounds.failures.items()},
        model=str(contest.model.path),
        untouched=contest.untouched,
        error_data=workload.source,
        clients=clients,
    )


def _entrant(measurer: SessionMeasurer, subject: Subject) -> Callable[[Effort], Outcome]:
    """Returns what measures a subject."""
    return partial(
        measurer.measure_session,
        subject.model.resolve(),
        subject.session,
        sessions=subject.sessions,
        batch=subject.batch,
    )


def _comparisons(
    field: Mapping[int, Subject], rounds: Rounds, scores: Mapping[int, Score], clients: int
) -> tuple[Comparison, ...]:
    """Returns the numbers of all that could be measured beside those of the baseline."""
    sides = {
        number: _Side(score, _p50_ms(rounds.measurements(number)), clients)
        for number, score in scores.items()
    }
    return tuple(
        _comparison(field[number].name, side, sides[_BASELINE])
        for number, side in sides.items()
        if number != _BASELINE
    )


@dataclass(frozen=True)
class _Side:
    """One side of a comparison: its score over the rounds, and its median run by the clock."""

    score: Score
    p50_ms: float
    clients: int

    @property
    def throughput_per_s(self) -> float:
        """Samples of the completed runs: those under way over the latency (Little's law)."""
        return self.clients * (self.score.batch or 1) / self.score.latency_ms * 1e3

    @property
    def p99_ms(self) -> float | None:
        """The 99th percentile, where there were enough runs."""
        return self.score.values.get("p99_ms")


def _p50_ms(measurements: Sequence[Measurement]) -> float:
    return float(np.median([measurement.p50_ms for measurement in measurements]))


def _comparison(name: str, side: _Side, beside: _Side) -> Comparison:
    own, baseline = side.score, beside.score
    faster = is_gain(own.speedup, own.noise_floor)
    slower = is_loss(own.speedup, own.noise_floor)
    return Comparison(
        name=name,
        speedup=own.speedup,
        latency_ms=own.latency_ms,
        baseline_latency_ms=baseline.latency_ms,
        peak_memory_mib=own.peak_memory_mib,
        baseline_peak_memory_mib=baseline.peak_memory_mib,
        error=own.error,
        faster=faster,
        slower=slower,
        leaner=own.leaner,
        better=faster or (own.leaner and not slower),
        noise_floor=own.noise_floor,
        rounds=own.rounds,
        coverage=own.coverage,
        throughput_per_s=side.throughput_per_s,
        baseline_throughput_per_s=beside.throughput_per_s,
        p50_ms=side.p50_ms,
        baseline_p50_ms=beside.p50_ms,
        p99_ms=side.p99_ms,
        baseline_p99_ms=beside.p99_ms,
        batch=own.batch,
        baseline_batch=baseline.batch,
        peak_memory_interval_mib=own.peak_memory_interval,
        baseline_peak_memory_interval_mib=baseline.peak_memory_interval,
        memory_noise_floor=own.memory_noise_floor,
    )
