"""The state of a study as its progress callback receives it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from autotune.search.trial import Trial
from autotune.study.options import StudyOptions

# Of the time of the search, so that the final comparison takes a third of the whole; and the least
# that it has, for what the search measures in less is too little for an interval.
_FINAL_SHARE = 1 / 2
_SHORTEST_FINAL_S = 10.0

_END = ("final comparison", "simplification", "samples")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The state of a study.

    Attributes:
        stage: ``"model"``, ``"baseline"``, ``"search"``, ``"final comparison"``,
            ``"simplification"``, ``"samples"``, ``"other builds"`` or ``"done"``; of an
            application also ``"together"`` and ``"confirming"``.
        done: Finished steps of this stage: trials in the search, measurements afterwards.
        total: The most steps that the stage can have.
        best: The trial within the limits that is best in the first objective so far.
        remaining_s: The estimated time that the study will still take; None if unknown.
        note: A sentence for the user, sent once.
        trials: The measured trials of the study so far, in order; empty outside the search.
        options: What the study was asked for, as resolved for its model; sent once, before the
            first trial.
    """

    stage: str
    done: int = 0
    total: int = 0
    best: Trial | None = None
    baseline: Trial | None = None
    remaining_s: float | None = None
    note: str = ""
    trials: Sequence[Trial] = ()
    options: StudyOptions | None = None


OnProgress = Callable[[Progress], None]


def final_s(searched_s: float) -> float:
    """Returns about how long the end of a study takes after a search of so many seconds.

    The end is the final comparison, and leave-one-out after it.
    """
    return max(_SHORTEST_FINAL_S, _FINAL_SHARE * searched_s)


@dataclass
class TimeLeft:
    """A report of progress whose time left is that of the whole study.

    Attributes:
        report: What gets the progress.
        now_s: The clock.
        began_s: When the study began, by the clock; earlier runs of it count as well.
        deadline_s: When it is to end at the latest.
    """

    report: OnProgress
    now_s: Callable[[], float]
    began_s: float
    deadline_s: float = math.inf
    _end_s: float | None = field(default=None, init=False)

    def __call__(self, progress: Progress) -> None:
        """Reports the progress, with the time that all stages together will still take."""
        now_s, left_s = self.now_s(), progress.remaining_s
        if progress.stage == "search" and left_s is not None:
            left_s += final_s(now_s + left_s - self.began_s)
        elif progress.stage in _END:
            if self._end_s is None:
                self._end_s = now_s + final_s(now_s - self.began_s)
            # a stage knows its own steps, and the limit of the end covers those that follow
            rest_s = self._end_s - now_s
            if rest_s > 0:
                left_s = max(left_s or 0.0, rest_s)
        if left_s is not None:
            left_s = max(0.0, min(left_s, self.deadline_s - now_s))
        self.report(replace(progress, remaining_s=left_s))
