"""Whether every change of an emitted config is needed, and what they bring multiplies to the whole.

    python benchmarks/ablation.py MODEL.onnx ... [--trials 60] [--max-error 0.1] [--rounds 5]
                                  [--out DIR] [--json]

A study of each model; then each change of the config that it emitted is put back alone, and
measured beside the config once more, independent of the study's own ablation. A change is needless
if its removal changes neither latency nor memory beyond the noise, and makes the answers no worse.
The steps of the study's ablation multiply to the whole if the product of their speed-ups, and that
of their factors on memory, is the whole's within the intervals of both. With --out a study that was
cut short goes on. NAME_inputs.npz beside NAME.onnx is its input.

The last line has "parts", by model the steps with the whole, and "needless", by model the changes
that the config could do without.
"""

import argparse
import json
import math
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from inputs import file_beside, workload_of

from autotune.deploy.config import Interval
from autotune.facts.model import describe
from autotune.graph.prepare import Preparer
from autotune.measure.measurer import DuetMeasurer
from autotune.results.changes import changes_of
from autotune.results.parts import Ablation
from autotune.results.result import StudyResult
from autotune.results.run_off import Plan, Rounds
from autotune.results.score import Score, is_gain, is_loss
from autotune.search.objective import DEFAULT, find
from autotune.space.candidate import Candidate
from autotune.space.files import find_space
from autotune.study.progress import Progress
from autotune.study.tune import tune

_EMITTED = 0
_SAME_ERROR = 1.1
_EXACT_ERROR = 1e-5


def main() -> None:
    """Prints the steps of each model, and what its config could do without."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--max-error", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of the check")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    parts: dict[str, Any] = {}
    needless: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for path in given.models:
            folder = (given.out or Path(scratch)) / path.stem
            result = study(path, folder, given.trials, given.max_error)
            name = result.model.stem
            parts[name] = steps_of(result.ablation)
            needless[name] = check(path, result, given.max_error, given.rounds)
            show(name, result, parts[name], needless[name])
    if given.json:
        print(json.dumps({"parts": parts, "needless": needless}))


def study(path: Path, folder: Path, trials: int, max_error: float) -> StudyResult:
    """Returns the result of a study, and says how far it is."""

    def report(progress: Progress) -> None:
        text = f"{path.stem}: {progress.stage} {progress.done} of {progress.total}"
        sys.stderr.write(f"\r{text:60}")

    result = tune(
        path,
        trials=trials,
        data=file_beside(path),
        max_error=max_error,
        out=folder,
        on_progress=report,
    )
    sys.stderr.write("\n")
    return result


def steps_of(ablation: Ablation | None) -> dict[str, Any]:
    """Returns the steps, the whole, and whether they multiply to it; empty without an ablation."""
    if ablation is None or ablation.whole is None:
        return {}
    whole = ablation.whole
    return {
        "steps": [asdict(step) for step in ablation.steps],
        "whole": asdict(whole),
        "dropped": [part.words for part in ablation.dropped],
        "multiply": multiply([step.speedup for step in ablation.steps], whole.speedup)
        and multiply([step.memory for step in ablation.steps], whole.memory),
    }


def multiply(factors: list[Interval], whole: Interval) -> bool:
    """Returns whether the product of the factors is the whole, within all intervals together."""
    product = math.prod(factor.value for factor in factors)
    reach = math.hypot(*(math.log(own.high / own.low) / 2 for own in [*factors, whole]))
    return abs(math.log(product / whole.value)) <= reach + 1e-6


def check(path: Path, result: StudyResult, max_error: float, most_rounds: int) -> list[str]:
    """Returns the changes that the emitted config could do without, in words."""
    emitted = Candidate.of(result.best.candidate)
    changes = dict(enumerate(changes_of(emitted, find_space("default")), _EMITTED + 1))
    if not changes:
        return []
    model = describe(path)
    workload = workload_of(path, model)
    cache = result.folder / "cache"
    preparer = Preparer(model, cache, workload=workload, signature=workload.signature())
    measurer = DuetMeasurer(model, workload, preparer, max_error=max_error)

    def report(done: int, most: int) -> None:
        sys.stderr.write(f"\r{f'check: {done} of {most}':60}")

    candidates = {_EMITTED: emitted} | {n: change.without for n, change in changes.items()}
    try:
        rounds = Rounds(
            {n: partial(measurer.measure, candidate) for n, candidate in candidates.items()},
            measurer.renew,
            find(DEFAULT),
            seed=1,
            on_step=report,
            plan=Plan(fewest=3, most=most_rounds),
        )
        scores = rounds.play()
    finally:
        measurer.close()
    sys.stderr.write("\n")
    return [
        change.words
        for number, change in changes.items()
        if number in scores and not _matters(scores[_EMITTED], scores[number])
    ]


def _matters(emitted: Score, without: Score) -> bool:
    """Returns whether latency, memory or answers are others without a change."""
    return (
        is_gain(without.speedup)
        or is_loss(without.speedup)
        or without.larger
        or without.leaner
        or without.error > _SAME_ERROR * emitted.error + _EXACT_ERROR
    )


def show(name: str, result: StudyResult, parts: dict[str, Any], needless: list[str]) -> None:
    """Prints a model's table."""
    print(f"{name}: {result.best.words}")
    for step in [*parts.get("steps", []), *([parts["whole"]] if parts else [])]:
        speedup, memory = step["speedup"], step["memory"]
        numbers = f"{speedup['value']:.2f}x ({speedup['low']:.2f} to {speedup['high']:.2f})"
        print(f"    {numbers:24} {memory['value']:.2f} of the memory  {step['words']}")
    for words in parts.get("dropped", []):
        print(f"    dropped: {words}")
    if parts:
        print(f"    the steps multiply to the whole: {'yes' if parts['multiply'] else 'NO'}")
    print(f"    needless: {', '.join(needless) or 'none'}", flush=True)


if __name__ == "__main__":
    main()
