"""Configurations side by side under an offered load: latencies in an open loop."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.deploy.config import Coverage
from autotune.deploy.cpu import usable_cores
from autotune.errors import CannotMeasureError, RequestError
from autotune.facts.workload import Workload
from autotune.measure.configuration_run import LoadMeasurement
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.open_loop import poisson_arrivals
from autotune.measure.outcome import Failure
from autotune.measure.statistics import independent_share, percentile
from autotune.results.compare import MAX_ERROR, MakeMeasurer, SideBySide
from autotune.results.final_comparison import OnStep
from autotune.results.subjects import Lineup, Subject, refuse_other_runtimes

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
    largest = max_error or max((s.max_error or MAX_ERROR) for s in field)
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
                subject.model.resolve(), subject.session, arrivals_s, sessions=subject.sessions
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
