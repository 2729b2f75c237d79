"""How good the front is after so many measurements, by strategy, on recorded tables.

    python benchmarks/dev/search.py [--json] [--quick] [--seeds N] [--tables DIR]

Each strategy searches each table of benchmarks/dev/tables through the study loop itself, with the
same first trials; a measurer answers from the table, with noise as it was recorded. Then the final
comparison, on the same measurer, selects one. What is shown:

    hv      hypervolume of what was measured, by the truth of the table, over that of the table's
            own front; in logarithms of latency and memory over the default's, as far as a tenth
            beyond the default, or the front's own ends where they are worse
    pick    how often what is picked is within 2 % of the best admissible latency, as far as the
            table can tell: the best of a thousand was lucky in the table too, so the standard error
            of the difference of the two is allowed for; and how often by numbers alone (strict)
    own ms  the search's own time for a trial, and what SQLite takes beside it

The truth of a table is the median of three measurements and more near its front and of one
elsewhere (`benchmarks/dev/record.py`); no model smooths it.

A replayed measurement is the truth times a factor that is drawn from repeated measurements (short
ones for a trial, longer ones for a final comparison). The tables leave out the arena, without which
the peak depends on malloc's whole history, and parallel execution, whose times on two cores differ
a hundredfold between processes.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import optuna
from recording import Recording, read
from replay import ReplayMeasurer
from stopwatch import Stopwatch, optuna_methods, timed
from threadpoolctl import threadpool_limits

from autotune.measure.outcome import Effort, IsDominated, Outcome, never_dominated
from autotune.results.final_comparison import compare_finalists
from autotune.results.selection import select
from autotune.search.finalists import finalists
from autotune.search.objective import DEFAULT, Objective, find
from autotune.search.record import Record
from autotune.search.sampler import EffectsSampler
from autotune.search.samplers import SAMPLERS, make_sampler
from autotune.search.start import portfolio
from autotune.search.trial import Limits, Trial
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.space import Space
from autotune.storage.database import quiet_optuna
from autotune.study.loop import Search
from autotune.study.measured_trial import MeasuredTrial

EFFECTS = "effects"
STRATEGIES = (EFFECTS, *(name for name in SAMPLERS if name != "gp"))
TABLES = Path(__file__).parent / "tables"
_OBJECTIVES = find(DEFAULT)
_LOOKS = (10, 20, 40, 100)
_PICKS = (40, 100)
_OWN_TIME = (100, 1000)
_MARGIN = math.log(1.1)
_QUICK_SEEDS, _SEEDS = 4, 30
# The own time of each strategy is that of one run of so many trials with SQLite.
_LONG = 1000
_LONGEST_S = 120.0

Point = tuple[float, float]


@dataclass(frozen=True)
class Truth:
    """What a table says of its configurations, by the truth.

    Attributes:
        points: By admissible configuration, logarithms of latency and memory over the default's.
        reference: As far as the hypervolume reaches.
        volume: Hypervolume of the table's own front.
        fastest: What has the least latency.
        doubts: By configuration, the standard error of the logarithm of its latency.
    """

    points: dict[Configuration, Point]
    reference: Point
    volume: float
    fastest: Configuration
    doubts: dict[Configuration, float]

    def behind(self, configuration: Configuration, *, allowing: bool) -> float:
        """Returns by how much a configuration is slower than the fastest.

        Args:
            configuration: It.
            allowing: Whether the standard error of the difference is taken off.
        """
        distance = self.points[configuration][0] - self.points[self.fastest][0]
        if allowing:
            distance -= math.hypot(self.doubts[configuration], self.doubts[self.fastest])
        return math.exp(distance) - 1

    @classmethod
    def of(cls, recording: Recording) -> "Truth":
        """Returns the truth of a table."""
        base = recording.truth[BASELINE]
        points = {
            configuration: (
                math.log(numbers.latency_ms / base.latency_ms),
                math.log(numbers.peak_memory_mib / base.peak_memory_mib),
            )
            for configuration, numbers in recording.truth.items()
            if numbers.error <= recording.header.max_error
        }
        best = front(points.values())
        reference = (
            max(0.0, *(x for x, _ in best)) + _MARGIN,
            max(0.0, *(y for _, y in best)) + _MARGIN,
        )
        doubts = {c: recording.scatter / math.sqrt(len(recording.measured[c])) for c in points}
        fastest = min(points, key=lambda configuration: points[configuration][0])
        return cls(points, reference, hypervolume(best, reference), fastest, doubts)


def front(points: Iterator[Point] | Sequence[Point] | Any) -> list[Point]:
    """Returns the points that no other is below or equal to on both axes."""
    chosen: list[Point] = []
    for point in sorted(points):
        if not chosen or point[1] < chosen[-1][1]:
            chosen.append(point)
    return chosen


def hypervolume(points: Sequence[Point], reference: Point) -> float:
    """Returns the area that the points are below of, up to the reference."""
    area, lowest = 0.0, reference[1]
    for x, y in front(points):
        if x < reference[0] and y < lowest:
            area += (reference[0] - x) * (lowest - y)
            lowest = y
    return area


class TimedReplay(ReplayMeasurer):
    """A replaying measurer that knows how long it was left alone between measurements.

    Args:
        recording: The table.
        seed: Of the luck.
        watch: What times the storage.

    Attributes:
        own_ms: Before each measurement, the time since the last one ended, without the storage's.
        storage_ms: The same of the storage.
    """

    def __init__(self, recording: Recording, seed: int, watch: Stopwatch) -> None:
        super().__init__(recording, seed)
        self.own_ms: list[float] = []
        self.storage_ms: list[float] = []
        self._watch = watch
        self._since, self._stored_s = time.perf_counter(), 0.0

    def measure(
        self,
        configuration: Configuration,
        effort: Effort,
        is_dominated: IsDominated = never_dominated,
    ) -> Outcome:
        """Notes the time, and answers."""
        stored_s = self._watch.spent_s["storage"]
        self.storage_ms.append((stored_s - self._stored_s) * 1e3)
        self.own_ms.append((time.perf_counter() - self._since) * 1e3 - self.storage_ms[-1])
        try:
            return super().measure(configuration, effort, is_dominated)
        finally:
            self._since, self._stored_s = time.perf_counter(), stored_s


@cache
def table(path: Path) -> tuple[Recording, Truth]:
    """Returns a table with its truth, read once in each process."""
    recording = read(path)
    return recording, Truth.of(recording)


@dataclass(frozen=True)
class Run:
    """What one strategy did on one table with one seed."""

    strategy: str
    table: str
    volumes: dict[int, float]
    picks: dict[int, float]
    strict_picks: dict[int, float]
    own_ms: float


@dataclass(frozen=True)
class SearchedTable:
    """What of a study's context a search of a table needs."""

    space: Space
    limits: Limits
    objectives: Sequence[Objective] = _OBJECTIVES
    folder: Path = TABLES


