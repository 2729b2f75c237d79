"""Configurations side by side with a baseline, here and now: in a closed loop, or under a load."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import numpy as np

from autotune.deploy.config import Coverage, Interval
from autotune.deploy.cpu import usable_cores
from autotune.errors import CannotMeasureError, RequestError
from autotune.facts.workload import Workload
from autotune.measure.configuration_run import LoadMeasurement
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.open_loop import poisson_arrivals
from autotune.measure.outcome import Effort, Failure, Measurement, Outcome
from autotune.measure.statistics import independent_share, percentile
from autotune.results.final_comparison import FINAL, OnStep, Rounds, RoundsPlan
from autotune.results.score import MAY_LOSE, Score, is_loss
from autotune.results.subjects import Lineup, Subject, refuse_other_runtimes
from autotune.search.finalists import EXACT_ERROR
from autotune.search.objective import DEFAULT, P99_RUNS, find

Row = TypeVar("Row")

_MAX_ERROR = 0.05
_MAX_PERPLEXITY_RISE = 0.02

# Other kernels round elsewhere: an error of 0.0100 may become one of 0.0104.
_SAME_ERROR = 1.2


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A config's numbers when it was tuned, and what holds of them now, as after an upgrade.

    Attributes:
        differences: How this machine and its versions differ from those that tuned it, in words.
        was_better: Whether it was faster or leaner than the default then. A study writes the
            default itself where nothing is better.
        as_fast: Whether the speed-up of then lies within the interval of now, or below it.
        same_answers: Whether the error is at most a fifth larger; None where errors were measured
            on inputs of another origin, or beside another model.
    """

    differences: tuple[str, ...]
    speedup: Interval
    peak_memory_mib: float
    error: float
    was_better: bool
    as_fast: bool
    same_answers: bool | None

    @classmethod
    def of(cls, subject: Subject, score: Score, error_data: str | None) -> "Tuned | None":
        """Returns what holds of a subject's evidence by its score; None where it has none.

        Args:
            error_data: The origin of the inputs of now; None where the errors are measured beside
                another model than the one that was tuned.
        """
        then = subject.evidence
        if then is None:
            return None
        floor = then.memory_noise_floor or 0.0
        was_leaner = then.baseline_peak_memory_mib > (1 + floor) * then.peak_memory_mib
        most = max(_SAME_ERROR * then.error, then.error + EXACT_ERROR)
        return cls(
            differences=subject.differences,
            speedup=then.speedup,
            peak_memory_mib=then.peak_memory_mib,
            error=then.error,
            was_better=then.significant or was_leaner,
            as_fast=score.speedup.high >= then.speedup.value,
            same_answers=score.error <= most if then.error_data == error_data else None,
        )


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One configuration of a comparison.

    Attributes:
        score: Its numbers, beside the baseline's of the same rounds.
        p50_ms: Median latency, of the runs of all clients.
        throughput_per_s: Samples per second of all clients.
        max_error: The error limit that applies: the user's, or the one that it was tuned for.
        tuned: What still holds of the numbers that it was tuned with; None for a model.
    """

    name: str
    score: Score
    p50_ms: float
    throughput_per_s: float
    max_error: float
    tuned: Tuned | None = None

    @property
    def slower(self) -> bool:
        """Whether it is slower than the baseline by more than the noise."""
        return is_loss(self.score.speedup, self.score.noise_floor)

    @property
    def better(self) -> bool:
        """Whether it is faster by more than the noise, or leaner and hardly slower by estimate."""
        own = self.score
        return own.significant or (own.leaner and own.speedup.value > 1 - MAY_LOSE)


@dataclass(frozen=True, kw_only=True)
class SideBySide(Generic[Row]):
    """The outcome of a comparison, in a closed loop or under an offered load.

    Attributes:
        baseline: What the others are compared with; ``the default`` is the untouched model under
            default options.
        configs: The configurations that could be measured, in the order of the request.
        failures: Why the others could not, by name.
        model: The model whose answers are the right ones.
        untouched: Whether that is the model that was tuned; otherwise it is the first config's own
            file.
        error_data: ``"user"`` or ``"generated"``: the inputs on which errors were measured.
        max_error: The largest error limit of the configurations.
    """

    baseline: Row
    configs: tuple[Row, ...]
    failures: Mapping[str, Failure]
    model: str
    untouched: bool
    error_data: str
    clients: int
    max_error: float


class Comparison(SideBySide[Compared]):
    """The outcome of a comparison in a closed loop."""


MakeMeasurer = Callable[..., DuetMeasurer]
"""Makes a measurer from what :class:`DuetMeasurer` takes."""


def compare(
    lineup: Lineup,
    workload: Workload,
    *,
    max_error: float | None = None,
    clients: int | None = None,
    on_step: OnStep,
    plan: RoundsPlan = FINAL,
    make_measurer: MakeMeasurer = DuetMeasurer,
) -> Comparison:
    """Returns how configurations compare with a baseline, by latency and memory.

    The rounds are those of a study's final comparison, retakes on a noisy machine included.

    Args:
        max_error: Largest fidelity error, or rise of a decoder's perplexity; if None, the one that
            each config was tuned for.
        clients: How many clients call at once, in a closed loop; if None, as many as the configs
            were tuned for.
        plan: How many rounds there are, and how much they cost.

    Raises:
        RequestError: the configs were tuned for different numbers of clients, and `clients` is
            None.
        CannotMeasureError: the baseline fails here, or the model's answers differ from run to run.
    """
    if clients is None:
        clients = lineup.clients or 1
    field = (lineup.baseline, *lineup.subjects)
    limits = [max_error or subject.max_error or _usual_limit(workload) for subject in field]
    batching = lineup.batching(workload)
    measurer = make_measurer(
        lineup.model, workload, max_error=max(limits), batching=batching, clients=clients
    )
    try:
        rounds = Rounds(
            {number: _entrant(measurer, subject) for number, subject in enumerate(field)},
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
    error_data = workload.source if lineup.untouched else None
    baseline, *configs = [
        _compared(
            field[number], own, rounds.measurements(number), limits[number], clients, error_data
        )
        for number, own in scores.items()
    ]
    return Comparison(
        baseline=baseline,
        configs=tuple(configs),
        failures={field[n].name: failure for n, failure in rounds.failures.items()},
        model=str(lineup.model.path),
        untouched=lineup.untouched,
        error_data=workload.source,
        clients=clients,
        max_error=max(limits),
    )


def _usual_limit(workload: Workload) -> float:
    """Returns the error limit where neither the user nor a config names one."""
    return _MAX_PERPLEXITY_RISE if workload.plan else _MAX_ERROR


def _entrant(measurer: DuetMeasurer, subject: Subject) -> Callable[[Effort], Outcome]:
    """Returns what measures a subject."""
    return partial(
        measurer.measure_session,
        subject.model.absolute(),
        subject.session,
        sessions=subject.sessions,
        batch=subject.batch,
        site=subject.site,
    )


def _compared(
    subject: Subject,
    own: Score,
    measurements: Sequence[Measurement],
    max_error: float,
    clients: int,
    error_data: str | None,
) -> Compared:
    return Compared(
        name=subject.name,
        score=own,
        p50_ms=float(np.median([measurement.p50_ms for measurement in measurements])),
        # those under way over the latency (Little's law)
        throughput_per_s=clients * (own.batch or 1) / own.latency_ms * 1e3,
        max_error=max_error,
        tuned=Tuned.of(subject, own, error_data),
    )


ROUNDS = 5
"""How often each configuration is measured."""

# The 99th percentile needs 662 independent requests in all rounds. At half of a server's capacity
# requests that wait for each other are worth a sixth of their number.
_FEWEST_REQUESTS = 900
_SHORTEST_S = 2.0
_LONGEST_S = 10.0
# The schedule goes to the child in one message.
_MOST_REQUESTS = 20_000
_BASELINE = 0


@dataclass(frozen=True, kw_only=True)
class UnderLoad:
    """The numbers of one configuration under the offered load.

    Attributes:
        kept_up: Whether it kept up with the offered load in every round. If not, it has no
            percentiles: the queue grows, and latencies with it, for as long as requests arrive.
        p50_ms: Median latency from the scheduled arrival to the answer, over all rounds.
        p90_ms: The 90th percentile as MLPerf estimates it; None where there were too few requests.
        achieved_per_s: Requests that were answered in a second, in the mean over the rounds.
        requests: Requests that were answered, in all rounds.
        coverage: How much the comparison of the answers proves.
    """

    name: str
    kept_up: bool
    p50_ms: float | None
    p90_ms: float | None
    p99_ms: float | None
    achieved_per_s: float
    requests: int
    error: float
    coverage: Coverage | None


@dataclass(frozen=True, kw_only=True)
class LoadComparison(SideBySide[UnderLoad]):
    """The outcome of a comparison under an offered load.

    Attributes:
        offered_per_s: Requests that arrived in a second, in the mean.
        rounds: How often each configuration was measured.
    """

    offered_per_s: float
    rounds: int


def compare_under_load(
    lineup: Lineup,
    workload: Workload,
    *,
    rate_per_s: float,
    clients: int | None = None,
    max_error: float | None = None,
    on_step: OnStep,
    rounds: int = ROUNDS,
    make_measurer: MakeMeasurer = DuetMeasurer,
) -> LoadComparison:
    """Returns how configurations compare with a baseline under an offered load.

    In each round every configuration, in random order and in a fresh process, gets requests by the
    same schedule. Percentiles are those of the latencies of all rounds.

    Args:
        clients: How many requests are answered at once; further ones wait in a queue. If None, as
            many as the configs were tuned for, or one for each core where that is one.
        max_error: Largest fidelity error; if None, the largest that a config was tuned for.

    Raises:
        RequestError: a config was tuned for batches, or the configs for different numbers of
            clients and `clients` is None.
        CannotMeasureError: the baseline fails here, or the model's answers differ from run to run.
    """
    refuse_other_runtimes(lineup, "compare --qps")
    field = (lineup.baseline, *lineup.subjects)
    for subject in field:
        if (subject.batch or 1) > 1:
            raise RequestError(
                f"{subject.name} was tuned for batches of {subject.batch}, and the requests of an "
                "open loop arrive one by one; leave out --qps"
            )
    if clients is None:
        tuned = lineup.clients or 1
        clients = tuned if tuned > 1 else usable_cores()
    requests = requests_of_a_round(rate_per_s, clients)
    schedules = [poisson_arrivals(rate_per_s, requests, seed) for seed in range(rounds)]
    largest = max_error or max((s.max_error or _usual_limit(workload)) for s in field)
    measurer = make_measurer(lineup.model, workload, max_error=largest, clients=clients)
    try:
        measurements, failures = _play(field, measurer, schedules, on_step)
    finally:
        measurer.close()
    rows = [
        _row(subject.name, measurements[number])
        for number, subject in enumerate(field)
        if number not in failures
    ]
    return LoadComparison(
        offered_per_s=rate_per_s,
        clients=clients,
        rounds=rounds,
        baseline=rows[_BASELINE],
        configs=tuple(rows[_BASELINE + 1 :]),
        failures={field[number].name: failure for number, failure in failures.items()},
        model=str(lineup.model.path),
        untouched=lineup.untouched,
        error_data=workload.source,
        max_error=largest,
    )


def requests_of_a_round(rate_per_s: float, clients: int) -> int:
    """Returns how many requests a configuration gets in one round.

    They arrive within two seconds; at low rates, within up to ten seconds, so that all rounds have
    enough of them for the 99th percentile. Each client gets two at least.
    """
    seconds = min(_LONGEST_S, max(_SHORTEST_S, _FEWEST_REQUESTS / rate_per_s))
    return min(_MOST_REQUESTS, max(2 * clients, round(rate_per_s * seconds)))


def _play(
    field: Sequence[Subject],
    measurer: DuetMeasurer,
    schedules: Sequence[Sequence[float]],
    on_step: OnStep,
) -> tuple[dict[int, list[LoadMeasurement]], dict[int, Failure]]:
    """Returns the measurements of all subjects by number, and why some have none.

    Args:
        field: The subjects, the baseline first.
    """
    measurements: dict[int, list[LoadMeasurement]] = {number: [] for number in range(len(field))}
    failures: dict[int, Failure] = {}
    order = random.Random(0)
    done = 0
    for arrivals_s in schedules:
        active = [number for number in measurements if number not in failures]
        for number in order.sample(active, len(active)):
            subject = field[number]
            outcome = measurer.measure_open_loop(
                subject.model.absolute(), subject.session, arrivals_s, sessions=subject.sessions
            )
            if isinstance(outcome, LoadMeasurement):
                measurements[number].append(outcome)
            elif number == _BASELINE:
                raise CannotMeasureError(f"the baseline failed: {outcome.message}")
            else:
                failures[number] = outcome
            done += 1
            on_step(done, len(schedules) * len(field))
    return measurements, failures


def _row(name: str, measurements: Sequence[LoadMeasurement]) -> UnderLoad:
    loops = [measurement.loop for measurement in measurements]
    latency_ms = [ms for loop in loops for ms in loop.latency_ms]
    kept_up = all(loop.kept_up for loop in loops)
    return UnderLoad(
        name=name,
        kept_up=kept_up,
        p50_ms=percentile(latency_ms, 50) if kept_up else None,
        p90_ms=_tail_ms(latency_ms, 90) if kept_up else None,
        p99_ms=_tail_ms(latency_ms, 99) if kept_up else None,
        achieved_per_s=sum(loop.achieved_per_s for loop in loops) / len(loops),
        requests=len(latency_ms),
        error=max(measurement.fidelity.error for measurement in measurements),
        coverage=measurements[-1].fidelity.coverage,
    )


def _tail_ms(latency_ms: Sequence[float], rank: int) -> float | None:
    """Returns a high percentile of latencies that follow each other; None if they are too few."""
    return percentile(latency_ms, rank, independent_share(latency_ms, rank))
