"""How a study goes, as it goes: a live bar on a terminal, plain lines elsewhere."""

from types import TracebackType

from rich import progress as bars
from rich.console import Console

from autotune.measure.outcome import Failure
from autotune.report.table import latency, printable, words
from autotune.search.trial import Trial
from autotune.study.progress import Progress

_STAGES = {
    "model": "reading the model",
    "baseline": "measuring the default",
    "search": "searching",
    "run-off": "run-off",
}


def bar(console: Console) -> bars.Progress:
    """Returns a bar with steps done, time left and a word about where things stand."""
    return bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=24),
        bars.MofNCompleteColumn(),
        bars.TextColumn("{task.fields[left]}"),
        bars.TextColumn("{task.fields[told]}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


class StudyProgress:
    """A study's progress callback; a context, so that the bar is gone when the result comes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = bar(console)
        self._task = self._bar.add_task("starting", total=None, left="", told="")
        self._stage = ""
        self._told = 0

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
        if progress.stage not in _STAGES:
            return
        left = "" if progress.remaining_s is None else f"{duration(progress.remaining_s)} left"
        self._bar.update(
            self._task,
            description=_STAGES[progress.stage],
            completed=progress.done,
            total=progress.total or None,
            left=left,
            told=_standing(progress),
        )
        if not self._console.is_terminal:
            self._tell_plainly(progress, left)

    def _tell_plainly(self, progress: Progress, left: str) -> None:
        """Prints a line for a new stage and for each trial."""
        if progress.stage != self._stage:
            self._stage = progress.stage
            self._console.print(f"{_STAGES[progress.stage]} ...", markup=False)
        trial = progress.latest
        if progress.stage == "search" and trial is not None and progress.done > self._told:
            self._told = progress.done
            count = f"{progress.done}/{progress.total}"
            self._console.print(
                f"{count:>8}  {_outcome(trial)}  {words(trial.candidate)}{_reason(trial)}"
                + (f"  ({left})" if left else ""),
                markup=False,
                soft_wrap=True,
            )


def duration(seconds: float) -> str:
    """Returns a time as a person says it: ``45 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _standing(progress: Progress) -> str:
    """Returns the best so far against the default."""
    best, baseline = progress.best, progress.baseline
    if progress.stage != "search" or best is None or baseline is None:
        return ""
    if best.measurement is None or baseline.measurement is None:
        return ""
    speedup = baseline.measurement.latency_ms / best.measurement.latency_ms
    return (
        f"best {latency(best.measurement.latency_ms)} ms, {speedup:.2f}× the default's speed, "
        f"{best.measurement.peak_memory_mib:.0f} MiB"
    )


def _reason(trial: Trial) -> str:
    return f": {printable(trial.outcome.message)}" if isinstance(trial.outcome, Failure) else ""


def _outcome(trial: Trial) -> str:
    if isinstance(trial.outcome, Failure):
        return trial.outcome.kind.replace("_", " ")
    measurement = trial.outcome
    told = f"{latency(measurement.latency_ms):>8} ms {measurement.peak_memory_mib:7.1f} MiB"
    return f"{told}, beaten early" if measurement.raced else told
