"""From the trials of a study and its final comparison to its result."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.deploy.config import Evidence, Interval
from autotune.measure.judging import Judgement
from autotune.measure.outcome import Failure
from autotune.results.final_comparison import Finalist
from autotune.results.leave_one_out import Simplification
from autotune.results.result import Member, StudyResult
from autotune.results.score import is_gain, numbers_of, of_runs, speed_of, speedup_of
from autotune.search.context import Context
from autotune.search.effects import Effect, explain
from autotune.search.objective import OBJECTIVES, RATES, values
from autotune.search.trial import Limits, Trial

_DEVICE_MEMORY = "peak_device_memory_mib"
# One process each, and the best measured of many: only a clear lead counts.
_UNCONFIRMED_FLOOR = 0.05
# Two processes of one configuration may differ by as much: see benchmarks/memory.py.
_UNCONFIRMED_MEMORY_FLOOR = 0.3


@dataclass(frozen=True, kw_only=True)
class Conclusion:
    """What the end of a study comes to.

    Attributes:
        members: The default first, then the front.
        simplification: What each change of `picked` brings; None where it is the default.
        judgements: What all samples show of the configurations that were selected, one after the
            other until one was within the limits; empty where there are few samples.
        complete: Whether the final comparison measured them; otherwise their numbers are those of
            the search.
    """

    members: Sequence[Finalist]
    picked: Finalist
    others: Sequence[Finalist] = ()
    simplification: Simplification | None = None
    judgements: tuple[Judgement, ...] = ()
    complete: bool = True


# A summary quotes so many reasons of failures.
_MOST_REASONS = 3


def summarise(
    setting: Context,
    trials: Sequence[Trial],
    conclusion: Conclusion,
    *,
    ended: str,
    cache_bytes: int,
    pairs: Mapping[str, str],
) -> StudyResult:
    """Returns the result of a study."""
    failed = [t.outcome for t in trials if isinstance(t.outcome, Failure)]
    failures = Counter(failure.kind for failure in failed)
    measurements = [m for trial in trials if (m := trial.measurement) is not None]
    first = setting.objectives[0]
    baseline, *front = (_member(setting, finalist) for finalist in conclusion.members)
    return StudyResult(
        study=setting.study,
        folder=setting.folder,
        model=setting.model.path.absolute(),
        model_sha256=setting.model.sha256,
        workload=setting.workload.signature(),
        picked=conclusion.picked.trial.number,
        objectives=tuple(objective.name for objective in setting.objectives),
        prefer=setting.prefer,
        limits=plain_limits(setting.limits),
        members=(baseline, *sorted(front, key=lambda m: first.cost(m.evidence.values[first.name]))),
        trials=len(trials),
        ended=ended,
        failed=dict(failures),
        stopped_early=sum(m.stopped_early for m in measurements),
        never_undisturbed=sum(not m.is_undisturbed for m in measurements),
        left_out=setting.space.left_out,
        effects=effects_of(setting, trials),
        cache_bytes=cache_bytes,
        notes=setting.workload.notes,
        warnings=setting.workload.warnings,
        dimensions=setting.workload.dimensions(setting.model),
        environment=setting.environment,
        complete=conclusion.complete,
        files=(),
        others=tuple(_member(setting, finalist) for finalist in conclusion.others),
        simplification=conclusion.simplification,
        judgements=conclusion.judgements,
        batching=setting.batching,
        clients=setting.clients,
        pairs=pairs,
        breaking=setting.model.breaking,
        reasons=dict(Counter(failure.message for failure in failed).most_common(_MOST_REASONS)),
    )


def plain_limits(limits: Limits) -> dict[str, float | None]:
    """Returns the limits by name; None means no limit."""
    max_error = limits.max_error if math.isfinite(limits.max_error) else None
    return {**vars(limits), "max_error": max_error}


def unconfirmed(trial: Trial, baseline: Trial) -> Finalist:
    """Returns a trial as a finalist by the numbers of the search; see :class:`Numbers`."""
    own, base = trial.measurement, baseline.measurement
    assert own is not None
    assert base is not None
    own_values, base_values = values(own), values(base)
    gains = {}
    for name in own_values.keys() & base_values.keys():
        gain = OBJECTIVES[name].gain(own_values[name], base_values[name])
        gains[name] = Interval(value=gain, low=gain, high=gain)
    speedup = speedup_of(own, base)
    gains["latency_ms"] = of_runs(speedup, own, base)
    gains |= {rate: speedup for rate in RATES if rate in gains}
    quantities: dict[str, Any] = own_values
    estimate = replace(
        numbers_of([own], [base], field=[[own], [base]]),
        **quantities,
        gains=gains,
        speedup=speed_of(gains),
        significant=is_gain(speed_of(gains), _UNCONFIRMED_FLOOR),
        rounds=0,
        noise_floor=_UNCONFIRMED_FLOOR,
        memory_noise_floor=_UNCONFIRMED_MEMORY_FLOOR,
    )
    return Finalist(numbers=estimate, trial=trial)


def _member(setting: Context, finalist: Finalist) -> Member:
    configuration, own = finalist.trial.configuration, finalist.numbers
    if _DEVICE_MEMORY not in [objective.name for objective in setting.objectives]:
        own = replace(own, peak_device_memory_mib=None)
    measured = finalist.measurements[-1:] or [finalist.trial.measurement]
    return Member(
        files_sha256=measured[0].files_sha256 if measured[0] else None,
        configuration=configuration.to_json(),
        words=configuration.in_words(),
        admitted=setting.limits.admit(own.promised, own.error, own.drop),
        # one pair of rounds with a number gives an interval without an end, which says nothing
        evidence=Evidence(
            **{
                **vars(own),
                "gains": {n: gain for n, gain in own.gains.items() if math.isfinite(gain.high)},
            },
            trial=finalist.trial.number,
            error_data=setting.workload.source,
            max_error=plain_limits(setting.limits)["max_error"],
        ),
    )


def effects_of(setting: Context, trials: Sequence[Trial]) -> tuple[Effect, ...]:
    """Returns how much each value alone changes the objectives, by the model of the search."""
    measured = [(t.configuration, m) for t in trials if (m := t.measurement) is not None]
    return explain(setting.space, [(c, values(m, setting.objectives)) for c, m in measured])
