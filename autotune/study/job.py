"""One run of a study: search, run-off, result."""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import optuna

from autotune.deploy.config import Environment, Evidence, Interval, Requires
from autotune.deploy.records import Positive, read
from autotune.errors import CannotMeasureError, FormatError, RequestError, StudyError
from autotune.facts.model import Model
from autotune.facts.workload import Workload
from autotune.graph.prepare import PreparationError, Preparer
from autotune.measure.fidelity import Metric
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import Failure, Measurement, Measurer
from autotune.results.emit import emit
from autotune.results.result import GraphRow, Kind, Member, StudyResult
from autotune.results.run_off import Finalist, choose, run_off
from autotune.search import pareto
from autotune.search.effects import Effect, believed, explain
from autotune.search.finalists import finalists, is_exact
from autotune.search.objective import DEFAULT, Objective, find, values
from autotune.search.proposer import Prior
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import BASELINE, Candidate
from autotune.space.space import Space
from autotune.storage.spool import Spool
from autotune.storage.trials import Record, read_trials
from autotune.study.loop import Search
from autotune.study.progress import OnProgress, Progress

SAMPLES = "samples"
"""Folder of the raw run times, in a study's folder."""

_LOOSER = 4
# Machines of one kind differ by less, unless one of them is busy.
_SAME_SPEED = 1.3
_LAST_WORD_S = 1.0
_POLL_S = 2.0
_LONGEST_TRIAL_S = 300.0


