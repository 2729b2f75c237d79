"""A study of a tiny model in which processes misbehave at random leaves nothing behind.

    AUTOTUNE_STRESS=10 pytest tests/stress/test_soak.py    # 300 trials

The search and the measurer are those of a study. Before every other trial a random fault strikes
the configuration's process in some phase, or the reference is killed or gets a fault of its own. At
the end everything is closed, and the test counts what is left: processes of the study (frozen ones
among them), entries in the folder for temporary files, open descriptors, threads; and by how much
the memory of the study's process grew between a third of the trials and the last one.

The study runs in a process of its own, whose memory and descriptors are those of the study alone.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any, cast

import optuna
import psutil
import pytest
from brief_studies import workers_of
from fakes import build_search
from share import SHARE

from autotune.facts import sample_models
from autotune.facts.generated import generate
from autotune.facts.hardware import hardware
from autotune.facts.model import describe
from autotune.measure import measurer
from autotune.measure.configuration_run import TimeLimits
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import (
    Effort,
    Failure,
    IsDominated,
    Measurer,
    Outcome,
    never_dominated,
)
from autotune.process import scratch
from autotune.process.scratch import MARK_FILE
from autotune.search.objective import DEFAULT, find
from autotune.search.trial import Limits
from autotune.space.configuration import Configuration
from autotune.space.files import find_space
from autotune.space.resolve import resolve
from autotune.storage.database import Place, open_storage, quiet_optuna
from autotune.study.progress import Progress

_TINY = Effort(time_cap_s=0.01, patience_s=0.02, half_width=1.0)
_WORKERS = Path(__file__).parent.parent
_TRIALS = round(30 * SHARE)
_PHASES = ("open", "first_runs", "answers", "held", "slice")
_FAULTS: list[dict[str, Any]] = [
    {"fault": "segfault"},
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

    def __getattr__(self, name: str) -> Any:
        """All else is the measurer's."""
        return getattr(self._measurer, name)

    def measure(
        self,
        configuration: Configuration,
        effort: Effort,
        is_dominated: IsDominated = never_dominated,
    ) -> Outcome:
        del effort
        drawn = self._random.random()
        if drawn < 0.5:
            # a process reads the plan when it starts: one that waits already would never fail
            self._measurer._next_worker().stop()
            fault = {**self._random.choice(_FAULTS), "do": self._random.choice(_PHASES)}
            self._plan.write_text(
                json.dumps({**fault, "to": str(self._grandchild)}), encoding="utf-8"
            )
            if drawn < 0.05:  # the reference is struck as well, in a time slice
                fault = {"do": "slice", "fault": "segfault", "after": 1}
                self._plan.write_text(json.dumps(fault), encoding="utf-8")
                self._measurer.renew()
        elif drawn < 0.55:
            self._reference().kill()
        limits = TimeLimits(load_s=self._limit_s, run_s=self._limit_s)
        self._measurer._limits = limits
        try:
            return self._measurer.measure(configuration, _TINY, is_dominated)
        finally:
            self._plan.unlink(missing_ok=True)
            if not self._reference().is_running():
                self._measurer.renew()

    def _reference(self) -> psutil.Process:
        reference = self._measurer._reference
        assert reference is not None
        return psutil.Process(reference.pid)


def soak(place: Path, trials: int, seed: int) -> dict[str, Any]:
    """Returns the outcomes of a study of so many trials in `place`, and counts of what is left."""
    measurer._WORKER = "faulty_worker"
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
            cast("Measurer", hazard),
            resolved,
            study=study,
            limits=Limits(max_error=0.05),
            seed=seed,
            report=note,
            early_stop=False,
        )
        try:
            search.run(trials, None)
        finally:
            hazard.close()
        after = _held()
    # a crashed child may leave one in a session of its own, which the sweep at the next start ends
    scratch.end_processes(scratch.root())
    kinds = Counter(
        trial.outcome.kind if isinstance(trial.outcome, Failure) else "measured"
        for trial in search.trials
    )
    third = len(sizes_mib) // 3
    return {
        "trials": len(search.trials),
        "outcomes": dict(kinds),
        "processes": after["processes"],
        "unswept": len(workers_of(scratch.root())),
        "files": len(set(temporary.rglob("*")) - {scratch.root(), scratch.root() / MARK_FILE}) - 1,
        "descriptors": after["descriptors"] - before["descriptors"],
        "threads": after["threads"] - before["threads"],
        "growth_mib": sizes_mib[-1] - sizes_mib[third],
    }


def _held() -> dict[str, int]:
    children = psutil.Process().children(recursive=True)
    return {
        "processes": len(children),
        "descriptors": psutil.Process().num_fds() if os.name == "posix" else 0,
        "threads": threading.active_count(),
    }


@pytest.mark.stress
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
def test_a_study_full_of_faults_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, __file__, str(tmp_path), str(_TRIALS)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, timeout=1200, check=True
    )
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["trials"] == sum(figures["outcomes"].values()) == _TRIALS
    assert {"measured", "crashed", "timeout", "killed", "protocol"} <= figures["outcomes"].keys()
    names = ("processes", "unswept", "files", "descriptors", "threads")
    left = {name: figures[name] for name in names}
    assert left == dict.fromkeys(left, 0)
    # what libraries load on their first use lies within it, a leak in each trial does not
    assert figures["growth_mib"] < 15


if __name__ == "__main__":
    print(json.dumps(soak(Path(sys.argv[1]), int(sys.argv[2]), seed=0)))  # noqa: T201
