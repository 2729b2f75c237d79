"""From the trials of a study to its result: the front, kinds of answers, graph halves."""

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.deploy.config import Evidence, Interval, Requires
from autotune.errors import StorageError
from autotune.graph.prepare import PreparationError, Preparer
from autotune.measure.outcome import Failure
from autotune.results.choice import Verdict
from autotune.results.result import GraphRow, Kind, Member, StudyResult
from autotune.results.run_off import Finalist
from autotune.results.score import of_runs, provider_evidence, speedup_of
from autotune.results.setting import Setting
from autotune.search.beliefs import Effect, believed, explain
from autotune.search.finalists import EXACT_ERROR
from autotune.search.objective import DEFAULT, OBJECTIVES, THROUGHPUT, Values, find, values
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import BASELINE, Candidate

_DEVICE_MEMORY = "peak_device_memory_mib"
# One process each, and the luckiest of many: only a clear lead counts.
_UNCONFIRMED_FLOOR = 0.05
# Two processes of one configuration may differ by as much: see benchmarks/memory.py.
_UNCONFIRMED_MEMORY_FLOOR = 0.3


@dataclass(frozen=True, kw_only=True)
class Trials:
    """The trials of a study, for its result.

    Attributes:
        measured: The measured trials, in order, the default among them.
        twins: Candidates that equal a measured one, with its trial.
        ended: Why the search ended before its budget was spent; empty if it did not.
    """

    measured: Sequence[Trial]
    twins: Mapping[Candidate, Trial]
    ended: str

    @property
    def baseline(self) -> Trial:
        """The trial of the default."""
        return next(trial for trial in self.measured if trial.candidate == BASELINE)


def summarise(
    setting: Setting, trials: Trials, verdict: Verdict, preparer: Preparer
) -> StudyResult:
    """Returns the result of a study.

    Args:
        setting: What the study worked on.
        trials: Its trials.
        verdict: What the final comparison came to.
        preparer: Makes the model files of candidates.
    """
    failures = Counter(t.outcome.kind for t in trials.measured if isinstance(t.outcome, Failure))
    measurements = [m for trial in trials.measured if (m := trial.measurement) is not None]
    first = setting.objectives[0]
    finalists, default = verdict.members, verdict.members[0]
    baseline, *front = (_member(setting, finalist, default) for finalist in finalists)
    confirmed = (*finalists, *verdict.others) if verdict.complete else ()
    return StudyResult(
        study=setting.study,
        folder=setting.folder,
        model=setting.model.path.resolve(),
        model_sha256=setting.model.sha256,
        workload=setting.workload.signature(),
        picked=verdict.picked.trial.number,
        objectives=tuple(objective.name for objective in setting.objectives),
        prefer=setting.prefer,
        limits=plain_limits(setting.limits),
        members=(baseline, *sorted(front, key=lambda m: first.cost(m.values[first.name]))),
        trials=len(trials.measured),
        ended=trials.ended,
        failed=dict(failures),
        raced=sum(m.raced for m in measurements),
        never_quiet=sum(not m.is_quiet for m in measurements),
        left_out=setting.space.left_out,
        kinds=tuple(_kinds(setting, trials, confirmed)),
        graphs=tuple(_graph_rows(trials, preparer)),
        effects=effects_of(setting, trials.measured),
        cache_bytes=preparer.cache.used_bytes(),
        notes=setting.workload.notes,
        dimensions=setting.workload.dimensions(setting.model),
        requires=Requires(providers=("CPUExecutionProvider",), cpu_features=()),
        environment=setting.environment,
        complete=verdict.complete,
        files=(),
        others=tuple(_member(setting, finalist, default) for finalist in verdict.others),
        ablation=verdict.ablation,
        process=verdict.process,
        batching=setting.batching,
        clients=setting.clients,
    )


def plain_limits(limits: Limits) -> dict[str, float | None]:
    """Returns the limits by name; None means no limit."""
    plain = {
        "max_error": limits.max_error if math.isfinite(limits.max_error) else None,
        "max_memory_mib": limits.max_memory_mib,
        "max_latency_ms": limits.max_latency_ms,
        "max_drop": limits.max_drop,
    }
    # results of earlier versions do not have it, and must equal those of the same study now
    return plain if limits.max_p99_ms is None else {**plain, "max_p99_ms": limits.max_p99_ms}