def search_of_table(
    study: optuna.Study,
    recording: Recording,
    measurer: ReplayMeasurer,
    strategy: str,
    seed: int,
    count: int,
    worker: str = "",
) -> Search:
    """Returns the search of a table, as a study has it."""
    limits, space = Limits(max_error=recording.header.max_error), recording.space
    record = Record(_OBJECTIVES, limits)
    ctx: Any = SearchedTable(space, limits)
    objective = MeasuredTrial(study, ctx, record, measurer, lambda _: None, worker)
    loop = Search(study, objective, [BASELINE, *portfolio(space)])
    if strategy != EFFECTS:
        study.sampler = make_sampler(strategy, seed * 1_000_003)
        return loop
    study.sampler = loop.effects = EffectsSampler(
        space,
        _OBJECTIVES,
        limits,
        record,
        seed=seed,
        budget=count,
        early_stop=False,
    )
    return loop


def search(
    recording: Recording,
    strategy: str,
    seed: int,
    count: int,
    url: str | None = None,
    timeout_s: float | None = None,
) -> tuple[list[Trial], TimedReplay]:
    """Returns the trials of a search of a table by the study loop, and its measurer."""
    watch = Stopwatch()
    measurer = TimedReplay(recording, seed, watch)
    with quiet_optuna(), timed(watch, optuna_methods()):
        study = optuna.create_study(storage=url, directions=["minimize"] * len(_OBJECTIVES))
        loop = search_of_table(study, recording, measurer, strategy, seed, count)
        loop.run(count, timeout_s)
        return list(loop.trials), measurer


