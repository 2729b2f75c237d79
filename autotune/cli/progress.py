"""Progress while a command works: a live bar on a terminal, plain lines elsewhere."""

import contextlib
from collections.abc import Callable, Iterator
from types import TracebackType

from rich.console import Console

from autotune.cli.console import messages
from autotune.cli.interrupts import checkpoint
from autotune.report.progress import bar, count, stage, standing, time_left, trial_line
from autotune.study.progress import Progress


class StudyProgress:
    """The progress callback of a study.

    It is a context, so that the bar is gone when the result is printed.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = bar(console)
        self._task = self._bar.add_task("starting", total=None, count="", left="", standing="")
        self._stage = ""
        self._done = 0

    def __enter__(self) -> "StudyProgress":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        """Shows where the study stands."""
        if progress.note:
            self._console.print(progress.note, style="dim", markup=False)
        if not stage(progress):
            return
        self._bar.update(
            self._task,
            description=stage(progress),
            completed=progress.done,
            total=progress.total or None,
            count=count(progress.done, progress.total),
            left=time_left(progress),
            standing=standing(progress),
        )
        if not self._console.is_terminal:
            self._print_lines(progress)

    def _print_lines(self, progress: Progress) -> None:
        """Prints a line for a new stage and for each trial."""
        if progress.stage != self._stage:
            # what an earlier run measured is no news
            self._stage, self._done = progress.stage, progress.done
            left = time_left(progress) if progress.stage != "search" else ""
            words = ", ".join(filter(None, (stage(progress), left)))
            self._console.print(f"{words} ...", markup=False)
        if progress.stage == "search" and progress.trials and progress.done > self._done:
            self._done = progress.done
            line = trial_line(progress, progress.trials[-1])
            self._console.print(line, markup=False, soft_wrap=True)


@contextlib.contextmanager
def steps(title: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a bar; gives a function to call at every step, with the steps done and all steps."""
    with bar(messages()) as live:
        task = live.add_task(title, total=None, count="", left="", standing="")

        def on_step(done: int, total: int) -> None:
            live.update(task, completed=done, total=total, count=count(done, total))
            checkpoint()

        yield on_step
