"""Where a study stands, as its progress callback is told."""

from collections.abc import Callable
from dataclasses import dataclass

from autotune.search.trial import Trial


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a study stands; given to the progress callback.

    Attributes:
        stage: ``"model"``, ``"baseline"``, ``"search"``, ``"run-off"`` or ``"done"``.
        done: Steps of this stage that are done: trials in the search, measurements in the run-off.
        total: How many there will be at most.
        best: The trial within the limits that is best in the first objective so far.
        baseline: Trial 0, once it is measured.
        latest: The trial that was just measured.
        remaining_s: About how long this stage will still take; None where nothing is known.
        note: Something to tell the user, once.
    """

    stage: str
    done: int = 0
    total: int = 0
    best: Trial | None = None
    baseline: Trial | None = None
    latest: Trial | None = None
    remaining_s: float | None = None
    note: str = ""


OnProgress = Callable[[Progress], None]
