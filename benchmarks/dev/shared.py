"""How many trials a fleet measures in a second, and what sharing a study through PostgreSQL costs.

    python benchmarks/dev/shared.py [--json] [--quick] [--table TABLE.jsonl.gz] [--storage URL]

1, 2 and 4 workers search the largest recorded table together, each a process of its own with the
replaying measurer: first with one that answers at once, so that nothing but the search and the
storage is left, then with one that takes 0.5 s, as a trial does. A server is started on loopback
from the system's programs, with fsync, where no `--storage` names one.

    trials/s    measured by all of them in a second
    storage     of a worker's time for a trial, what it spent in Optuna's storage
    search      of the same time, what it spent choosing the next configuration
    twice       configurations that were measured by two workers
"""

import argparse
import contextlib
import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import optuna
from recording import Recording, read
from replay import ReplayMeasurer
from search import EFFECTS, search_of_table
from stopwatch import Stopwatch, optuna_methods, timed

from autotune.measure.outcome import Effort, IsDominated, Outcome, never_dominated
from autotune.search.objective import DEFAULT, find
from autotune.space.configuration import Configuration
from autotune.storage.database import Place, open_storage, quiet_optuna

_TABLES = Path(__file__).parent / "tables"
_OBJECTIVES = find(DEFAULT)
_WORKERS = "1,2,4"
_TRIALS, _QUICK_TRIALS = 200, 60
_A_TRIAL_S = 0.5


class TakingTime(ReplayMeasurer):
    """A replaying measurer that takes its time.

    Attributes:
        ended_s: When the last measurement ended, on the system's monotonic clock.
    """

    def __init__(self, recording: Recording, seed: int, measure_s: float) -> None:
        super().__init__(recording, seed)
        self.ended_s = 0.0
        self._measure_s = measure_s

    def measure(
        self,
        configuration: Configuration,
        effort: Effort,
        is_dominated: IsDominated = never_dominated,
    ) -> Outcome:
        """Sleeps, and answers."""
        time.sleep(self._measure_s)
        outcome = super().measure(configuration, effort, is_dominated)
        self.ended_s = time.monotonic()
        return outcome


@dataclass(frozen=True)
class Report:
    """What a worker has done, as it reports at the end."""

    measured: list[str]
    began_s: float
    ended_s: float
    spent_s: dict[str, float]


@dataclass(frozen=True)
class Task:
    """What a worker does."""

    url: str
    name: str
    driver: str
    table: Path
    trials: int
    measure_s: float


def work(task: Task, start: Barrier, answers: "Queue[Report]") -> None:
    """Searches with the others."""
    recording = read(task.table)
    measurer = TakingTime(recording, 0, task.measure_s)
    watch = Stopwatch()
    place = Place.of(task.url, Path())
    with quiet_optuna(), timed(watch, optuna_methods()), open_storage(place) as database:
        study = optuna.load_study(study_name=task.name, storage=database)
        loop = search_of_table(study, recording, measurer, EFFECTS, 0, task.trials, task.driver)
        start.wait()
        watch.spent_s.clear()
        began_s = time.monotonic()
        loop.run(task.trials, None)
    keys = [c.key for c, count in measurer.measured.items() for _ in range(count)]
    spent_s = {part: watch.spent_s[part] for part in ("storage", "search")}
    answers.put(Report(keys, began_s, measurer.ended_s, spent_s))


def fleet(url: str, table: Path, workers: int, trials: int, measure_s: float) -> dict[str, float]:
    """Returns the figures of so many workers."""
    name = f"{workers} workers, {measure_s} s"
    with quiet_optuna(), open_storage(Place.of(url, Path())) as database:
        optuna.create_study(
            study_name=name, storage=database, directions=["minimize"] * len(_OBJECTIVES)
        )
    context = multiprocessing.get_context("spawn")
    start, answers = context.Barrier(workers), context.Queue()
    tasks = [Task(url, name, f"driver{i}", table, trials, measure_s) for i in range(workers)]
    processes = [context.Process(target=work, args=(task, start, answers)) for task in tasks]
    for process in processes:
        process.start()
    reports = [answers.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
    wall_s = max(report.ended_s for report in reports) - min(report.began_s for report in reports)
    measured = [key for report in reports for key in report.measured]
    own_s = wall_s * workers
    return {
        "trials_per_s": len(measured) / wall_s,
        "trial_ms": 1e3 * own_s / len(measured),
        "storage_ms": 1e3 * sum(report.spent_s["storage"] for report in reports) / len(measured),
        "search_ms": 1e3 * sum(report.spent_s["search"] for report in reports) / len(measured),
        "twice": len(measured) - len(set(measured)),
    }


@contextlib.contextmanager
def server(url: str | None) -> Iterator[str]:
    """Gives the URL of the storage: the one that was named, or that of a server of our own."""
    if url is not None:
        yield url
        return
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    import postgresql  # lies in tests

    if postgresql.find_programs() is None:
        sys.exit("no PostgreSQL here: apt-get install postgresql, or name one with --storage URL")
    with postgresql.server(durable=True) as server:
        yield server.url("shared")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_TRIALS} trials")
    parser.add_argument("--trials", type=int, default=_TRIALS)
    parser.add_argument("--trial-s", type=float, default=_A_TRIAL_S, help="time of a measurement")
    parser.add_argument("--workers", default=_WORKERS, help="how many, for each fleet")
    parser.add_argument("--table", type=Path, help="the largest by default")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--storage", help="URL of an empty database")
    given = parser.parse_args()
    trials = _QUICK_TRIALS if given.quick else given.trials
    tables = _TABLES.glob("*.jsonl.gz")
    table = given.table or max(tables, key=lambda path: len(read(path)))
    print(f"{table.name.split('.')[0]}: {trials} trials")
    print(f"{'workers':8}{'a trial':>9}{'trials/s':>10}{'storage':>17}{'search':>17}{'twice':>7}")
    rows: dict[str, Any] = {}
    with server(given.storage) as url:
        for measure_s in dict.fromkeys((0.0, given.trial_s)):
            for workers in map(int, given.workers.split(",")):
                figures = fleet(url, table, workers, trials, measure_s)
                print(row(workers, measure_s, figures))
                rows.setdefault(f"{measure_s:g} s", {})[str(workers)] = figures
    if given.json:
        print(json.dumps({"table": table.name, "trials": trials, "workers": rows}))


def row(workers: int, measure_s: float, figures: dict[str, float]) -> str:
    """Returns a line of the table."""

    def part(name: str) -> str:
        return f"{figures[name]:7.1f} ms {figures[name] / figures['trial_ms']:6.1%}"

    return (
        f"{workers:<8}{measure_s:7.1f} s{figures['trials_per_s']:10.2f}"
        f"{part('storage_ms'):>17}{part('search_ms'):>17}{figures['twice']:7.0f}"
    )


if __name__ == "__main__":
    main()
