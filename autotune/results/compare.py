"""Configurations side by side with a baseline, here and now."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from autotune.deploy.config import Interval, Numbers, Serving
from autotune.errors import RequestError
from autotune.facts.workload import Workload
from autotune.measure.answers import largest_again
from autotune.measure.judging import AllSamples, JudgedConfiguration, Judgement
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import Effort, Failure, Measurement, Outcome
from autotune.results.final_comparison import FINAL, OnStep, Rounds, RoundsPlan
from autotune.results.score import MAY_LOSE, is_leaner, is_loss
from autotune.results.subjects import Lineup, Subject
from autotune.search.objective import DEFAULT, P99_RUNS, find

_MAX_ERROR = 0.05
_MAX_PERPLEXITY_RISE = 0.02


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
    def of(cls, subject: Subject, now: Numbers, error_data: str | None) -> "Tuned | None":
        """Returns what holds of a subject's evidence by its numbers of now; None for a model.

        Args:
            error_data: The origin of the inputs of now; None where the errors are measured beside
                another model than the one that was tuned.
        """
        config = subject.config
        if config is None:
            return None
        then = config.evidence
        most = largest_again(then.error, then.coverage)
        return cls(
            differences=subject.differences,
            speedup=then.speedup,
            peak_memory_mib=then.peak_memory_mib,
            error=then.error,
            was_better=then.significant or is_leaner(then),
            as_fast=now.speedup.high >= then.speedup.value,
            same_answers=now.error <= most if config.evidence.error_data == error_data else None,
        )


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One configuration of a comparison.

    Attributes:
        numbers: Its numbers, beside the baseline's of the same rounds.
        p50_ms: Median latency, of the runs of all clients.
        throughput_per_s: Samples per second of all clients.
        max_error: The error limit that applies: the user's, or the one that it was tuned for.
        tuned: What still holds of the numbers that it was tuned with; None for a model.
        on_all: Its answers to all of the user's samples; None where there are not more than are
            compared anyway.
    """

    name: str
    numbers: Numbers
    p50_ms: float
    throughput_per_s: float
    max_error: float
    tuned: Tuned | None = None
    on_all: Judgement | None = None

    @property
    def slower(self) -> bool:
        """Whether it is slower than the baseline by more than the noise."""
        return is_loss(self.numbers.speedup, self.numbers.noise_floor)

    @property
    def better(self) -> bool:
        """Whether it is faster by more than the noise, or leaner and hardly slower by estimate."""
        own = self.numbers
        return own.significant or (is_leaner(own) and own.speedup.value > 1 - MAY_LOSE)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The outcome of a comparison.

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

    baseline: Compared
    configs: tuple[Compared, ...]
    failures: Mapping[str, Failure]
    model: str
    untouched: bool
    error_data: str
    clients: int
    max_error: float


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
    _check_reference(lineup, max_error)
    clients = clients or lineup.clients or 1
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
    if lineup.untouched and _has_more_samples(workload):
        subjects = [field[number] for number in scores][1:]
        configs = [
            _with_all(*pair, lineup, workload) for pair in zip(configs, subjects, strict=True)
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


def _check_reference(lineup: Lineup, max_error: float | None) -> None:
    """Refuses a limit of the error where there is no model to compare with.

    Raises:
        RequestError: each file is its own reference, and `max_error` is not None.
    """
    if max_error is not None and not lineup.untouched:
        raise RequestError(
            "--max-error needs the model that was tuned, which is not where the study found it: "
            "name it with --model. A file that is compared with itself has no error"
        )


def _has_more_samples(workload: Workload) -> bool:
    """Returns whether the user gave more samples than a measurement compares."""
    is_own = workload.source == "user" and workload.plan is None
    return is_own and len(workload.feeds) > len(workload.validation)


def _with_all(config: Compared, subject: Subject, lineup: Lineup, workload: Workload) -> Compared:
    """Returns a configuration with what all of the user's samples show of its answers."""
    batching = lineup.batching(workload)
    samples = AllSamples(
        model=lineup.model,
        workload=workload,
        metric=None,
        max_drop=None,
        max_error=config.max_error,
        inputs=() if batching is None else batching.inputs,
        limit_s=math.inf,
        fewest=1,
    )
    judged = JudgedConfiguration(
        trial=0,
        words=subject.name,
        path=subject.model.absolute(),
        config=subject.session,
        batch=subject.batch or 1,
        site=subject.site,
    )
    return replace(config, on_all=samples.judge(judged))


def _usual_limit(workload: Workload) -> float:
    """Returns the error limit where neither the user nor a config names one."""
    return _MAX_PERPLEXITY_RISE if workload.plan else _MAX_ERROR


def _entrant(measurer: DuetMeasurer, subject: Subject) -> Callable[[Effort], Outcome]:
    """Returns what measures a subject."""
    serving = subject.serving or Serving(clients=1)
    return partial(
        measurer.measure_session,
        subject.model.absolute(),
        subject.session,
        sessions=serving.sessions,
        batch=serving.batch,
        site=subject.site,
    )


def _compared(
    subject: Subject,
    own: Numbers,
    measurements: Sequence[Measurement],
    max_error: float,
    clients: int,
    error_data: str | None,
) -> Compared:
    return Compared(
        name=subject.name,
        numbers=own,
        p50_ms=float(np.median([measurement.p50_ms for measurement in measurements])),
        # those under way over the latency (Little's law)
        throughput_per_s=clients * (own.batch or 1) / own.latency_ms * 1e3,
        max_error=max_error,
        tuned=Tuned.of(subject, own, error_data),
    )
