"""What racing saves: giving up a candidate early that is clearly beaten.

    python benchmarks/racing.py [MODEL.onnx] [--json] [--quick]

A search of 100 trials as `autotune study` runs it, its wall time split into the parts of a trial.
Then every candidate of that search is measured again without racing: the turns that racing saved,
and whether the front that it found is the one that is found without. NAME_inputs.npz beside
NAME.onnx is its input; without a model, one that `autotune.facts.sample_models` builds is taken.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import optuna
from inputs import sample_cnn, workload_of
from search import hypervolume
from stopwatch import Stopwatch, optuna_methods, timed

from autotune.facts.hardware import hardware
from autotune.facts.model import describe
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import SEARCH, Measurement
from autotune.search import pareto
from autotune.search.objective import DEFAULT, find, values
from autotune.search.trial import Limits, Trial
from autotune.space.files import find_space
from autotune.space.resolve import resolve
from autotune.space.space import Space
from autotune.storage.database import Place, open_storage, quiet_optuna
from autotune.study.builder import build_search

_OBJECTIVES = find(DEFAULT)
_INFERENCE = ("first_runs", "answers", "candidate", "reference")
_TURNS = ("candidate", "reference", "waited")
_PARTS = ("start", "open", *_INFERENCE, "waited", "other")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--quick", action="store_true", help="40 trials")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    count = 40 if given.quick else given.trials
    with tempfile.TemporaryDirectory() as scratch, quiet_optuna():
        path = given.model or sample_cnn(Path(scratch))
        model = describe(path)
        workload = workload_of(path, model)
        measurer = DuetMeasurer(model, workload, max_error=0.05, samples=Path(scratch) / "samples")
        try:
            default = resolve(find_space("default"), model, workload, hardware())
            watch = Stopwatch()
            trials, wall_s = search(Path(scratch), default, measurer, count, watch)
            plain = measure_again(trials, measurer)
        finally:
            measurer.close()
    figures = summarise(trials, wall_s, watch, plain)
    print_tables(path.stem, trials, wall_s, watch, figures)
    if given.json:
        print(json.dumps(figures))


def search(
    folder: Path, searched: Space, measurer: DuetMeasurer, count: int, watch: Stopwatch
) -> tuple[list[Trial], float]:
    """Returns the trials of a search and its wall time in s."""
    where = Place.of(None, folder)
    with timed(watch, optuna_methods()), open_storage(where) as database:
        study = optuna.create_study(storage=database, directions=["minimize"] * len(_OBJECTIVES))
        began = time.monotonic()
        loop = build_search(
            measurer,
            searched,
            study=study,
            objectives=_OBJECTIVES,
            limits=Limits(),
            report=lambda progress: _note(f"searching: {progress.done} of {progress.total}"),
            early_stop=False,
        )
        loop.run(count, None)
        return list(loop.trials), time.monotonic() - began


def measure_again(trials: list[Trial], measurer: DuetMeasurer) -> dict[int, Measurement]:
    """Returns the measurements of the same candidates without racing, by trial."""
    measurements = {}
    for i, trial in enumerate(trials):
        if trial.measurement is not None:
            outcome = measurer.measure(trial.candidate, SEARCH)
            if isinstance(outcome, Measurement):
                measurements[trial.number] = outcome
        _note(f"without racing: {i + 1} of {len(trials)}")
    _note("")
    return measurements


def summarise(
    trials: list[Trial], wall_s: float, watch: Stopwatch, plain: dict[int, Measurement]
) -> dict[str, float]:
    """Returns the figures by name."""
    measured = [m for trial in trials if (m := trial.measurement) is not None]
    per_trial_s = (watch.spent_s["search"] + watch.spent_s["storage"]) / len(trials)
    elsewhere = [m.spent_s["start"] + m.spent_s["waited"] + m.spent_s["other"] for m in measured]
    inference_s = sum(m.spent_s[part] for m in measured for part in _INFERENCE)
    both = [t for t in trials if t.measurement is not None and t.number in plain]
    raced_s = sum(t.measurement.spent_s[part] for t in both for part in _TURNS if t.measurement)
    plain_s = sum(plain[t.number].spent_s[part] for t in both for part in _TURNS)
    return {
        "other_s_median": statistics.median(elsewhere) + per_trial_s,
        "inference_share": inference_s / wall_s,
        "racing_saving": 1 - raced_s / plain_s,
        "raced_share": sum(m.raced for m in measured) / len(measured),
        "front_gap": front_gap(both, plain),
        "hypervolume_share": hypervolume_share(both, plain),
        "trial_s_mean": wall_s / len(trials),
        "trials": len(trials),
    }


def front_gap(trials: list[Trial], plain: dict[int, Measurement]) -> float:
    """Returns how much slower the front found with racing is, by the numbers without racing.

    For each member of the front without racing: the fastest member of the other one that needs no
    more memory, and how much slower it is; the worst of them.
    """
    memory = _OBJECTIVES[1]
    without, raced = fronts(trials, plain)
    worst = 0.0
    for member in without:
        as_lean = [
            plain[t.number].latency_ms
            for t in raced
            if not memory.is_better(_memory_mib(member, plain), _memory_mib(t, plain))
        ]
        gap = min(as_lean, default=float("inf")) / plain[member.number].latency_ms - 1
        worst = max(worst, gap)
    return worst


def fronts(trials: list[Trial], plain: dict[int, Measurement]) -> tuple[list[Trial], list[Trial]]:
    """Returns the front without racing and the one with it.

    Memory is the mean of both measurements in either: its luck has nothing to do with racing.
    """

    def front(latency_ms: dict[int, float]) -> list[Trial]:
        return pareto.front(
            trials,
            lambda t: {
                "latency_ms": latency_ms[t.number],
                "peak_memory_mib": _memory_mib(t, plain),
            },
            _OBJECTIVES,
        )

    raced_ms = {t.number: t.measurement.latency_ms for t in trials if t.measurement}
    return front({n: m.latency_ms for n, m in plain.items()}), front(raced_ms)


def _memory_mib(trial: Trial, plain: dict[int, Measurement]) -> float:
    assert trial.measurement is not None
    return (trial.measurement.peak_memory_mib + plain[trial.number].peak_memory_mib) / 2


def hypervolume_share(trials: list[Trial], plain: dict[int, Measurement]) -> float:
    """Returns the hypervolume of the front found with racing over that of the one without.

    Both by the numbers without racing, and up to one and a half times the default's.
    """
    worst = {name: 1.5 * value for name, value in values(plain[0], _OBJECTIVES).items()}
    reference = (worst["latency_ms"], worst["peak_memory_mib"])
    without, raced = fronts(trials, plain)

    def volume(front: list[Trial]) -> float:
        points = [(plain[t.number].latency_ms, _memory_mib(t, plain)) for t in front]
        return hypervolume(points, reference)

    return volume(raced) / volume(without)


def print_tables(
    name: str, trials: list[Trial], wall_s: float, watch: Stopwatch, figures: dict[str, float]
) -> None:
    """Prints where the time went and the figures."""
    parts: dict[str, float] = defaultdict(float)
    for trial in trials:
        if trial.measurement is not None:
            for part, seconds in trial.measurement.spent_s.items():
                parts[part] += seconds
    spent_s = {part: parts[part] for part in _PARTS} | {
        "search": watch.spent_s["search"],
        "storage": watch.spent_s["storage"],
    }
    spent_s["rest"] = wall_s - sum(spent_s.values())
    words = {
        "start": "process start",
        "open": "session creation",
        "first_runs": "first runs, memory",
        "answers": "answers, fidelity",
        "candidate": "candidate's turns",
        "reference": "reference's turns",
        "waited": "waiting for quiet",
        "other": "ending, statistics",
        "search": "sampler",
        "storage": "storage",
        "rest": "loop, raw samples",
    }
    print(f"{name}: {len(trials)} trials in {wall_s:.1f} s")
    for part, seconds in spent_s.items():
        mean_s = seconds / len(trials)
        print(
            f"  {words[part]:20} {seconds:7.1f} s  {seconds / wall_s:6.1%}  {mean_s:.3f} s a trial"
        )
    for key, value in figures.items():
        print(f"{key:18} {value:.3f}")


def _note(text: str) -> None:
    print(f"\r{text:60}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