def unconfirmed(trial: Trial, baseline: Trial) -> Finalist:
    """Returns a trial as a finalist by the numbers of the search; see :class:`Evidence`."""
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
    if THROUGHPUT in gains:
        gains[THROUGHPUT] = speedup
    return Finalist(
        trial=trial,
        values=own_values,
        gains=gains,
        error=own.fidelity.error,
        metric=own.fidelity.metric,
        drop=own.fidelity.drop,
        agreement=own.fidelity.agreement,
        rounds=0,
        steady=own.steady,
        noise_floor=_UNCONFIRMED_FLOOR,
        memory_noise_floor=_UNCONFIRMED_MEMORY_FLOOR,
        coverage=own.fidelity.coverage,
        provider=provider_evidence([own]),
        batch=own.batch,
    )


def _member(setting: Setting, finalist: Finalist, baseline: Finalist) -> Member:
    candidate = finalist.trial.candidate
    own, base = finalist.values, baseline.values
    return Member(
        candidate=candidate.to_json(),
        words=candidate.in_words(),
        admitted=setting.limits.admit(finalist.values, finalist.error, finalist.drop),
        # one pair of rounds with a number gives an interval without an end, which says nothing
        gains={n: gain for n, gain in finalist.gains.items() if math.isfinite(gain.high)},
        evidence=Evidence(
            latency_ms=finalist.latency_ms,
            baseline_latency_ms=baseline.latency_ms,
            speedup=finalist.speedup,
            peak_memory_mib=finalist.peak_memory_mib,
            baseline_peak_memory_mib=baseline.peak_memory_mib,
            cpu_s=own["cpu_s"],
            baseline_cpu_s=base["cpu_s"],
            load_ms=own["load_ms"],
            baseline_load_ms=base["load_ms"],
            p99_ms=own.get("p99_ms"),
            baseline_p99_ms=base.get("p99_ms"),
            throughput_per_s=own.get(THROUGHPUT),
            baseline_throughput_per_s=base.get(THROUGHPUT),
            error=finalist.error,
            agreement=finalist.agreement,
            metric=finalist.metric,
            error_data=setting.workload.source,
            rounds=finalist.rounds,
            significant=finalist.significant,
            steady=finalist.steady,
            noise_floor=finalist.noise_floor,
            trial=finalist.trial.number,
            coverage=finalist.coverage,
            provider=finalist.provider,
            peak_memory_interval_mib=finalist.peak_memory_interval,
            baseline_peak_memory_interval_mib=baseline.peak_memory_interval,
            memory_noise_floor=finalist.memory_noise_floor,
            peak_device_memory_mib=(
                own.get(_DEVICE_MEMORY)
                if _DEVICE_MEMORY in [objective.name for objective in setting.objectives]
                else None
            ),
        ),
    )


def _kinds(setting: Setting, trials: Trials, confirmed: Sequence[Finalist]) -> Iterator[Kind]:
    """Yields the best trial of each kind of answers in the first objective.

    The numbers are those of the final comparison where one of the kind took part, otherwise those
    of the model of effects: the best number of many was lucky. Answers beyond the limit are named
    by the final comparison alone. A kind with a larger error is left out unless it is better.
    """
    first = setting.objectives[0]
    rated = [
        _Rated(trial=f.trial, values=f.values, error=f.error, drop=f.drop, confirmed=True)
        for f in confirmed
    ]
    numbers = {item.trial.number for item in rated}
    estimated = _on_confirmed_scale(rated, list(_estimated(setting, trials)))
    rated += [item for item in estimated if item.trial.number not in numbers]
    base = next(item for item in rated if item.trial.candidate == BASELINE)
    named: _Rated | None = None
    for answers in ("exact", "within", "beyond"):
        of_kind = [item for item in rated if item.answers(setting.limits) == answers]
        surely = [item for item in of_kind if item.confirmed]
        field = surely if surely or answers == "beyond" else of_kind
        best = min(field, key=lambda item: first.cost(item.values[first.name]), default=None)
        if best is None:
            continue
        if named and not first.is_better(best.values[first.name], named.values[first.name]):
            continue
        named = best
        yield Kind(
            answers=answers,
            trial=best.trial.number,
            words=best.trial.candidate.in_words(),
            speedup=base.sample_ms / best.sample_ms,
            confirmed=best.confirmed,
            peak_memory_mib=best.values["peak_memory_mib"],
            error=best.error,
        )