class Interrupted(KeyboardInterrupt):
    """A study was interrupted after its baseline was measured; the best so far is written.

    Attributes:
        result: What was written, with the numbers of the search.
    """

    def __init__(self, result: StudyResult) -> None:
        super().__init__()
        self.result = result


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a study, everything about it settled."""

    study: optuna.Study
    record: Record
    spool: Spool
    folder: Path
    model: Model
    workload: Workload
    preparer: Preparer
    metric: Metric | None
    space: Space
    objectives: Sequence[Objective]
    limits: Limits
    prefer: str
    seed: int
    report: OnProgress
    environment: Environment
    sampler: str
    first: Sequence[Candidate]
    prior: Prior
    early_stop: bool

    def run(self, trials: int, timeout_s: float | None) -> StudyResult:
        """Returns the result after searching and the run-off."""
        for note in self.workload.notes:
            self.report(Progress(stage="model", note=note))
        known = read_trials(self.study)
        if earlier := self._earlier_result(len(known), trials):
            return earlier
        self.report(Progress(stage="baseline"))
        measurer = self._open_measurer()
        try:
            search = Search(
                study=self.study,
                space=self.space,
                objectives=self.objectives,
                limits=self.limits,
                measurer=measurer,
                seed=self.seed,
                report=self.report,
                sampler=self.sampler,
                first=self.first,
                early_stop=self.early_stop,
                record=self.record,
                spool=self.spool,
                prior=self.prior,
            )
            try:
                search.run(trials, timeout_s)
                result = self._conclude(search, measurer)
            except KeyboardInterrupt:
                if search.baseline is None or search.baseline.measurement is None:
                    raise
                raise Interrupted(self._cut_short(search, search.baseline)) from None
        finally:
            measurer.close()
        self.spool.clear()
        return result

    def _earlier_result(self, known: int, trials: int) -> StudyResult | None:
        """Returns what the folder holds already, if it is of this study and nothing is left."""
        try:
            earlier = StudyResult.read(self.folder)
        except StudyError:
            return None
        same = (
            earlier.complete
            and earlier.study == self.study.study_name
            and earlier.trials == known
            and earlier.prefer == self.prefer
            and earlier.limits == _plain_limits(self.limits)
        )
        if not same:
            return None
        if known >= trials:
            note = f"all {known} trials are measured already; --trials {2 * known} goes on"
        elif earlier.ended and self.early_stop:
            note = f"the search has ended: {earlier.ended}; --no-early-stop goes on"
        else:
            return None
        self.report(Progress(stage="done", note=note))
        return earlier

    def _open_measurer(self) -> Measurer:
        known_ms = None if self.record.shared else self._scale_ms()
        measurer = DuetMeasurer(
            self.model,
            self.workload,
            self.preparer,
            # what is a little too far off is timed as well, to say what a looser limit would buy
            max_error=_LOOSER * self.limits.max_error,
            metric=self.metric,
            reference_ms=known_ms,
            samples=self.folder / SAMPLES,
        )
        self._check_cost(measurer)
        if self.record.shared:
            self._join(measurer)
        elif known_ms is None:
            self.study.set_user_attr("reference_ms", measurer.reference_ms)
        return measurer

    def _scale_ms(self) -> float | None:
        """Returns the latency of the baseline that the study's ratios are multiplied with."""
        try:
            told: float = read(Positive, self.study.user_attrs.get("reference_ms"), "")
        except FormatError:
            return None
        return told

    def _join(self, measurer: Measurer) -> None:
        """Takes the study's scale, if this machine is as fast as it by its own calibration.

        Raises:
            StudyError: it is not: its numbers would not be comparable.
        """
        if self._scale_ms() is None:
            self.study.set_user_attr("reference_ms", measurer.reference_ms)
            # of drivers that begin at once the last word counts for all
            time.sleep(_LAST_WORD_S)
        here_ms, there_ms = measurer.reference_ms, self._scale_ms()
        assert there_ms is not None
        ratio = here_ms / there_ms
        if not 1 / _SAME_SPEED < ratio < _SAME_SPEED:
            measurer.close()
            raise StudyError(
                f"this machine runs the default in {here_ms:.3g} ms, and those of the study "
                f"{self.study.study_name} in {there_ms:.3g} ms, though they should be of one kind. "
                "Is it busy, or throttled? `autotune hardware` says. Type the same command again "
                "when it is quiet, or give it a study of its own in another --storage"
            )
        measurer.rescale(there_ms)

    def _check_cost(self, measurer: Measurer) -> None:
        """Refuses an objective that would take minutes a trial on this model."""
        for objective in self.objectives:
            # candidate and reference take turns, and each turn has a cold run
            cost_s = objective.fewest_runs * measurer.reference_ms * 4 / 1e3
            if cost_s > _LONGEST_TRIAL_S:
                measurer.close()
                raise RequestError(
                    f"--objective {objective.name} needs {objective.fewest_runs} runs; at "
                    f"{measurer.reference_ms:.3g} ms each a trial would take "
                    f"{cost_s / 60:.0f} min. Leave it out: latency_ms is known from far fewer"
                )

    def _conclude(self, search: Search, measurer: Measurer) -> StudyResult:
        """Returns the result by the run-off, written down; where many take part, one holds it."""
        baseline = search.baseline
        if baseline is None or baseline.measurement is None:
            reason = (
                baseline.outcome.message
                if baseline and isinstance(baseline.outcome, Failure)
                else "no trial"
            )
            raise CannotMeasureError(f"the default itself could not be measured: {reason}")
        if not self.record.shared:
            return self._run_off(search, measurer, baseline)
        while True:
            told = self._recorded_result(search)
            if told is not None:
                return self._adopt(told)
            held = self._hold_run_off(search, measurer, baseline)
            if held is not None:
                return held
            self.report(Progress(stage="run-off", total=1))
            time.sleep(_POLL_S)

    def _recorded_result(self, search: Search) -> StudyResult | None:
        """Returns what a driver has recorded of the study as it stands, by the same wishes."""
        try:
            told = StudyResult.from_json(self.study.user_attrs.get("result"), self.folder)
        except FormatError:
            return None
        mine = (len(search.trials), self.prefer, _plain_limits(self.limits))
        return told if (told.trials, told.prefer, told.limits) == mine else None

    def _hold_run_off(
        self, search: Search, measurer: Measurer, baseline: Trial
    ) -> StudyResult | None:
        """Returns the result of a run-off that this driver holds; None if another is at it."""
        held: list[StudyResult] = []

        def hold(trial: optuna.Trial) -> tuple[float, ...]:
            if self.record.claim_run_off(trial):
                held.append(self._run_off(search, measurer, baseline))
                self.study.set_user_attr("result", held[0].to_json())
            raise optuna.TrialPruned

        optuna.storages.fail_stale_trials(self.study)
        self.study.optimize(hold, n_trials=1)
        return held[0] if held else None

    def _adopt(self, result: StudyResult) -> StudyResult:
        """Writes down a result that another driver has recorded."""
        result = replace(result, model=self.model.path.resolve())
        candidate = Candidate.of(result.best.candidate)
        return emit(result, self.preparer.prepare(candidate.graph.to_json()))

    def _run_off(self, search: Search, measurer: Measurer, baseline: Trial) -> StudyResult:
        began = time.monotonic()

        def on_step(done: int, total: int) -> None:
            remaining = (time.monotonic() - began) / done * (total - done)
            self.report(Progress(stage="run-off", done=done, total=total, remaining_s=remaining))

        chosen = finalists(search.trials, self.limits, self.objectives, self.space)
        self.report(Progress(stage="run-off", total=1))
        found = run_off(
            measurer, baseline, chosen, self.objectives, seed=self.seed, on_step=on_step
        )
        picked = choose(found, self.limits, self.objectives, self.prefer)
        best = pareto.front(found, lambda item: item.values, self.objectives)
        kept = [found[0], *(item for item in best if item is not found[0])]
        if picked not in kept:
            kept.append(picked)
        return self._write(search, kept, picked, complete=True)

    def _cut_short(self, search: Search, baseline: Trial) -> StudyResult:
        """Returns the result by the search's own numbers, written down."""
        chosen = finalists(search.trials, self.limits, self.objectives, self.space)
        everything = [_unconfirmed(trial, baseline) for trial in (baseline, *chosen)]
        picked = choose(everything, self.limits, self.objectives, self.prefer)
        return self._write(search, everything, picked, complete=False)

    def _write(
        self, search: Search, found: Sequence[Finalist], picked: Finalist, *, complete: bool
    ) -> StudyResult:
        members = tuple(self._member(item, found[0]) for item in found)
        failures = Counter(t.outcome.kind for t in search.trials if isinstance(t.outcome, Failure))
        measured = [m for trial in search.trials if (m := trial.measurement) is not None]
        result = StudyResult(
            study=self.study.study_name,
            folder=self.folder,
            model=self.model.path.resolve(),
            model_sha256=self.model.sha256,
            workload=self.workload.signature(),
            picked=picked.trial.number,
            objectives=tuple(objective.name for objective in self.objectives),
            prefer=self.prefer,
            limits=_plain_limits(self.limits),
            members=(members[0], *sorted(members[1:], key=self._first)),
            trials=len(search.trials),
            ended=search.ended,
            failed=dict(failures),
            raced=sum(m.raced for m in measured),
            never_quiet=sum(not m.is_quiet for m in measured),
            left_out=self.space.left_out,
            kinds=tuple(self._kinds(search, found if complete else ())),
            graphs=tuple(self._graphs(search)),
            effects=self._effects(search),
            cache_bytes=self.preparer.cache.used_bytes(),
            notes=self.workload.notes,
            dimensions=self.workload.dimensions(self.model),
            requires=Requires(providers=("CPUExecutionProvider",)),
            environment=self.environment,
            complete=complete,
            files=(),
        )
        return emit(result, self.preparer.prepare(picked.trial.candidate.graph.to_json()))

    def _kinds(self, search: Search, confirmed: Sequence[Finalist]) -> Iterator[Kind]:
        """Gives the best trial of each kind of answers in the first objective.

        By the run-off where one of them took part, else by what is believed of them: the best
        number of many was lucky. A kind that is further off is told only where it buys something.
        """
        first = self.objectives[0]
        told_of = tuple(dict.fromkeys((first, *find(DEFAULT))))
        measured = [(trial, m) for trial in search.trials if (m := trial.measurement) is not None]
        told = [(trial.candidate, values(m, told_of)) for trial, m in measured]
        run_off = {item.trial.number: item.values for item in confirmed}
        known = [
            (trial, m, run_off.get(trial.number, belief))
            for (trial, m), belief in zip(measured, believed(self.space, told), strict=True)
        ]
        base = next(mine for trial, _, mine in known if trial.candidate == BASELINE)
        least = math.inf
        for answers in ("exact", "within", "beyond"):
            of_kind = [item for item in known if self._answers(item[1]) == answers]
            of_kind = [item for item in of_kind if item[0].number in run_off] or of_kind
            best = min(of_kind, key=lambda item: item[2][first.name], default=None)
            if best is None or not first.is_less(best[2][first.name], least):
                continue
            trial, m, mine = best
            least = mine[first.name]
            yield Kind(
                answers=answers,
                trial=trial.number,
                words=trial.candidate.in_words(),
                speedup=base["latency_ms"] / mine["latency_ms"],
                confirmed=trial.number in run_off,
                peak_memory_mib=mine["peak_memory_mib"],
                error=m.fidelity.error,
            )

    def _answers(self, m: Measurement) -> str:
        """Returns which kind of answers a measurement is of; see :class:`Kind`."""
        right = self.limits.admit_answers(m.fidelity.error, m.fidelity.drop)
        return "exact" if is_exact(m) else "within" if right else "beyond"

    def _graphs(self, search: Search) -> Iterator[GraphRow]:
        """Gives what became of each graph half under default session options."""
        base = search.baseline.measurement if search.baseline else None
        asked = [(trial.candidate, trial) for trial in search.trials]
        for candidate, trial in (*asked, *search.twins.items()):
            if candidate.session != BASELINE or base is None:
                continue
            m = trial.measurement
            prepared = None
            # a failure of the preparation itself is not tried again to describe it
            if m is not None or getattr(trial.outcome, "phase", "") != "prepare":
                with contextlib.suppress(PreparationError, OSError):
                    prepared = self.preparer.looked_at(candidate.graph.to_json())
            same = "" if candidate == trial.candidate else trial.candidate.in_words()
            yield GraphRow(
                words=candidate.in_words() + (f" (the same graph as {same})" if same else ""),
                operators=prepared.operators if prepared else None,
                parameters=prepared.parameters if prepared else None,
                size_bytes=prepared.size_bytes if prepared else None,
                latency=m.latency_ms / base.latency_ms if m else None,
                memory=m.peak_memory_mib / base.peak_memory_mib if m else None,
                error=m.fidelity.error if m else getattr(trial.outcome, "error", None),
                metric=m.fidelity.metric if m else None,
                failure=trial.outcome.message if isinstance(trial.outcome, Failure) else "",
            )

    def _effects(self, search: Search) -> tuple[Effect, ...]:
        told = [(t.candidate, m) for t in search.trials if (m := t.measurement) is not None]
        return explain(self.space, [(c, values(m, self.objectives)) for c, m in told])

    def _first(self, member: Member) -> float:
        return member.values[self.objectives[0].name]

    def _member(self, item: Finalist, baseline: Finalist) -> Member:
        candidate = item.trial.candidate
        mine, base = item.values, baseline.values
        return Member(
            candidate=candidate.to_json(),
            words=candidate.in_words(),
            admitted=self.limits.admit(
                item.latency_ms, item.peak_memory_mib, item.error, item.drop
            ),
            evidence=Evidence(
                latency_ms=item.latency_ms,
                baseline_latency_ms=baseline.latency_ms,
                speedup=item.speedup,
                peak_memory_mib=item.peak_memory_mib,
                baseline_peak_memory_mib=baseline.peak_memory_mib,
                cpu_s=mine["cpu_s"],
                baseline_cpu_s=base["cpu_s"],
                load_ms=mine["load_ms"],
                baseline_load_ms=base["load_ms"],
                p99_ms=mine.get("p99_ms"),
                baseline_p99_ms=base.get("p99_ms"),
                error=item.error,
                agreement=item.agreement,
                metric=item.metric,
                error_data=self.workload.source,
                rounds=item.rounds,
                significant=item.significant,
                steady=item.steady,
                noise_floor=item.noise_floor,
                trial=item.trial.number,
            ),
        )


