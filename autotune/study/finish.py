"""The end of a study: the final comparison, and what is written of it.

Of workers that share a study one makes the final comparison; the others adopt its result.
"""

from dataclasses import dataclass, replace

from autotune.errors import CannotMeasureError, FormatError
from autotune.graph.prepare import Preparer
from autotune.measure.outcome import Failure
from autotune.results.final_comparison import Budget
from autotune.results.result import StudyResult
from autotune.results.selection import select
from autotune.results.summary import Conclusion, plain_limits, summarise, unconfirmed
from autotune.results.writing import answers_check, write
from autotune.search.context import Context
from autotune.search.finalists import finalists
from autotune.study.ending import EndOfStudy
from autotune.study.judging import Judge
from autotune.study.loop import Search
from autotune.study.options import StudyOptions
from autotune.study.progress import Progress

_POLL_S = 2.0
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


def earlier_result(
    ctx: Context, options: StudyOptions, measured: int, *, has_tried_all: bool
) -> tuple[StudyResult, str] | None:
    """Returns the result in the folder with a note, if nothing is left to do; else None.

    Args:
        measured: How many trials the study has.
        has_tried_all: Whether all that the user asks for by name is among them.
    """
    earlier = _written(ctx)
    if earlier is None:
        return None
    same = (earlier.simplification is None or earlier.simplification.complete) and _is_of(
        earlier, ctx, measured
    )
    if same and measured >= options.trials:
        note = f"All {measured} trials are measured already; --trials {2 * measured} goes on."
        return earlier, note
    if same and earlier.ended and options.early_stop and has_tried_all:
        return earlier, f"The search has ended: {earlier.ended}; --no-early-stop goes on."
    return None


def _written(ctx: Context) -> StudyResult | None:
    """Returns the confirmed result of the study in its folder, if all of its files are there."""
    result = StudyResult.found_in(ctx.folder)
    if result is None:
        return None
    is_whole = result.complete and all((ctx.folder / name).is_file() for name in result.files)
    return result if is_whole and result.study == ctx.study else None


def _is_of(result: StudyResult, ctx: Context, measured: int) -> bool:
    """Returns whether a result is by all trials and the same wishes."""
    mine = (measured, ctx.prefer, plain_limits(ctx.limits))
    return (result.trials, result.prefer, result.limits) == mine and result.is_decided


@dataclass(frozen=True)
class Finish:
    """The end of a study whose search has ended, or was interrupted."""

    ctx: Context
    options: StudyOptions
    search: Search
    preparer: Preparer
    judge: Judge

    def result(self, began_s: float) -> StudyResult:
        """Returns the written result of the final comparison, this worker's or another one's.

        Args:
            began_s: When the study began, by the clock; earlier runs of it count as well.

        Raises:
            CannotMeasureError: the default fails.
            Interrupted: Ctrl-C after the finalists were compared.
        """
        baseline = self.search.baseline
        if baseline is None or baseline.measurement is None:
            failure = baseline.outcome if baseline is not None else None
            reason = failure.message if isinstance(failure, Failure) else "no trial"
            raise CannotMeasureError(f"the default itself could not be measured: {reason}")
        store = self.search.store
        if not store.is_shared:
            return self._compare(began_s)
        while True:
            store.refresh()
            if (recorded := self._recorded()) is not None:
                return self._write(replace(recorded, model=self.ctx.model.path.absolute()))
            if store.begin_final_comparison():
                try:
                    result = self._compare(began_s)
                    store.publish(result.to_json())
                finally:
                    store.abandon()
                return result
            self.search.report(Progress(stage="final comparison", total=1))
            self.search.clock.sleep(_POLL_S)

    def cut_short(self) -> StudyResult:
        """Returns the written result by the search's own numbers.

        A config that the final comparison of fewer trials confirmed stays in its place.
        """
        ctx, search = self.ctx, self.search
        if confirmed := self._confirmed():
            note = f"best.json stays as the final comparison of {confirmed.trials} trials wrote it."
            self.search.report(Progress(stage="final comparison", note=note))
            return confirmed
        assert search.baseline is not None
        chosen = finalists(search.trials, ctx.limits, ctx.objectives, ctx.space)
        compared = [unconfirmed(trial, search.baseline) for trial in (search.baseline, *chosen)]
        picked = select(compared, ctx.limits, ctx.objectives, ctx.prefer)
        conclusion = Conclusion(members=compared, picked=picked, complete=False)
        return self._summarise(conclusion)

    def _confirmed(self) -> StudyResult | None:
        """Returns the result of fewer trials for the same wishes; None where the default won."""
        earlier = _written(self.ctx)
        if earlier is None or not _is_of(earlier, self.ctx, earlier.trials):
            return None
        return None if earlier.best is earlier.baseline else earlier

    def _recorded(self) -> StudyResult | None:
        """Returns the result of another worker, by all trials and the same wishes."""
        try:
            recorded = StudyResult.from_json(self.search.store.published(), self.ctx.folder)
        except FormatError:
            return None
        return recorded if _is_of(recorded, self.ctx, len(self.search.trials)) else None

    def _compare(self, began_s: float) -> StudyResult:
        searched_s = self.search.clock.monotonic() - began_s
        limit_s = max(_SHORTEST_FINAL_S, _FINAL_SHARE * searched_s)
        ending = EndOfStudy(
            ctx=self.ctx,
            search=self.search,
            budget=Budget(limit_s, self.search.clock.monotonic),
        )
        conclusion = ending.compare()
        interrupted = False
        try:
            for reached in ending.settled(conclusion, self.judge):
                conclusion = reached
        except KeyboardInterrupt:
            conclusion, interrupted = ending.unfinished(conclusion), True
        try:
            written = self._summarise(conclusion)
        except KeyboardInterrupt:  # what is confirmed is written all the same
            written, interrupted = self._summarise(conclusion), True
        if interrupted:
            raise Interrupted(written) from None
        return written

    def _summarise(self, conclusion: Conclusion) -> StudyResult:
        result = summarise(
            self.ctx,
            self.search.trials,
            conclusion,
            ended=self.search.ended,
            cache_bytes=self.preparer.cache.used_bytes(),
            pairs=self.options.pairs,
        )
        return self._write(result)

    def _write(self, result: StudyResult) -> StudyResult:
        check = answers_check(self.search.measurer, result, self.ctx.limits)
        return write(result, self.preparer, check)