def run(job: tuple[Path, str, int]) -> Run:
    """Returns what one strategy does on one table with one seed."""
    path, strategy, seed = job
    recording, truth = table(path)
    trials, measurer = search(recording, strategy, seed, _LOOKS[-1])
    own_ms = statistics.fmean(measurer.own_ms)
    chosen = {look: picked(trials[:look], recording, measurer, seed) for look in _PICKS}
    return Run(
        strategy=strategy,
        table=path.name.split(".")[0],
        volumes={look: reached(trials[:look], truth) for look in _LOOKS},
        picks={look: truth.behind(c, allowing=True) for look, c in chosen.items()},
        strict_picks={look: truth.behind(c, allowing=False) for look, c in chosen.items()},
        own_ms=own_ms,
    )


def reached(trials: Sequence[Trial], truth: Truth) -> float:
    """Returns the share of the table's hypervolume that these trials have."""
    points = [truth.points[t.configuration] for t in trials if t.configuration in truth.points]
    return hypervolume(points, truth.reference) / truth.volume


def picked(
    trials: Sequence[Trial], recording: Recording, measurer: ReplayMeasurer, seed: int
) -> Configuration:
    """Returns what the final comparison picks."""
    limits = Limits(max_error=recording.header.max_error)
    chosen = finalists(trials, limits, _OBJECTIVES, recording.space)
    compared = compare_finalists(
        measurer, trials[0], chosen, _OBJECTIVES, seed=seed, on_step=lambda *_: None
    )
    return select(compared, limits, _OBJECTIVES, "latency").trial.configuration