def _unconfirmed(trial: Trial, baseline: Trial) -> Finalist:
    """Returns a trial as a finalist by the search's numbers; see :class:`Evidence`."""
    mine, base = trial.measurement, baseline.measurement
    assert mine is not None
    assert base is not None
    own, scale = values(mine), values(base)
    gains = {}
    for name in own.keys() & scale.keys():
        gain = scale[name] / own[name]
        gains[name] = Interval(value=gain, low=gain, high=gain)
    gains["latency_ms"] = Interval(
        value=base.ratio.value / mine.ratio.value,
        low=base.ratio.value / mine.ratio.high,
        high=base.ratio.value / mine.ratio.low,
    )
    return Finalist(
        trial=trial,
        values=own,
        gains=gains,
        error=mine.fidelity.error,
        metric=mine.fidelity.metric,
        drop=mine.fidelity.drop,
        agreement=mine.fidelity.agreement,
        rounds=0,
        steady=mine.steady,
        # one process each, and the luckiest of many: only a clear lead counts
        noise_floor=0.05,
    )


def _plain_limits(limits: Limits) -> dict[str, float | None]:
    return {
        "max_error": limits.max_error if math.isfinite(limits.max_error) else None,
        "max_memory_mib": limits.max_memory_mib,
        "max_latency_ms": limits.max_latency_ms,
        "max_drop": limits.max_drop,
    }
