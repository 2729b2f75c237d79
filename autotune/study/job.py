"""One run of a study: the search, the final comparison, the result."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import optuna

from autotune.deploy.options import BATCH
from autotune.deploy.providers import CACHE_FOLDER
from autotune.deploy.records import Positive, read
from autotune.errors import CannotMeasureError, FormatError, RequestError, StudyError
from autotune.graph.prepare import Preparer
from autotune.measure.fidelity import Metric
from autotune.measure.outcome import Failure, Measurer
from autotune.results.budget import Budget
from autotune.results.choice import Verdict, choose
from autotune.results.emit import emit
from autotune.results.result import StudyResult
from autotune.results.setting import Setting
from autotune.results.summary import Trials, plain_limits, summarise, unconfirmed
from autotune.results.verify import verify
from autotune.search.finalists import finalists
from autotune.search.transfer import Relative, prior, starting_points
from autotune.search.trial import Trial
from autotune.space.candidate import Candidate
from autotune.space.session import EXECUTION_PROVIDER
from autotune.space.start import alone
from autotune.storage.spool import Spool
from autotune.storage.trials import Record, read_trials
from autotune.study.builder import build_search
from autotune.study.final_comparison import FinalComparison
from autotune.study.loop import Search, counts_within
from autotune.study.progress import OnProgress, Progress
from autotune.study.seams import MeasurerOptions, Seams
from autotune.study.shared_run_off import SharedRunOff

SAMPLES = "samples"
"""Folder of the raw run times, in a study's folder."""

# Answers up to so many times too far off are timed, to say what a looser limit would allow.
_LOOSER = 4
# Machines of one kind differ by less, unless one of them is busy.
_SAME_SPEED = 1.3
_LAST_WORD_S = 1.0
_LONGEST_TRIAL_S = 300.0
# Of the time of the search, so that the final comparison takes a third of the whole; and the least
# that it has, for what the search measures in less is too little for an interval.
_FINAL_SHARE = 1 / 2
_SHORTEST_FINAL_S = 10.0