def own_time(path: Path, strategy: str) -> dict[str, tuple[float, float]]:
    """Returns the search's own ms for a trial, and SQLite's, at trial 100 and 1,000.

    One that takes more than minutes for all of them has no figure at 1,000.
    """
    recording, _ = table(path)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/study.db"
        _, measurer = search(recording, strategy, 0, _LONG, url, timeout_s=_LONGEST_S)

    def at(spent_ms: Sequence[float], trial: int) -> float:
        return statistics.median(spent_ms[trial - 20 : trial])

    looks = [look for look in _OWN_TIME if len(measurer.own_ms) >= look]
    return {str(n): (at(measurer.own_ms, n), at(measurer.storage_ms, n)) for n in looks}


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="four seeds, and no long run")
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--tables", type=Path, default=TABLES)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    seeds = given.seeds or (_QUICK_SEEDS if given.quick else _SEEDS)
    strategies = given.strategies.split(",")
    paths = sorted(given.tables.glob("*.jsonl.gz"))
    jobs = list(itertools.product(paths, strategies, range(seeds)))
    runs: list[Run] = []
    spawn = multiprocessing.get_context("spawn")
    # two threads of BLAS in each of two processes take three times as long
    with spawn.Pool(initializer=threadpool_limits, initargs=(1, "blas")) as pool:
        for done in pool.imap_unordered(run, jobs):
            runs.append(done)
            sys.stderr.write(f"\r{len(runs)} of {len(jobs)} searches   ")
    sys.stderr.write("\n")
    summaries = {s: summary([r for r in runs if r.strategy == s]) for s in strategies}
    print_tables(paths, summaries)
    own: dict[str, dict[str, tuple[float, float]]] = {}
    if not given.quick:
        largest = max(paths, key=lambda path: len(table(path)[0].truth))
        own = {s: own_time(largest, s) for s in strategies}
        print_own_time(largest, own)
    if given.json:
        for strategy in strategies:
            spent = own.get(strategy, {}).items()
            summaries[strategy]["sampler_ms"] = {look: mine for look, (mine, _) in spent}
            summaries[strategy]["sqlite_ms"] = {look: stored for look, (_, stored) in spent}
        figures = {
            "strategies": summaries,
            "default": EFFECTS,
            "tables": len(paths),
            "seeds": seeds,
        }
        print(json.dumps(figures))


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Returns the figures of one strategy."""
    tables: dict[str, list[Run]] = defaultdict(list)
    for each in runs:
        tables[each.table].append(each)

    def mean(of: Sequence[Run], look: int) -> float:
        return statistics.fmean(r.volumes[look] for r in of)

    return {
        "hv": {str(look): mean(runs, look) for look in _LOOKS},
        "hv_worst_table": {
            str(look): min(mean(of, look) for of in tables.values()) for look in _LOOKS
        },
        "pick_within_2pct": {
            str(look): statistics.fmean(r.picks[look] <= 0.02 for r in runs) for look in _PICKS
        },
        "pick_within_2pct_strict": {
            str(look): statistics.fmean(r.strict_picks[look] <= 0.02 for r in runs)
            for look in _PICKS
        },
        "own_ms": statistics.fmean(r.own_ms for r in runs),
    }


def print_tables(paths: Sequence[Path], summaries: dict[str, dict[str, Any]]) -> None:
    """Prints what the tables hold, and what each strategy reached."""
    print(f"{'table':16}{'points':>8}{'front':>7}{'scatter':>9}  fastest, leanest over the default")
    for path in paths:
        recording, truth = table(path)
        best = front(truth.points.values())
        print(
            f"{path.name.split('.')[0]:16}{len(recording):8}{len(best):7}"
            f"{recording.scatter:9.1%}  "
            f"{math.exp(best[0][0]):.2f}, {math.exp(best[-1][1]):.2f}"
        )
    looks = "".join(f"{f'hv {look}':>8}" for look in _LOOKS)
    worst = "".join(f"{f'w {look}':>8}" for look in _LOOKS)
    picks = "".join(f"{f'pick {look}':>9}" for look in _PICKS)
    picks += "".join(f"{f'strict {look}':>11}" for look in _PICKS)
    print(f"\n{'strategy':18}{looks}{worst}{picks}{'own ms':>8}")
    for name, own in summaries.items():
        row = "".join(f"{own['hv'][str(look)]:8.3f}" for look in _LOOKS)
        row += "".join(f"{own['hv_worst_table'][str(look)]:8.3f}" for look in _LOOKS)
        row += "".join(f"{own['pick_within_2pct'][str(look)]:9.0%}" for look in _PICKS)
        row += "".join(f"{own['pick_within_2pct_strict'][str(look)]:11.0%}" for look in _PICKS)
        print(f"{name:18}{row}{own['own_ms']:8.1f}")
    print("w: the worst table's mean")


def print_own_time(path: Path, own: dict[str, dict[str, tuple[float, float]]]) -> None:
    """Prints what a trial costs beside its measurement, when many were measured."""
    print(f"\nms a trial, its own + SQLite's, {path.name.split('.')[0]}, in the 20 trials before")
    print(f"{'strategy':18}" + "".join(f"{look:>12}" for look in _OWN_TIME))
    for name, times in own.items():
        cells = [
            f"{times[n][0]:.0f} + {times[n][1]:.0f}" if n in times else "-"
            for n in map(str, _OWN_TIME)
        ]
        print(f"{name:18}{''.join(f'{cell:>12}' for cell in cells)}")


if __name__ == "__main__":
    main()
