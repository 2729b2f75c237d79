"""The page while its study runs: written between trials, seldom enough to cost next to nothing."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autotune.report.page.state import StudyState
from autotune.report.page.writing import REFRESH_S, write_page
from autotune.report.progress import count, stage, time_left
from autotune.search.objective import find
from autotune.search.trial import Trial
from autotune.study.options import StudyOptions
from autotune.study.progress import Progress

# Writing may take this share of the time at most.
_SHARE = 0.02


@dataclass
class LivePage:
    """A progress callback that keeps the page of a running study up to date.

    It is called between measurements, when no process is timed. A disk that is full ends no study:
    the page is then not written.

    Attributes:
        announce: Called with the page's path when it is written for the first time.
    """

    announce: Callable[[Path], None]
    monotonic: Callable[[], float] = time.monotonic
    _is_announced: bool = field(default=False, init=False)
    _options: StudyOptions | None = field(default=None, init=False)
    _trials: tuple[Trial, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self._next_s = self.monotonic()

    def __call__(self, progress: Progress) -> None:
        """Writes the page if it is time to."""
        self._options = progress.options or self._options
        self._trials = tuple(progress.trials) or self._trials
        began_s = self.monotonic()
        options, is_done = self._options, progress.stage == "done"
        if options is None or not self._trials or is_done or began_s < self._next_s:
            return
        parts = [stage(progress), count(progress.done, progress.total), time_left(progress)]
        state = StudyState(
            name="",
            model=options.model.name,
            folder=options.folder,
            objectives=find(options.objectives),
            limits=options.limits,
            trials=self._trials,
            options=options,
            stage=", ".join(filter(None, parts)),
        )
        with contextlib.suppress(OSError):
            page = write_page(state)
            if not self._is_announced:
                self.announce(page)
                self._is_announced = True
        ended_s = self.monotonic()
        self._next_s = ended_s + max(REFRESH_S, (ended_s - began_s) / _SHARE)