@dataclass(frozen=True, kw_only=True)
class _Rated:
    """A trial with its numbers: those of the final comparison, or those that are believed."""

    trial: Trial
    values: Values
    error: float
    drop: float | None
    confirmed: bool

    @property
    def sample_ms(self) -> float:
        """The time that a sample takes."""
        assert self.trial.measurement is not None
        return self.values["latency_ms"] / (self.trial.measurement.batch or 1)

    def answers(self, limits: Limits) -> str:
        """Returns the kind of its answers; see :class:`Kind`."""
        if self.error < EXACT_ERROR:
            return "exact"
        return "within" if limits.admit_answers(self.error, self.drop) else "beyond"


def _on_confirmed_scale(
    confirmed: Sequence[_Rated], estimated: Sequence[_Rated]
) -> Sequence[_Rated]:
    """Returns estimates of the search on the scale of the final comparison, if there was one.

    The machine may have been slower during the search: ratios to the default alone hold.
    """
    default, base = (
        next((item.values for item in items if item.trial.candidate == BASELINE), None)
        for items in (confirmed, estimated)
    )
    if default is None or base is None:
        return estimated

    def scaled(name: str, value: float) -> float:
        # memory differs by the luck of the heap, not by the speed of the machine
        known = name in default and base.get(name) and not name.startswith("peak_")
        return value * default[name] / base[name] if known else value

    return [
        replace(item, values={name: scaled(name, value) for name, value in item.values.items()})
        for item in estimated
    ]


def _estimated(setting: Setting, trials: Trials) -> Iterator[_Rated]:
    """Yields the trials by the model of effects."""
    objectives = tuple(dict.fromkeys((setting.objectives[0], *find(DEFAULT))))
    measured = [(trial, m) for trial in trials.measured if (m := trial.measurement) is not None]
    numbers = [(trial.candidate, values(m, objectives)) for trial, m in measured]
    for (trial, m), belief in zip(measured, believed(setting.space, numbers), strict=True):
        fidelity = m.fidelity
        yield _Rated(
            trial=trial,
            values=belief,
            error=fidelity.error,
            drop=fidelity.drop,
            confirmed=False,
        )


def _graph_rows(trials: Trials, preparer: Preparer) -> Iterator[GraphRow]:
    """Yields the outcome of each graph half under default session options."""
    base = trials.baseline.measurement
    assert base is not None
    named = [(trial.candidate, trial) for trial in trials.measured]
    for candidate, trial in (*named, *trials.twins.items()):
        if candidate.session != BASELINE:
            continue
        m = trial.measurement
        prepared = None
        # a model that could not be made is not tried again to describe it
        if m is not None or getattr(trial.outcome, "phase", "") != "prepare":
            with contextlib.suppress(PreparationError, OSError, StorageError):
                prepared = preparer.looked_at(candidate.graph.to_json())
        twin = "" if candidate == trial.candidate else trial.candidate.in_words()
        yield GraphRow(
            words=candidate.in_words() + (f" (the same graph as {twin})" if twin else ""),
            operators=prepared.operators if prepared else None,
            parameters=prepared.parameters if prepared else None,
            size_bytes=prepared.size_bytes if prepared else None,
            latency=m.latency_ms / base.latency_ms if m else None,
            memory=m.peak_memory_mib / base.peak_memory_mib if m else None,
            error=m.fidelity.error if m else getattr(trial.outcome, "error", None),
            metric=m.fidelity.metric if m else None,
            failure=trial.outcome.message if isinstance(trial.outcome, Failure) else "",
        )


def effects_of(setting: Setting, trials: Sequence[Trial]) -> tuple[Effect, ...]:
    """Returns how much each value alone changes the objectives, by the model of the search."""
    measured = [(t.candidate, m) for t in trials if (m := t.measurement) is not None]
    return explain(setting.space, [(c, values(m, setting.objectives)) for c, m in measured])
