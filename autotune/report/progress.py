"""How a study goes, as it goes: a bar for terminals, and lines for other places."""

import rich.progress
from rich.console import Console

from autotune.measure.outcome import Failure
from autotune.report.text import duration, latency, printable
from autotune.search.trial import Trial
from autotune.study.progress import Progress

_STAGES = {
    "model": "reading the model",
    "baseline": "measuring the default",
    "search": "searching",
    "final comparison": "final comparison",
    "simplification": "measuring the winner without each of its changes",
    "samples": "judging the config on all samples",
    "other builds": "probing another build of ONNX Runtime",
    "process": "measuring options of the process",
    "together": "all sessions together",
    "confirming": "final comparison of the application",
}
_BAR_WIDTH = 12
_LONGEST_CHANGES = 60


def bar(console: Console) -> rich.progress.Progress:
    """Returns a bar; its tasks have the fields ``count``, ``left`` and ``standing``, all text.

    It draws on a terminal only, and is gone when it stops.
    """
    return rich.progress.Progress(
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(bar_width=_BAR_WIDTH),
        rich.progress.TextColumn("{task.fields[count]}", markup=False),
        rich.progress.TextColumn("{task.fields[left]}", markup=False),
        rich.progress.TextColumn("{task.fields[standing]}", markup=False),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def stage(progress: Progress) -> str:
    """Returns the stage of a study in plain words; empty once the study is done."""
    return _STAGES.get(progress.stage, "")


def count(done: int, total: int) -> str:
    """Returns how many steps are done, of how many: ``3/20``; empty where that is unknown."""
    return f"{done}/{total}" if total else ""


def time_left(progress: Progress) -> str:
    """Returns about how long the work will still take; empty where that is unknown."""
    return "" if progress.remaining_s is None else f"{duration(progress.remaining_s)} left"


def standing(progress: Progress) -> str:
    """Returns the best so far against the default; empty while there is nothing to compare."""
    best, baseline = progress.best, progress.baseline
    if progress.stage != "search" or best is None or baseline is None:
        return ""
    if best.measurement is None or baseline.measurement is None:
        return ""
    if best.number == baseline.number:
        return "best so far: the default"
    speedup = baseline.measurement.sample_ms / best.measurement.sample_ms
    memory = _memory(best.measurement.peak_memory_mib)
    default = _memory(baseline.measurement.peak_memory_mib)
    return f"best {speedup:.2f}×, {memory} MiB (default {default})"


def trial_line(progress: Progress, trial: Trial) -> str:
    """Returns a line about a trial that was just measured, and where the study stands."""
    parts = [
        f"{count(progress.done, progress.total):>8}  {_outcome(trial)}  {_changes(trial)}",
        standing(progress),
        time_left(progress),
    ]
    return " | ".join(filter(None, parts))


def _memory(mib: float) -> str:
    return f"{mib:.0f}" if mib >= 10 else f"{mib:.1f}"


def _outcome(trial: Trial) -> str:
    if isinstance(trial.outcome, Failure):
        return trial.outcome.kind.replace("_", " ")
    measurement = trial.outcome
    throughput = measurement.throughput_per_s
    tokens = measurement.tokens_per_s
    if tokens is not None:
        speed = f"{tokens:>7.4g} tokens/s"
    elif throughput is not None:
        speed = f"{throughput:>7.4g} samples/s"
    else:
        speed = f"{latency(measurement.latency_ms):>8} ms"
    numbers = f"{speed} {measurement.peak_memory_mib:7.1f} MiB"
    return f"{numbers}, stopped early" if measurement.stopped_early else numbers


def _changes(trial: Trial) -> str:
    """Returns what a trial changes, cut to a short phrase, and why it failed if it did."""
    phrase = trial.configuration.in_words()
    if len(phrase) > _LONGEST_CHANGES:
        phrase = phrase[: _LONGEST_CHANGES - 1] + "…"
    if isinstance(trial.outcome, Failure):
        return f"{phrase}: {printable(trial.outcome.message)}"
    return phrase
