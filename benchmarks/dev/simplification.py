"""Whether every change of a selected config is needed, and what each of them brings.

    python benchmarks/dev/simplification.py MODEL.onnx ... [--trials 60] [--max-error 0.1]
                                            [--rounds 5] [--out DIR] [--json]

A study of each model; then each change of the config that it wrote is reverted alone, and
measured beside the config once more, independent of the study's own simplification. A change is
needless if its removal changes neither latency nor memory beyond the noise, and makes the answers
no worse. With --out a study that was cut short goes on. NAME_inputs.npz beside NAME.onnx is its
input.

The last line has "parts", by model each change and all of them together, and "needless", by model
the changes that the config could do without.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from common import file_beside, workload_of

from autotune.deploy.config import Numbers
from autotune.facts.model import describe
from autotune.graph.prepare import Preparer
from autotune.measure.measurer import DuetMeasurer
from autotune.results.final_comparison import Rounds, RoundsPlan
from autotune.results.leave_one_out import Simplification, changes_of
from autotune.results.result import StudyResult
from autotune.results.score import is_gain, is_larger, is_leaner, is_loss
from autotune.search.objective import DEFAULT, find
from autotune.space.configuration import Configuration
from autotune.space.files import find_space
from autotune.study.progress import Progress
from autotune.study.tune import tune

_EMITTED = 0
_SAME_ERROR = 1.1
_EXACT_ERROR = 1e-5


def main() -> None:
    """Prints what each change does for each model, and what its config could do without."""
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
            parts[name] = parts_of(result.simplification)
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


def parts_of(simplification: Simplification | None) -> dict[str, Any]:
    """Returns the changes that were kept, all together and what was dropped; empty without them."""
    if simplification is None or simplification.whole is None:
        return {}
    return {
        "kept": [asdict(part) for part in simplification.kept],
        "whole": asdict(simplification.whole),
        "dropped": [part.words for part in simplification.dropped],
    }


def check(path: Path, result: StudyResult, max_error: float, most_rounds: int) -> list[str]:
    """Returns the changes that the selected config could do without, in words."""
    selected = Configuration.of(result.best.configuration)
    changes = dict(enumerate(changes_of(selected, find_space("default")), _EMITTED + 1))
    if not changes:
        return []
    model = describe(path)
    workload = workload_of(path, model)
    cache = result.folder / "cache"
    preparer = Preparer(model, cache, workload=workload, signature=workload.signature())
    measurer = DuetMeasurer(model, workload, preparer, max_error=max_error)

    def report(done: int, most: int) -> None:
        sys.stderr.write(f"\r{f'check: {done} of {most}':60}")

    configurations = {_EMITTED: selected} | {n: change.without for n, change in changes.items()}
    try:
        rounds = Rounds(
            {
                n: partial(measurer.measure, configuration)
                for n, configuration in configurations.items()
            },
            measurer.renew,
            find(DEFAULT),
            seed=1,
            on_step=report,
            plan=RoundsPlan(fewest=3, most=most_rounds),
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


def _matters(selected: Numbers, without: Numbers) -> bool:
    """Returns whether latency, memory or answers are others without a change."""
    return (
        is_gain(without.speedup)
        or is_loss(without.speedup)
        or is_larger(without)
        or is_leaner(without)
        or without.error > _SAME_ERROR * selected.error + _EXACT_ERROR
    )


def show(name: str, result: StudyResult, parts: dict[str, Any], needless: list[str]) -> None:
    """Prints a model's table."""
    print(f"{name}: {result.best.words}")
    for part in [*parts.get("kept", []), *([parts["whole"]] if parts else [])]:
        speedup, memory = part["speedup"], part["memory"]
        if speedup is None or memory is None:
            continue
        numbers = f"{speedup['value']:.2f}x ({speedup['low']:.2f} to {speedup['high']:.2f})"
        print(f"    {numbers:24} {memory['value']:.2f} of the memory  {part['words']}")
    for words in parts.get("dropped", []):
        print(f"    dropped: {words}")
    print(f"    needless: {', '.join(needless) or 'none'}", flush=True)


if __name__ == "__main__":
    main()