class Interrupted(KeyboardInterrupt):
    """A study was interrupted after its default was measured; the best so far is written.

    Attributes:
        result: The written result, with the numbers of the search; those of the final comparison
            where that had ended.
    """

    def __init__(self, result: StudyResult) -> None:
        super().__init__()
        self.result = result


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a study, everything about it settled.

    Attributes:
        setting: What the study works on.
        study: Optuna's study.
        record: Its trials.
        spool: Keeps measurements until the storage has them.
        preparer: Makes the model files of candidates.
        metric: The user's metric; None without one.
        sampler: Name of the sampler.
        tried: The user's candidates, which are measured right after the default.
        kin: Studies of the same model on other machines, or of another space.
        early_stop: Whether the search ends when nothing more is to be expected.
        process_options: Whether options of the process are measured beside the session.
        report: Called as the study goes on.
        seams: Processes, time and waiting.
    """

    setting: Setting
    study: optuna.Study
    record: Record
    spool: Spool
    preparer: Preparer
    metric: Metric | None
    sampler: str
    tried: Sequence[Candidate]
    kin: Sequence[Relative]
    early_stop: bool
    process_options: bool
    report: OnProgress
    seams: Seams

    def run(self, budget: int, timeout_s: float | None) -> StudyResult:
        """Returns the result after the search and the final comparison.

        Args:
            budget: Trials of the study in all.
            timeout_s: The search ends after this time.
        """
        for note in self.setting.workload.notes:
            self.report(Progress(stage="model", note=note))
        trials = read_trials(self.study)
        counting = [trial for trial in trials if counts_within(self.setting.limits, trial)]
        if earlier := self._earlier_result(len(counting), budget):
            return earlier
        self.report(Progress(stage="baseline"))
        began_s = self.seams.clock.monotonic() - _spent_s(trials)
        measurer = self._open_measurer()
        with contextlib.closing(measurer), self.preparer.child.kept():
            search = self._search(measurer)
            try:
                search.run(budget, timeout_s)
                result = self._conclude(search, measurer, began_s)
            except Interrupted:
                raise
            except KeyboardInterrupt:
                if search.baseline is None or search.baseline.measurement is None:
                    raise
                raise Interrupted(self._cut_short(search, measurer, search.baseline)) from None
        self.spool.clear()
        return result

    def _earlier_result(self, measured: int, budget: int) -> StudyResult | None:
        """Returns the result in the folder if it is of this study and nothing is left to do."""
        setting = self.setting
        try:
            earlier = StudyResult.read(setting.folder)
        except StudyError:
            return None
        same = (
            earlier.complete
            and (earlier.ablation is None or earlier.ablation.complete)
            and (earlier.process is not None or not self.process_options)
            and earlier.study == setting.study
            and earlier.trials == measured
            and earlier.prefer == setting.prefer
            and earlier.limits == plain_limits(setting.limits)
            and all((setting.folder / name).is_file() for name in earlier.files)
            and earlier.is_decided
        )
        if not same:
            return None
        if measured >= budget:
            note = f"All {measured} trials are measured already; --trials {2 * measured} goes on."
        elif earlier.ended and self.early_stop:
            note = f"The search has ended: {earlier.ended}; --no-early-stop goes on."
        else:
            return None
        self.report(Progress(stage="done", note=note))
        return earlier

    def _search(self, measurer: Measurer) -> Search:
        setting = self.setting
        space, objectives, cores = setting.space, setting.objectives, setting.environment.cores
        singles = [c for name in (EXECUTION_PROVIDER, BATCH) for c in alone(space, name)]
        begin_with = starting_points(self.kin, space, cores, setting.limits, objectives)
        return build_search(
            measurer,
            space,
            study=self.study,
            objectives=objectives,
            limits=setting.limits,
            sampler=self.sampler,
            seed=setting.seed,
            first=[*self.tried, *singles, *begin_with],
            prior=prior(self.kin, space, cores, objectives),
            early_stop=self.early_stop,
            record=self.record,
            spool=self.spool,
            clock=self.seams.clock,
            report=self.report,
        )

    def _open_measurer(self) -> Measurer:
        reference_ms = None if self.record.shared else self._scale_ms()
        measurer = self.seams.measurer(
            MeasurerOptions(
                model=self.setting.model,
                workload=self.setting.workload,
                preparer=self.preparer,
                max_error=self.setting.limits.max_error,
                timed_error=_LOOSER * self.setting.limits.max_error,
                metric=self.metric,
                reference_ms=reference_ms,
                samples=self.setting.folder / SAMPLES,
                provider_cache=self.setting.folder / CACHE_FOLDER,
                batching=self.setting.batching,
                clients=self.setting.clients,
            )
        )
        self._check_cost(measurer)
        if self.record.shared:
            self._join(measurer)
        elif reference_ms is None:
            self.study.set_user_attr("reference_ms", measurer.reference_ms)
        return measurer

    def _scale_ms(self) -> float | None:
        """Returns the latency of the default that the study's ratios are multiplied with."""
        try:
            scale_ms: float = read(Positive, self.study.user_attrs.get("reference_ms"), "")
        except FormatError:
            return None
        return scale_ms

    def _join(self, measurer: Measurer) -> None:
        """Takes the study's scale, if this machine is as fast as it by its own calibration.

        Raises:
            StudyError: it is not: its numbers would not be comparable.
        """
        if self._scale_ms() is None:
            self.study.set_user_attr("reference_ms", measurer.reference_ms)
            # of workers that begin at once, the last one to write decides for all
            self.seams.clock.sleep(_LAST_WORD_S)
        here_ms, there_ms = measurer.reference_ms, self._scale_ms()
        assert there_ms is not None
        ratio = here_ms / there_ms
        if not 1 / _SAME_SPEED < ratio < _SAME_SPEED:
            measurer.close()
            raise StudyError(
                f"this machine runs the default in {here_ms:.3g} ms, and those of the study "
                f"{self.setting.study} in {there_ms:.3g} ms, though they should be of one kind. "
                "Is it busy, or throttled? `autotune hardware` says. Type the same command again "
                "when it is quiet, or give it a study of its own in another --storage"
            )
        measurer.rescale(there_ms)

    def _check_cost(self, measurer: Measurer) -> None:
        """Refuses an objective or a limit that takes minutes for each trial of this model."""
        setting = self.setting
        asked = [(f"--objective {o.name}", o.fewest_runs) for o in setting.objectives]
        asked.append(("--max-latency on the 99th percentile", setting.limits.fewest_runs))
        for option, fewest_runs in asked:
            run_ms = self._longest_run_factor * measurer.reference_ms / setting.clients
            # candidate and reference take turns, and each turn has a cold run
            cost_s = fewest_runs * run_ms * 4 / 1e3
            if cost_s > _LONGEST_TRIAL_S:
                measurer.close()
                raise RequestError(
                    f"{option} needs {fewest_runs} runs; at {run_ms:.3g} ms each a trial would "
                    f"take {cost_s / 60:.0f} min. Leave it out: latency_ms is known from far fewer"
                )

    @property
    def _longest_run_factor(self) -> float:
        """How many times more samples the largest batch has than the default's."""
        batching = self.setting.batching
        return 1.0 if batching is None else batching.sizes[-1] / batching.smallest

    def _conclude(self, search: Search, measurer: Measurer, began_s: float) -> StudyResult:
        """Returns the written result of the final comparison.

        Args:
            search: The search, which has ended.
            measurer: Measures candidates.
            began_s: When the study began, by the clock; earlier runs of it count as well.
        """
        baseline = search.baseline
        if baseline is None or baseline.measurement is None:
            reason = (
                baseline.outcome.message
                if baseline and isinstance(baseline.outcome, Failure)
                else "no trial"
            )
            raise CannotMeasureError(f"the default itself could not be measured: {reason}")

        def compare() -> StudyResult:
            monotonic = self.seams.clock.monotonic
            limit_s = max(_SHORTEST_FINAL_S, _FINAL_SHARE * (monotonic() - began_s))
            budget = Budget(limit_s, monotonic)
            return self._run_off(search, measurer, baseline, budget)

        if not self.record.shared:
            return compare()
        shared = SharedRunOff(
            study=self.study,
            record=self.record,
            setting=self.setting,
            preparer=self.preparer,
            measurer=measurer,
            report=self.report,
            clock=self.seams.clock,
        )
        return shared.result(compare)

    def _run_off(
        self, search: Search, measurer: Measurer, baseline: Trial, budget: Budget
    ) -> StudyResult:
        comparison = FinalComparison(
            setting=self.setting,
            measurer=measurer,
            trials=search.trials,
            baseline=baseline,
            report=self.report,
            budget=budget,
        )
        verdict = comparison.run_off()
        interrupted = False
        try:
            verdict = comparison.ablate(verdict)
            if self.process_options:
                verdict = comparison.with_process(verdict)
        except KeyboardInterrupt:
            verdict, interrupted = comparison.unfinished(verdict), True
        try:
            written = self._write(search, measurer, verdict)
        except KeyboardInterrupt:  # what is confirmed is written all the same
            written, interrupted = self._write(search, measurer, verdict), True
        if interrupted:
            raise Interrupted(written) from None
        return written

    def _cut_short(self, search: Search, measurer: Measurer, baseline: Trial) -> StudyResult:
        """Returns the written result by the search's own numbers."""
        setting = self.setting
        chosen = finalists(search.trials, setting.limits, setting.objectives, setting.space)
        candidates = [unconfirmed(trial, baseline) for trial in (baseline, *chosen)]
        picked = choose(candidates, setting.limits, setting.objectives, setting.prefer)
        verdict = Verdict(members=candidates, picked=picked, complete=False)
        return self._write(search, measurer, verdict)

    def _write(self, search: Search, measurer: Measurer, verdict: Verdict) -> StudyResult:
        trials = Trials(measured=search.trials, twins=self.record.twins, ended=search.ended)
        result = summarise(self.setting, trials, verdict, self.preparer)
        candidate = verdict.picked.trial.candidate
        result = emit(result, self.preparer.prepare(candidate.graph.to_json()))
        verify(result, measurer, self.setting.limits)
        return result


def _spent_s(trials: Sequence[Trial]) -> float:
    """Returns how long the measurements of these trials took, in s."""
    return sum(sum(m.spent_s.values()) for trial in trials if (m := trial.measurement) is not None)
