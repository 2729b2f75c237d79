"""The end of a study: the final comparison, the selection, and the smallest config as good."""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import threadpoolctl

from autotune.deploy.options import OWN
from autotune.errors import CannotMeasureError, StorageError
from autotune.results.final_comparison import Budget, Finalist, OnStep, compare_finalists
from autotune.results.leave_one_out import LeaveOneOut, Simplification, unfinished
from autotune.results.score import on_scale
from autotune.results.selection import beyond_luck, select
from autotune.results.summary import Conclusion, effects_of
from autotune.search import pareto
from autotune.search.context import Context
from autotune.search.effects import Effect
from autotune.search.finalists import (
    best_of_runtimes,
    beyond_limit,
    default_of_provider,
    finalists,
    leanest_exact,
)
from autotune.search.objective import P99_RUNS
from autotune.search.trial import Trial
from autotune.space.configuration import BASELINE
from autotune.space.session import FIXED_DIMENSIONS
from autotune.study.judging import Judge
from autotune.study.loop import Search
from autotune.study.progress import Progress

# As long as the usual measurement of the final comparison takes; there are 20 to 30 of them.
_MOST_FOR_P99_S = 3.0
_NO_TIME = (
    "There was no time left to revert the changes one by one: all of them stay. The same command "
    "with a longer --timeout does that."
)


def _one_thread() -> AbstractContextManager[object]:
    """Returns a context in which no second thread computes, and spins on while others measure."""
    one_thread: AbstractContextManager[object] = threadpoolctl.threadpool_limits(1, "blas")
    return one_thread


