"""Whether the front of a short study holds against a long random one, on the machine itself.

    python benchmarks/live.py MODEL.onnx [--trials 100] [--random-trials 300] [--max-error 0.1]
                              [--out DIR] [--json]

Two studies of the default space, one by the default strategy, one by random choice, neither ended
early. Then all members of both fronts are measured again in one run-off. A random one beats the
short study's front if no member of that is as fast and as lean but for the noise: the run-off's own
floor in latency, and in memory what two measurements of one configuration differ by. With --out a
study that was cut short goes on. NAME_inputs.npz beside NAME.onnx is its input.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inputs import file_beside, workload_of
from search import hypervolume

from autotune.facts.model import describe
from autotune.graph.prepare import Preparer
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import SEARCH
from autotune.results.result import StudyResult
from autotune.results.run_off import Finalist, run_off
from autotune.search.objective import DEFAULT, find
from autotune.search.portfolio import DEFAULT_SAMPLER
from autotune.search.trial import Trial
from autotune.space.candidate import BASELINE, Candidate
from autotune.study.progress import Progress
from autotune.study.tune import tune

_OBJECTIVES = find(DEFAULT)
_LATENCY, _MEMORY = _OBJECTIVES
_MARGIN = math.log(1.1)


def main() -> None:
    """Prints both fronts, side by side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--random-trials", type=int, default=300)
    parser.add_argument("--max-error", type=float, default=0.1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.out or Path(scratch)
        studies = {
            sampler: study(given.model, folder / sampler, sampler, trials, given.max_error)
            for sampler, trials in (
                (DEFAULT_SAMPLER, given.trials),
                ("random", given.random_trials),
            )
        }
        fronts = {
            name: [Candidate.of(m.candidate) for m in result.members[1:] if m.admitted]
            for name, result in studies.items()
        }
        finalists = again(given.model, given.max_error, Path(scratch), fronts)
    figures = summary(finalists, fronts)
    for name, result in studies.items():
        print(f"{name}: {result.trials} trials, {len(fronts[name])} members on the front")
    print(f"\n{'latency':>8} {'memory':>7}  found by         configuration")
    base = finalists[BASELINE]
    for candidate, item in sorted(finalists.items(), key=lambda pair: pair[1].latency_ms):
        by = ", ".join(name for name, front in fronts.items() if candidate in front)
        memory = item.peak_memory_mib / base.peak_memory_mib
        words = candidate.in_words()
        print(f"{1 / item.speedup.value:8.3f} {memory:7.3f}  {by or 'default':16} {words}")
    for key, value in figures.items():
        print(f"{key:28} {value:.3f}")
    if given.json:
        print(json.dumps({**figures, "trials": {n: r.trials for n, r in studies.items()}}))


def study(model: Path, out: Path, sampler: str, trials: int, max_error: float) -> StudyResult:
    """Returns the result of a study, and says how far it is."""

    def report(progress: Progress) -> None:
        text = f"{sampler}: {progress.stage} {progress.done} of {progress.total}"
        sys.stderr.write(f"\r{text:50}")

    return tune(
        model,
        trials=trials,
        data=file_beside(model),
        max_error=max_error,
        out=out,
        sampler=sampler,
        early_stop=False,
        on_progress=report,
    )


def again(
    path: Path, max_error: float, scratch: Path, fronts: dict[str, list[Candidate]]
) -> dict[Candidate, Finalist]:
    """Returns what one run-off of all members says of each, the baseline among them."""
    model = describe(path)
    workload = workload_of(path, model)
    preparer = Preparer(model, scratch / "again", workload=workload, signature=workload.signature())
    measurer = DuetMeasurer(model, workload, preparer, max_error=max_error)
    try:
        everyone = list(dict.fromkeys([BASELINE, *(c for front in fronts.values() for c in front)]))
        baseline, *others = (
            Trial(number=number, candidate=c, outcome=measurer.measure(c, SEARCH))
            for number, c in enumerate(everyone)
        )

        def report(done: int, total: int) -> None:
            sys.stderr.write(f"\r{f'both fronts again: {done} of {total}':50}")

        finalists = run_off(measurer, baseline, others, _OBJECTIVES, seed=0, on_step=report)
    finally:
        measurer.close()
    sys.stderr.write("\n")
    return {item.trial.candidate: item for item in finalists}


def summary(
    finalists: dict[Candidate, Finalist], fronts: dict[str, list[Candidate]]
) -> dict[str, Any]:
    """Returns the figures: how many random members beat the front, and both hypervolumes."""
    mine = [finalists[c] for c in fronts[DEFAULT_SAMPLER] if c in finalists] + [finalists[BASELINE]]
    theirs = [finalists[c] for c in fronts["random"] if c in finalists]

    def as_good(item: Finalist, other: Finalist) -> bool:
        floor = 1 + other.noise_floor
        leaner = _MEMORY.is_better(other.peak_memory_mib, item.peak_memory_mib)
        return item.latency_ms <= floor * other.latency_ms and not leaner

    beaten = sum(not any(as_good(item, other) for item in mine) for other in theirs)
    everyone = list(finalists.values())
    whole = volume(everyone, everyone)
    return {
        "random_members": len(theirs),
        "random_members_that_beat": beaten,
        "hypervolume_default": volume(mine, everyone) / whole,
        "hypervolume_random": volume([*theirs, finalists[BASELINE]], everyone) / whole,
        "fastest_default": min(item.latency_ms for item in mine) / finalists[BASELINE].latency_ms,
        "fastest_random": min(i.latency_ms for i in [*theirs, finalists[BASELINE]])
        / finalists[BASELINE].latency_ms,
    }


def volume(items: Sequence[Finalist], everyone: Sequence[Finalist]) -> float:
    """Returns the hypervolume in logarithms, a tenth beyond the worst of all."""

    def point(item: Finalist) -> tuple[float, float]:
        return math.log(item.latency_ms), math.log(item.peak_memory_mib)

    latencies, memories = zip(*map(point, everyone), strict=True)
    reference = (max(latencies) + _MARGIN, max(memories) + _MARGIN)
    return hypervolume([point(item) for item in items], reference)


if __name__ == "__main__":
    main()
