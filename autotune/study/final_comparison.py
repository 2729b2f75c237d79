"""The end of a study: the run-off, what explains its outcome, and the smallest config as good."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import threadpoolctl

from autotune.errors import CannotMeasureError, StorageError
from autotune.measure.outcome import Measurer
from autotune.results.ablation import ablate, unfinished
from autotune.results.alone import Contest
from autotune.results.budget import Budget
from autotune.results.choice import Verdict, beyond_luck, choose
from autotune.results.process_effect import process_effect
from autotune.results.run_off import Finalist, OnStep, run_off
from autotune.results.score import on_scale
from autotune.results.setting import Setting
from autotune.results.summary import effects_of
from autotune.search import pareto
from autotune.search.beliefs import Effect
from autotune.search.finalists import beyond_limit, default_of_provider, finalists, leanest_exact
from autotune.search.objective import P99_RUNS
from autotune.search.trial import Trial
from autotune.study.progress import OnProgress, Progress

# As long as the usual measurement of the final comparison takes; there are 20 to 30 of them.
_MOST_FOR_P99_S = 3.0


def _one_thread() -> AbstractContextManager[object]:
    """Returns a context in which no second thread computes, and spins on while others measure."""
    one_thread: AbstractContextManager[object] = threadpoolctl.threadpool_limits(1, "blas")
    return one_thread


@dataclass(frozen=True, kw_only=True)
class FinalComparison:
    """The final comparison of a study.

    Attributes:
        setting: What the study works on.
        measurer: Measures candidates.
        trials: The measured trials.
        baseline: The trial of the default.
        report: Called as it goes on.
        budget: How long all of it may take.
    """

    setting: Setting
    measurer: Measurer
    trials: Sequence[Trial]
    baseline: Trial
    report: OnProgress
    budget: Budget = field(default_factory=Budget)

    def run_off(self) -> Verdict:
        """Returns what the run-off comes to; the winner is not put to the test yet.

        Raises:
            CannotMeasureError: the default fails.
        """
        setting = self.setting
        space, limits, objectives = setting.space, setting.limits, setting.objectives
        with _one_thread():
            chosen = finalists(self.trials, limits, objectives, space)
            beyond = beyond_limit(self.trials, limits, objectives, space)
        beside = default_of_provider(chosen, self.trials)
        if beside is not None and beside not in chosen:
            chosen.append(beside)
        compared = self._measured(chosen, [beyond] if beyond else [])
        verdict = self._verdict(compared, beyond)
        if verdict.picked is compared[0] and (leaner := self._leaner(compared)):
            verdict = self._verdict([*compared, leaner], beyond)
        return verdict

    def ablate(self, verdict: Verdict) -> Verdict:
        """Returns the verdict with the smallest config that is as good as the picked one."""
        winner, baseline = verdict.picked, verdict.members[0]
        if winner is baseline:
            return verdict
        contest = Contest(
            setting=self.setting,
            measurer=self.measurer,
            baseline=baseline,
            winner=winner,
            compared=[*verdict.members, *verdict.others],
            trials=self.trials,
            effects=self._effects,
            on_step=self._steps("ablation"),
            budget=self.budget,
        )
        try:
            smallest, ablation = ablate(contest)
        except (CannotMeasureError, StorageError):
            # the numbers of the run-off stand, whatever happened to a process afterwards
            return self.unfinished(verdict)
        numbers = {winner.trial.number, smallest.trial.number}
        rest = [member for member in verdict.members if member.trial.number not in numbers]
        others = [other for other in verdict.others if other.trial.number not in numbers]
        return replace(
            verdict, members=(*rest, smallest), picked=smallest, others=others, ablation=ablation
        )

    def unfinished(self, verdict: Verdict) -> Verdict:
        """Returns the verdict of a study that was cut short after its run-off."""
        if verdict.picked is verdict.members[0] or verdict.ablation is not None:
            return verdict
        return replace(verdict, ablation=unfinished(verdict.picked))

    def with_process(self, verdict: Verdict) -> Verdict:
        """Returns the verdict with what options of the process do to the default and the picked."""
        on_step = self._steps("process")
        try:
            effect = process_effect(self.setting, self.measurer, verdict.picked, on_step)
        except (CannotMeasureError, StorageError):
            # the numbers of the run-off stand, whatever happened to a process afterwards
            return verdict
        return replace(verdict, process=effect)

    def _effects(self) -> Sequence[Effect]:
        with _one_thread():
            return effects_of(self.setting, self.trials)

    def _measured(self, chosen: Sequence[Trial], beyond: Sequence[Trial]) -> list[Finalist]:
        return run_off(
            self.measurer,
            self.baseline,
            chosen,
            self.setting.objectives,
            seed=self.setting.seed,
            on_step=self._steps("run-off"),
            beyond_limits=beyond,
            budget=self.budget,
            fewest_runs=self._fewest_runs,
        )

    @property
    def _fewest_runs(self) -> int:
        """Timed runs of each measurement.

        With several clients they are enough for the 99th percentile, where that costs little.
        """
        setting = self.setting
        cost_s = P99_RUNS * self.measurer.reference_ms / setting.clients * 4 / 1e3
        for_p99 = setting.clients > 1 and cost_s <= _MOST_FOR_P99_S
        return P99_RUNS if for_p99 else setting.limits.fewest_runs

    def _leaner(self, compared: Sequence[Finalist]) -> Finalist | None:
        """Returns what saves memory with the same answers, if nothing that was compared does."""
        leanest = leanest_exact(self.trials, self.setting.limits)
        if leanest is None or leanest.number in {finalist.trial.number for finalist in compared}:
            return None
        _, *others = self._measured([leanest], [])
        # measured later, on the scale of the others
        return on_scale(others[0], compared[0]) if others else None

    def _verdict(self, compared: Sequence[Finalist], beyond: Trial | None) -> Verdict:
        setting = self.setting
        eligible = [finalist for finalist in compared if finalist.trial is not beyond]
        picked = choose(eligible, setting.limits, setting.objectives, setting.prefer)
        objectives = beyond_luck(setting.objectives, compared[0])
        front = pareto.front(eligible, lambda finalist: finalist.values, objectives)
        kept = [compared[0], *(finalist for finalist in front if finalist is not compared[0])]
        if picked not in kept:
            kept.append(picked)
        others = [finalist for finalist in compared if finalist not in kept]
        return Verdict(members=kept, picked=picked, others=others)

    def _steps(self, stage: str) -> OnStep:
        """Returns a function that reports each measurement of a stage; reports its beginning."""
        began = latest = time.monotonic()

        def on_step(done: int, total: int) -> None:
            nonlocal began, latest
            if done == 1:  # a stage may have several series of rounds
                began = latest
            latest = time.monotonic()
            remaining_s = (latest - began) / done * (total - done)
            self.report(Progress(stage=stage, done=done, total=total, remaining_s=remaining_s))

        self.report(Progress(stage=stage, total=1))
        return on_step
