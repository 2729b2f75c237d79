"""Configurations side by side under an offered load: latencies in an open loop."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.deploy.config import Coverage
from autotune.deploy.cpu import usable_cores
from autotune.deploy.session import SessionConfig
from autotune.errors import CannotMeasureError, RequestError
from autotune.facts.model import Model
from autotune.facts.workload import Workload, workload_for
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.open_loop import poisson_arrivals
from autotune.measure.outcome import Failure
from autotune.measure.statistics import percentile
from autotune.measure.visit import LoadMeasurement
from autotune.results.run_off import OnStep
from autotune.results.subjects import Contest, Subject, contest_of

ROUNDS = 5
"""How often each configuration is measured."""

# The 99th percentile needs 662 requests in all rounds.
_FEWEST_REQUESTS = 140
_SHORTEST_S = 2.0
_LONGEST_S = 10.0
# The schedule goes to the child in one message.
_MOST_REQUESTS = 20_000
_BASELINE = 0


@dataclass(frozen=True, kw_only=True)
class UnderLoad:
    """The numbers of one configuration under the offered load.

    Attributes:
        name: The configuration as the user named it.
        kept_up: Whether it kept up with the offered load in every round. If not, it has no
            percentiles: the queue grows, and latencies with it, for as long as requests arrive.
        p50_ms: Median latency from the scheduled arrival to the answer, over all rounds.
        p90_ms: The 90th percentile as MLPerf estimates it; None where there were too few requests.
        p99_ms: The 99th percentile, in the same way.
        achieved_per_s: Requests that were answered in a second, in the mean over the rounds.
        requests: Requests that were answered, in all rounds.
        error: Largest fidelity error.
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
class LoadComparison:
    """The outcome of a comparison under an offered load.

    Attributes:
        offered_per_s: Requests that arrived in a second, in the mean.
        clients: How many requests are answered at once.
        rounds: How often each configuration was measured.
        baseline: The numbers of the baseline.
        configs: Those of the configurations that could be measured, in the order of the request.
        failures: Why the others could not, by name.
        model: The model whose answers are the right ones.
        untouched: Whether that is the model that was tuned; otherwise it is the first config's own
            file.
        error_data: ``"user"`` or ``"generated"``: the inputs on which errors were measured.
    """

    offered_per_s: float
    clients: int
    rounds: int
    baseline: UnderLoad
    configs: tuple[UnderLoad, ...]
    failures: Mapping[str, Failure]
    model: str
    untouched: bool
    error_data: str


class LoadMeasurer(Protocol):
    """The part of a measurer that a comparison under load uses."""

    def measure_open_loop(
        self, path: Path, config: SessionConfig, arrivals_s: Sequence[float], *, sessions: str
    ) -> LoadMeasurement | Failure:
        """Returns the outcome of opening `path` as `config` says and sending it requests."""

    def close(self) -> None:
        """Ends all processes."""


def load_measurer(model: Model, workload: Workload, max_error: float, clients: int) -> LoadMeasurer:
    """Returns the real measurer."""
    return DuetMeasurer(model, workload, max_error=max_error, clients=clients)


MakeLoadMeasurer = Callable[[Model, Workload, float, int], LoadMeasurer]


def compare_under_load(
    paths: Sequence[Path],
    source: Path | None = None,
    *,
    rate_per_s: float,
    clients: int | None,
    baseline: Path | None,
    data: Path | None,
    shapes: Mapping[str, tuple[int, ...]],
    max_error: float,
    on_step: OnStep,
    make_measurer: MakeLoadMeasurer = load_measurer,
) -> LoadComparison:
    """Returns the latencies of tuned configs and models where requests arrive at a given rate.

    In each round every configuration, in random order and in a fresh process, gets requests by the
    same schedule. Percentiles are those of the latencies of all rounds.

    Args:
        paths: Tuned configs, and models; see :func:`autotune.results.subjects.contest_of`.
        source: The untouched model, if it is known.
        rate_per_s: Requests that arrive in a second, in the mean.
        clients: How many requests are answered at once; further ones wait in a queue. If None, as
            many as the configs were tuned for, or one for each core where that is one.
        baseline: A config or model to compare with; if None, the untouched model under default
            options.
        data: Inputs; generated if None.
        shapes: Shapes of generated inputs.
        max_error: Largest fidelity error.
        on_step: Called after each measurement.
        make_measurer: Makes the measurer.

    Raises:
        ConfigError: as :func:`autotune.results.subjects.contest_of`.
        RequestError: a config was tuned for batches, or the configs for different numbers of
            clients and `clients` is None.
        CannotMeasureError: the baseline fails here, or the model's answers differ from run to run.
    """
    contest = contest_of(paths, source, baseline)
    return compare_contest_under_load(
        contest,
        workload_for(contest.model, data, shapes),
        rate_per_s=rate_per_s,
        clients=clients,
        max_error=max_error,
        on_step=on_step,
        make_measurer=make_measurer,
    )


