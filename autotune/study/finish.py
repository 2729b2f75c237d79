"""The end of a study: the final comparison, and what is written of it.

Of workers that share a study one makes the final comparison; the others adopt its result.
"""

import math
from dataclasses import dataclass, replace

from autotune.errors import FormatError
from autotune.graph.prepare import Preparer
from autotune.results.result import StudyResult
from autotune.results.selection import select
from autotune.results.summary import Conclusion, summarise, unconfirmed
from autotune.results.writing import answers_check, write
from autotune.search.context import Context
from autotune.search.finalists import finalists
from autotune.storage.final_comparison import SharedComparison
from autotune.study.earlier import is_of, written
from autotune.study.ending import EndOfStudy
from autotune.study.judging import Judge
from autotune.study.loop import Search
from autotune.study.options import StudyOptions
from autotune.study.progress import Progress, final_s

_POLL_S = 2.0
# The default and one other in two rounds; less gives no interval.
_LEAST_MEASUREMENTS = 4
# Writing and checking the config takes about as long as so many trials.
_WRITING = 2


class Interrupted(KeyboardInterrupt):
    """A study was interrupted after its default was measured; the best so far is written.

    Attributes:
        result: The written result, with the numbers of the search; those of the final comparison
            where that had ended.
    """

    def __init__(self, result: StudyResult) -> None:
        super().__init__()
        self.result = result


@dataclass(frozen=True)
class Finish:
    """The end of a study whose search has ended, or was interrupted.

    Attributes:
        shared: Which worker makes the final comparison; None where this is the only one.
        deadline_s: When the whole study is to end, by the clock.
    """

    ctx: Context
    options: StudyOptions
    search: Search
    preparer: Preparer
    judge: Judge
    shared: SharedComparison | None = None
    deadline_s: float = math.inf

    def result(self, began_s: float) -> StudyResult:
        """Returns the written result of the final comparison, this worker's or another one's.

        Args:
            began_s: When the study began, by the clock; earlier runs of it count as well.

        Raises:
            Interrupted: Ctrl-C after the finalists were compared.
        """
        if self.shared is None:
            return self._compare(began_s)
        while True:
            if (recorded := self._recorded(self.shared)) is not None:
                return self._write(replace(recorded, model=self.ctx.model.path.absolute()))
            if self.shared.begin():
                confirmed: StudyResult | None = None
                try:
                    result = self._compare(began_s)
                    confirmed = result if result.complete else None  # others may have time for it
                finally:
                    self.shared.end(None if confirmed is None else confirmed.to_json())
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
        earlier = written(self.ctx)
        if earlier is None or not is_of(earlier, self.ctx, earlier.trials):
            return None
        return None if earlier.best is earlier.baseline else earlier

    def _recorded(self, shared: SharedComparison) -> StudyResult | None:
        """Returns the result of another worker, by all trials and the same wishes."""
        try:
            recorded = StudyResult.from_json(shared.result, self.ctx.folder)
        except FormatError:
            return None
        return recorded if is_of(recorded, self.ctx, len(self.search.trials)) else None

    def _compare(self, began_s: float) -> StudyResult:
        clock_s, trials = self.search.clock.monotonic, len(self.search.trials)
        searched_s = clock_s() - began_s
        trial_s = searched_s / max(1, trials)
        left_s = self.deadline_s - clock_s() - _WRITING * trial_s
        if left_s < _LEAST_MEASUREMENTS * trial_s:
            note = (
                "--timeout leaves too little time for a final comparison, so none is made; the "
                "same command with a longer one makes it."
            )
            self.search.report(Progress(stage="search", note=note))
            return self.cut_short()
        limit_s, is_strict = min(final_s(searched_s), left_s), left_s < math.inf
        ending = EndOfStudy.within(
            limit_s, self.ctx, self.search, trial_s=trial_s if is_strict else None
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
