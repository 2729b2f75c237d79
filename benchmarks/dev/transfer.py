"""How soon a study finds what is best on new hardware, with and without what it takes over.

    python benchmarks/dev/transfer.py [--json] [--quick] [--seeds N]

For each model that was recorded on two kinds of machine (benchmarks/dev/tables and, under the same
name, a folder in it), in both directions: a study of 100 trials on one of them, then one on the
other, which starts from the first one's front and model of effects, as a sibling of it does
(`autotune.storage.identity`), and one that knows nothing. The header of each table says which
machine it stands for, and whether that is simulated.

    found      after how many trials something is measured that is in truth within 2 % of the best
               admissible latency, as far as the table can tell (see search.py): the median of the
               seeds, and what nine of ten stay below
    by 15      in how many seeds that is so after 15 trials
    picked     in how many seeds the final comparison after 15 trials picks such a one
    hv 15      hypervolume after 15 trials over the table's own, as in search.py
"""

import argparse
import itertools
import json
import math
import multiprocessing
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search import EFFECTS, TABLES, Truth, picked, reached, search, table
from threadpoolctl import threadpool_limits

from autotune.search.objective import DEFAULT, find
from autotune.search.transfer import RelatedStudy, prior, starting_points
from autotune.search.trial import Limits, Trial

_OBJECTIVES = find(DEFAULT)
_QUICK_SEEDS, _SEEDS = 4, 30
_TRIALS = 100
_LOOK = 15
_NEAR = 0.02


@dataclass(frozen=True)
class Job:
    """A model on new hardware, with one seed."""

    there: Path
    here: Path
    seed: int
    trials: int


@dataclass(frozen=True)
class Run:
    """What a study on new hardware found."""

    found_at: int
    pick: float
    volume: float


def run(job: Job) -> tuple[Job, Run, Run]:
    """Returns what the study finds that knows a related one, and what the other one finds."""
    (there, _), (recording, truth) = table(job.there), table(job.here)
    earlier, _, _ = search(there, EFFECTS, job.seed, job.trials)
    cores = recording.header.environment.cores
    related = RelatedStudy(
        name="there",
        facts={"usable cores": str(there.header.environment.cores)},
        trials=[trial for trial in earlier if trial.measurement is not None],
    )
    limits = Limits(max_error=recording.header.max_error)
    first = starting_points([related], recording.space, cores, limits, _OBJECTIVES)
    expected = prior([related], recording.space, cores, _OBJECTIVES)
    # another seed than there: the luck of new hardware is its own
    seed = job.seed + 1000
    transferred = search(recording, EFFECTS, seed, job.trials, first=first, prior=expected)
    cold = search(recording, EFFECTS, seed, job.trials)
    runs = []
    for trials, measurer, _ in (transferred, cold):
        runs.append(
            Run(
                found_at=found_at(trials, truth),
                pick=truth.behind(picked(trials[:_LOOK], recording, measurer, seed), allowing=True),
                volume=reached(trials[:_LOOK], truth),
            )
        )
    return job, runs[0], runs[1]


def found_at(trials: Sequence[Trial], truth: Truth) -> int:
    """Returns after how many trials one was near the best; one more than there are if never."""
    for i, trial in enumerate(trials, start=1):
        is_recorded = trial.configuration in truth.points
        if is_recorded and truth.behind(trial.configuration, allowing=True) <= _NEAR:
            return i
    return len(trials) + 1


def pairs() -> list[tuple[Path, Path]]:
    """Returns the tables of one model on two kinds of machine, in both directions."""
    both = [(path, TABLES / path.name) for path in sorted(TABLES.glob("*/*.jsonl.gz"))]
    return [pair for one, other in both for pair in ((one, other), (other, one))]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_SEEDS} seeds")
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--trials", type=int, default=_TRIALS, help="of each study")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    seeds = given.seeds or (_QUICK_SEEDS if given.quick else _SEEDS)
    jobs = [
        Job(*pair, seed, given.trials) for pair, seed in itertools.product(pairs(), range(seeds))
    ]
    paired: dict[tuple[Path, Path], list[tuple[Run, Run]]] = {}
    spawn = multiprocessing.get_context("spawn")
    # two threads of BLAS in each of two processes take three times as long
    with spawn.Pool(initializer=threadpool_limits, initargs=(1, "blas")) as pool:
        for done, (job, transferred, cold) in enumerate(pool.imap_unordered(run, jobs), start=1):
            paired.setdefault((job.there, job.here), []).append((transferred, cold))
            sys.stderr.write(f"\r{done} of {len(jobs)} pairs of studies   ")
    sys.stderr.write("\n")
    for path in sorted({path for pair in pairs() for path in pair}):
        recording = table(path)[0]
        print(f"{named(path):22}{len(recording):6} points  {recording.header.machine}")
    print(
        f"\n{'from -> to':40}{'':14}{'found':>7}{'9 of 10':>9}{'by 15':>8}{'picked':>8}{'hv 15':>8}"
    )
    for pair in pairs():
        for i, kind in enumerate(("transferred", "cold start")):
            title = " -> ".join(named(path) for path in pair) if i == 0 else ""
            print(f"{title:40}{kind:14}{row(summary([runs[i] for runs in paired[pair]]))}")
    everything = [runs for pair in pairs() for runs in paired[pair]]
    totals = {
        "transferred": summary([one for one, _ in everything]),
        "cold": summary([other for _, other in everything]),
    }
    for kind, figures in totals.items():
        print(f"{'all':40}{kind:14}{row(figures)}")
    if given.json:
        print(json.dumps({**totals, "pairs": len(pairs()), "seeds": seeds}))


def named(path: Path) -> str:
    """Returns a table's name with that of its folder."""
    return str(path.relative_to(TABLES)).removesuffix(".jsonl.gz")


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Returns the figures of these runs."""
    at = sorted(r.found_at for r in runs)
    return {
        "found_median": statistics.median(at),
        "found_p90": at[math.ceil(0.9 * len(at)) - 1],
        "found_by_15": statistics.fmean(n <= _LOOK for n in at),
        "picked_by_15": statistics.fmean(r.pick <= _NEAR for r in runs),
        "hv_15": statistics.fmean(r.volume for r in runs),
    }


def row(figures: dict[str, Any]) -> str:
    """Returns figures as the end of a line."""
    return (
        f"{figures['found_median']:7.0f}{figures['found_p90']:9.0f}{figures['found_by_15']:8.0%}"
        f"{figures['picked_by_15']:8.0%}{figures['hv_15']:8.3f}"
    )


if __name__ == "__main__":
    main()
