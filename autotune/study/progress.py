"""The state of a study as its progress callback receives it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.search.trial import Trial
from autotune.study.options import StudyOptions


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
        remaining_s: The estimated time that this stage will still take; None if unknown.
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