@dataclass(frozen=True, kw_only=True)
class EndOfStudy:
    """What follows the search: final comparison, selection, and leave-one-out."""

    ctx: Context
    search: Search
    budget: Budget = field(default_factory=Budget)

    @classmethod
    def within(
        cls, limit_s: float, ctx: Context, search: Search, *, trial_s: float | None = None
    ) -> "EndOfStudy":
        """Returns the end of a study that takes about so long.

        Args:
            trial_s: How long a trial took, where the limit is the user's own and strict: a
                measurement will take about as long.
        """
        budget = Budget(limit_s, search.clock.monotonic, is_strict=trial_s is not None)
        if trial_s is not None:
            budget.book(1, trial_s)
        return cls(ctx=ctx, search=search, budget=budget)

    def compare(self) -> Conclusion:
        """Returns what the finalists come to, side by side with the default, and which one wins.

        Raises:
            CannotMeasureError: the default fails.
        """
        ctx = self.ctx
        space, limits, objectives = ctx.space, ctx.limits, ctx.objectives
        with _one_thread():
            chosen = finalists(self.search.trials, limits, objectives, space)
            beyond = beyond_limit(self.search.trials, limits, objectives, space)
        beside = default_of_provider(chosen, self.search.trials)
        of_runtimes = best_of_runtimes(self.search.trials, limits, objectives[0])
        for trial in (beside, *of_runtimes):
            if trial is not None and trial not in chosen:
                chosen.append(trial)
        compared = self._measured(chosen, [beyond] if beyond else [])
        conclusion = self._conclusion(compared, beyond)
        if conclusion.picked is compared[0] and (leaner := self._leaner(compared)):
            conclusion = self._conclusion([*compared, leaner], beyond)
        return conclusion

    def settled(self, conclusion: Conclusion, judge: Judge) -> Iterator[Conclusion]:
        """Yields conclusions, the last with the smallest config that is as good and holds.

        Where the selected one does not hold on all samples, the winner with all of its changes
        takes its place, and then the next best. What was found stands if the study is interrupted
        on the way.
        """
        while True:
            smallest = self.simplify(conclusion)
            attempts = [smallest]
            if _may_answer_otherwise(smallest.picked, conclusion.picked):
                attempts.append(_with_all_changes(conclusion, smallest.simplification))
            refused: set[int] = set()
            for attempt in attempts:
                reached = replace(attempt, judgements=conclusion.judgements)
                yield reached
                is_default = reached.picked is reached.members[0]
                judgement = None if is_default else judge(reached.picked)
                if judgement is None:
                    return
                conclusion = replace(conclusion, judgements=(*conclusion.judgements, judgement))
                if judgement.admitted:
                    yield replace(reached, judgements=conclusion.judgements)
                    return
                refused.add(judgement.trial)
                if not (judgement.available or judgement.companions):
                    break  # its model cannot be made again
            conclusion = self._without(conclusion, refused)
            yield conclusion

    def _without(self, conclusion: Conclusion, numbers: Collection[int]) -> Conclusion:
        """Returns the conclusion without the trials of these numbers, which do not hold."""
        limits = self.ctx.limits
        beyond = [
            f
            for f in conclusion.others
            if not limits.admit_answers(f.numbers.error, f.numbers.drop)
        ]
        compared = (*conclusion.members, *conclusion.others)
        rest = [finalist for finalist in compared if finalist.trial.number not in numbers]
        without = self._conclusion(rest, beyond[0].trial if beyond else None)
        return replace(without, judgements=conclusion.judgements)

    def simplify(self, conclusion: Conclusion) -> Conclusion:
        """Returns the conclusion with the smallest config that is as good as the picked one."""
        winner, baseline = conclusion.picked, conclusion.members[0]
        if winner is baseline:
            return conclusion
        leave_one_out = LeaveOneOut(
            setting=self.ctx,
            measurer=self.search.measurer,
            baseline=baseline,
            winner=winner,
            trials=self.search.trials,
            effects=self._effects,
            on_step=self._steps("simplification"),
            budget=self.budget,
        )
        if self.budget.is_strict and not leave_one_out.has_time:
            self.search.report(Progress(stage="simplification", note=_NO_TIME))
            return self.unfinished(conclusion)
        try:
            smallest, simplification = leave_one_out.smallest()
        except (CannotMeasureError, StorageError):
            # the numbers of the final comparison stand, whatever happened to a process afterwards
            return self.unfinished(conclusion)
        numbers = {winner.trial.number, smallest.trial.number}
        rest = [member for member in conclusion.members if member.trial.number not in numbers]
        others = [other for other in conclusion.others if other.trial.number not in numbers]
        return replace(
            conclusion,
            members=(*rest, smallest),
            picked=smallest,
            others=others,
            simplification=simplification,
        )

    def unfinished(self, conclusion: Conclusion) -> Conclusion:
        """Returns the conclusion of a study that was cut short after its final comparison.

        It says so even where all changes were reverted: the config may lack its judgement.
        """
        if conclusion.picked is conclusion.members[0]:
            return conclusion
        reached = conclusion.simplification or unfinished(conclusion.picked)
        return replace(conclusion, simplification=replace(reached, complete=False))

    def _effects(self) -> Sequence[Effect]:
        with _one_thread():
            return effects_of(self.ctx, self.search.trials)

    def _measured(self, chosen: Sequence[Trial], beyond: Sequence[Trial]) -> list[Finalist]:
        search = self.search
        assert search.baseline is not None
        return compare_finalists(
            search.measurer,
            search.baseline,
            chosen,
            self.ctx.objectives,
            seed=self.ctx.seed,
            on_step=self._steps("final comparison"),
            beyond_limits=beyond,
            budget=self.budget,
            fewest_runs=self._fewest_runs,
            on_note=lambda note: search.report(Progress(stage="final comparison", note=note)),
        )

    @property
    def _fewest_runs(self) -> int:
        """Timed runs of each measurement.

        With several clients they are enough for the 99th percentile, where that costs little.
        """
        ctx = self.ctx
        cost_s = P99_RUNS * self.search.measurer.reference_ms / ctx.clients * 4 / 1e3
        for_p99 = ctx.clients > 1 and cost_s <= _MOST_FOR_P99_S
        return P99_RUNS if for_p99 else ctx.limits.fewest_runs

    def _leaner(self, compared: Sequence[Finalist]) -> Finalist | None:
        """Returns what saves memory with the same answers, if nothing that was compared does."""
        leanest = leanest_exact(self.search.trials, self.ctx.limits)
        if leanest is None or leanest.number in {finalist.trial.number for finalist in compared}:
            return None
        try:
            _, *others = self._measured([leanest], [])
        except (CannotMeasureError, StorageError):
            # the numbers of the final comparison stand, whatever happened to a process afterwards
            return None
        # measured later, on the scale of the others
        if not others:
            return None
        return replace(others[0], numbers=on_scale(others[0].numbers, compared[0].numbers))

    def _conclusion(self, compared: Sequence[Finalist], beyond: Trial | None) -> Conclusion:
        ctx = self.ctx
        eligible = [finalist for finalist in compared if finalist.trial is not beyond]
        own = self._best_of_own_runtime(eligible)
        picked = select(eligible, ctx.limits, ctx.objectives, ctx.prefer)
        if self._is_as_good(own, picked):  # another ONNX Runtime has to be worth its installation
            picked = own
        objectives = beyond_luck(ctx.objectives, compared[0])
        front = pareto.front(eligible, lambda finalist: finalist.numbers.values, objectives)
        kept = [compared[0], *(finalist for finalist in front if finalist is not compared[0])]
        # what there is without another ONNX Runtime may be picked too
        kept += [finalist for finalist in (picked, own) if finalist not in kept]
        others = [finalist for finalist in compared if finalist not in kept]
        return Conclusion(members=kept, picked=picked, others=others)

    def _best_of_own_runtime(self, eligible: Sequence[Finalist]) -> Finalist:
        """Returns what would be selected without any other ONNX Runtime than the user's own."""
        ctx = self.ctx
        own = [f for f in eligible if f.trial.configuration.runtime == OWN]
        return select(own, ctx.limits, ctx.objectives, ctx.prefer)

    def _is_as_good(self, own: Finalist, picked: Finalist) -> bool:
        """Returns whether a finalist is as good as the picked one, within the noise."""
        if own.trial.configuration == BASELINE:
            return False
        return not any(
            o.is_better(
                picked.numbers.values[o.name],
                o.better_by(own.numbers.values[o.name], max(o.tolerance, own.numbers.noise_floor)),
            )
            for o in beyond_luck(self.ctx.objectives, picked)
        )

    def _steps(self, stage: str) -> OnStep:
        """Returns a function that reports each measurement of a stage; reports its beginning."""
        began = latest = time.monotonic()
        report = self.search.report

        def on_step(done: int, total: int) -> None:
            nonlocal began, latest
            if done == 1:  # a stage may have several series of rounds
                began = latest
            latest = time.monotonic()
            remaining_s = (latest - began) / done * (total - done)
            report(Progress(stage=stage, done=done, total=total, remaining_s=remaining_s))

        report(Progress(stage=stage, total=1))
        return on_step


def _may_answer_otherwise(one: Finalist, other: Finalist) -> bool:
    """Returns whether one may keep the limits of the answers where the other does not."""
    mine, theirs = one.trial.configuration, other.trial.configuration
    fixed = [each.to_json().get(FIXED_DIMENSIONS) for each in (mine, theirs)]
    return mine.graph != theirs.graph or fixed[0] != fixed[1]


def _with_all_changes(conclusion: Conclusion, reached: Simplification | None) -> Conclusion:
    """Returns the conclusion whose config keeps all changes, with the effect of each change."""
    assert reached is not None
    winner = conclusion.picked.trial.number
    parts = tuple(replace(part, kept=True) for part in reached.parts)
    return replace(
        conclusion, simplification=replace(reached, trial=winner, parts=parts, whole=None)
    )