def compare_contest_under_load(
    contest: Contest,
    workload: Workload,
    *,
    rate_per_s: float,
    clients: int | None,
    max_error: float,
    on_step: OnStep,
    rounds: int = ROUNDS,
    make_measurer: MakeLoadMeasurer = load_measurer,
) -> LoadComparison:
    """Returns how subjects compare with a baseline; see :func:`compare_under_load`.

    Args:
        contest: The subjects and the baseline.
        workload: Inputs of the model.
        rate_per_s: Requests that arrive in a second, in the mean.
        clients: How many requests are answered at once; see :func:`compare_under_load`.
        max_error: Largest fidelity error.
        on_step: Called after each measurement.
        rounds: How often each configuration is measured.
        make_measurer: Makes the measurer.

    Raises:
        RequestError: as :func:`compare_under_load`.
        CannotMeasureError: in the same way.
    """
    field = (contest.baseline, *contest.subjects)
    for subject in field:
        if (subject.batch or 1) > 1:
            raise RequestError(
                f"{subject.name} was tuned for batches of {subject.batch}, and the requests of an "
                "open loop arrive one by one; leave out --qps"
            )
    if clients is None:
        tuned = contest.clients or 1
        clients = tuned if tuned > 1 else usable_cores()
    requests = requests_of_a_round(rate_per_s, clients)
    schedules = [poisson_arrivals(rate_per_s, requests, seed) for seed in range(rounds)]
    measurer = make_measurer(contest.model, workload, max_error, clients)
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
        model=str(contest.model.path),
        untouched=contest.untouched,
        error_data=workload.source,
    )


def requests_of_a_round(rate_per_s: float, clients: int) -> int:
    """Returns how many requests a configuration gets in one round.

    They arrive within two seconds; at low rates, within up to ten seconds, so that all rounds have
    enough of them for the 99th percentile. Each client gets two at least.

    Args:
        rate_per_s: Requests that arrive in a second, in the mean.
        clients: How many requests are answered at once.
    """
    seconds = min(_LONGEST_S, max(_SHORTEST_S, _FEWEST_REQUESTS / rate_per_s))
    return min(_MOST_REQUESTS, max(2 * clients, round(rate_per_s * seconds)))


def _play(
    field: Sequence[Subject],
    measurer: LoadMeasurer,
    schedules: Sequence[Sequence[float]],
    on_step: OnStep,
) -> tuple[dict[int, list[LoadMeasurement]], dict[int, Failure]]:
    """Returns the measurements of all subjects by number, and why some have none.

    Args:
        field: The subjects, the baseline first.
        measurer: Measures them.
        schedules: The arrivals of each round.
        on_step: Called after each measurement.
    """
    measurements: dict[int, list[LoadMeasurement]] = {number: [] for number in range(len(field))}
    failures: dict[int, Failure] = {}
    order = random.Random(0)
    done = 0
    for arrivals_s in schedules:
        racing = [number for number in measurements if number not in failures]
        for number in order.sample(racing, len(racing)):
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
        p90_ms=percentile(latency_ms, 90) if kept_up else None,
        p99_ms=percentile(latency_ms, 99) if kept_up else None,
        achieved_per_s=sum(loop.achieved_per_s for loop in loops) / len(loops),
        requests=len(latency_ms),
        error=max(measurement.fidelity.error for measurement in measurements),
        coverage=measurements[-1].fidelity.coverage,
    )
