"""A long study of a tiny model in which processes misbehave at random, and what it leaves behind.

    python benchmarks/soak.py [--trials 300] [--quick] [--json]

The search and the measurer are those of a study. Before every other trial a random fault strikes
the candidate's process in some phase, or the reference is killed or gets a fault of its own. At the
end everything is closed, and the benchmark counts what is left: processes of the study (frozen ones
among them), entries in the folder for temporary files, open descriptors, threads; and by how much
the memory of the study's process grew between a third of the trials and the last one.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import optuna
import psutil

from autotune.deploy.process_options import ProcessOptions
from autotune.facts import sample_models
from autotune.facts.hardware import hardware
from autotune.facts.model import describe
from autotune.facts.workload import generate
from autotune.measure import measurer
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import (
    Effort,
    Failure,
    Fidelity,
    IsBeaten,
    Outcome,
    never_beaten,
)
from autotune.measure.visit import TimeLimits
from autotune.process import scratch
from autotune.process.marks import MARK_FILE
from autotune.search.objective import DEFAULT, find
from autotune.search.trial import Limits
from autotune.space.candidate import Candidate
from autotune.space.files import find_space
from autotune.space.resolve import resolve
from autotune.storage.database import Place, open_storage, quiet_optuna
from autotune.study.builder import build_search
from autotune.study.progress import Progress

_TINY = Effort(time_cap_s=0.01, patience_s=0.02, half_width=1.0)
_WORKERS = Path(__file__).parent.parent / "tests"
_PHASES = ("open", "first_runs", "answers", "held", "turn")
_FAULTS: list[dict[str, Any]] = [
    {"fault": "segfault"},
    {"fault": "abort"},
    {"fault": "illegal_instruction"},
    {"fault": "killed"},
    {"fault": "hang"},
    {"fault": "garbage", "text": "this is no reply"},
    {"fault": "endless_line"},
    {"fault": "flood"},
    {"fault": "lie", "fields": {"run_ms": -1, "run_ns": [], "load_ms": "fast"}, "without": []},
    {"fault": "grandchild", "crash": True},
    {"fault": "grandchild", "crash": False},
    {"fault": "wild_clock"},
]


class Hazard:
    """The real measurer, with faults on the way."""

    def __init__(self, real: DuetMeasurer, place: Path, seed: int) -> None:
        self._measurer = real
        self._random = random.Random(seed)
        self._grandchild = place / "grandchild"
        self._plan = scratch.root() / "fault.json"
        # after this time a process counts as hanging; on a busy machine it needs a second to start
        self._limit_s = 2.0

    @property
    def reference_ms(self) -> float:
        """As the measurer knows it."""
        return self._measurer.reference_ms

    def measure(
        self, candidate: Candidate, effort: Effort, is_beaten: IsBeaten = never_beaten
    ) -> Outcome:
        """Returns the outcome, of a fault or of the candidate."""
        del effort
        drawn = self._random.random()
        if drawn < 0.5:
            fault = {**self._random.choice(_FAULTS), "do": self._random.choice(_PHASES)}
            self._plan.write_text(
                json.dumps({**fault, "to": str(self._grandchild)}), encoding="utf-8"
            )
            if drawn < 0.05:  # the reference is struck as well, in a turn
                fault = {"do": "turn", "fault": "segfault", "after": 1}
                self._plan.write_text(json.dumps(fault), encoding="utf-8")
                self._measurer.renew()
        elif drawn < 0.55:
            self._reference().kill()
        limits = TimeLimits(load_s=self._limit_s, run_s=self._limit_s)
        self._measurer._limits = limits  # noqa: SLF001
        try:
            return self._measurer.measure(candidate, _TINY, is_beaten)
        finally:
            self._plan.unlink(missing_ok=True)
            if not self._reference().is_running():
                self._measurer.renew()

    def rescale(self, reference_ms: float) -> None:
        """Hands it on."""
        self._measurer.rescale(reference_ms)

    def answers_of(self, config: Path) -> Fidelity | Failure:
        """As the measurer does."""
        return self._measurer.answers_of(config)

    def measure_with(self, candidate: Candidate, effort: Effort, _: ProcessOptions) -> Outcome:
        """Returns the same as without options of a process, which no search has."""
        return self.measure(candidate, effort)

    def canonical(self, candidate: Candidate) -> Candidate:
        """As the measurer does."""
        return self._measurer.canonical(candidate)

    def renew(self) -> None:
        """As the measurer does."""
        self._measurer.renew()

    def close(self) -> None:
        """As the measurer does."""
        self._measurer.close()

    def _reference(self) -> psutil.Process:
        reference = self._measurer._reference  # noqa: SLF001
        assert reference is not None
        return psutil.Process(reference.pid)


def soak(place: Path, trials: int, seed: int) -> dict[str, Any]:
    """Returns the outcomes of a study of so many trials in `place`, and counts of what is left."""
    measurer._WORKER = "faulty_worker"  # noqa: SLF001
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_WORKERS), *sys.path])
    temporary = place / "tmp"
    temporary.mkdir()
    tempfile.tempdir = str(temporary)
    sample_models.write("lstm", place / "model.onnx")
    model = describe(place / "model.onnx")
    workload = generate(model, {})
    objectives = find(DEFAULT)
    resolved = resolve(find_space("default"), model, workload, hardware())
    sizes_mib: list[float] = []

    def note(_: Progress) -> None:
        sizes_mib.append(psutil.Process().memory_info().rss / 2**20)

    where = Place.of(None, place)
    with quiet_optuna(), open_storage(where) as database:
        study = optuna.create_study(storage=database, directions=["minimize"] * len(objectives))
        before = _held()
        hazard = Hazard(DuetMeasurer(model, workload, max_error=0.05), place, seed)
        search = build_search(
            hazard,
            resolved,
            study=study,
            objectives=objectives,
            limits=Limits(max_error=0.05, max_memory_mib=None, max_latency_ms=None),
            seed=seed,
            report=note,
            early_stop=False,
        )
        try:
            search.run(trials, None)
        finally:
            hazard.close()
        after = _held()
    kinds = Counter(
        trial.outcome.kind if isinstance(trial.outcome, Failure) else "measured"
        for trial in search.trials
    )
    third = len(sizes_mib) // 3
    return {
        "trials": len(search.trials),
        "outcomes": dict(kinds),
        "processes": after["processes"],
        "files": len(set(temporary.rglob("*")) - {scratch.root(), scratch.root() / MARK_FILE}) - 1,
        "descriptors": after["descriptors"] - before["descriptors"],
        "threads": after["threads"] - before["threads"],
        "rss_third_mib": sizes_mib[third],
        "rss_end_mib": sizes_mib[-1],
        "growth_mib": sizes_mib[-1] - sizes_mib[third],
    }


def _held() -> dict[str, int]:
    marked = 0
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(scratch.MARK)
        except psutil.Error:
            continue
        marked += mark is not None and Path(mark).is_relative_to(scratch.root())
    children = psutil.Process().children(recursive=True)
    return {
        "processes": max(marked, len(children)),
        "descriptors": psutil.Process().num_fds() if os.name == "posix" else 0,
        "threads": threading.active_count(),
    }


def main() -> int:
    """Prints the counts; returns 1 if anything is left."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="24 trials")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        figures = soak(Path(place), 24 if given.quick else given.trials, given.seed)
    for name, value in figures.items():
        print(f"{name:15} {value}")
    if given.json:
        print(json.dumps(figures))
    return any(figures[name] for name in ("processes", "files", "descriptors", "threads"))


if __name__ == "__main__":
    sys.exit(main())
