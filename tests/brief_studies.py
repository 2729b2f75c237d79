"""Real studies whose measurements take a moment, for tests of everything but the times.

    python tests/brief_studies.py study MODEL.onnx ...

Processes, memory and answers are real. A measurement ends after a few turns, all configurations
count as equally fast, a final comparison has two rounds, an open loop takes a tenth of a second,
and the machine's peaks are made up.
:func:`measure_briefly` does this in the process of a test; the program above is ``autotune`` in a
process of its own.
"""

import os
import re
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from autotune.applications import schedule
from autotune.applications import study as application_study
from autotune.applications.confirm import confirm
from autotune.deploy.config import Interval
from autotune.inspection import inspect
from autotune.inspection.headroom import Peaks
from autotune.measure import measurer
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import Effort, Measurement, Outcome
from autotune.process import scratch
from autotune.results import profiling
from autotune.results.final_comparison import Rounds, RoundsPlan

AUTOTUNE = (sys.executable, str(Path(__file__)))
"""The command line of ``autotune`` with measurements that take a moment."""

MOMENT = Effort(time_cap_s=0.02, patience_s=0.05, half_width=1.0)
"""A few turns, however noisy the machine is."""

_ROUNDS = 2
_AS_FAST = Interval(value=1.0, low=1.0, high=1.0)


class Program:
    """The program at work on ``model.onnx`` in `place`, with temporary files of its own.

    What it prints goes to ``printed.txt``.
    """

    def __init__(self, place: Path, *options: str) -> None:
        self._said = place / "said.txt"
        (place / "tmp").mkdir(exist_ok=True)
        command = [*AUTOTUNE, "study", "model.onnx", "--set", "early_stop=no", "--space", "session"]
        with self._said.open("w") as said, (place / "printed.txt").open("w") as printed:
            self.process = subprocess.Popen(
                [*command, *options],
                cwd=place,
                stdout=printed,
                stderr=said,
                env={**os.environ, "TMPDIR": str(place / "tmp"), "ORT_DISABLE_TELEMETRY": "1"},
                preexec_fn=_listen,
            )

    def words(self) -> str:
        """Returns what it said."""
        return self._said.read_text(encoding="utf-8")

    def reported(self) -> int:
        """Returns how many trials it said to have measured."""
        return max((int(done) for done in re.findall(r"(\d+)/\d", self.words())), default=0)

    def wait_for_trials(self) -> None:
        """Waits until it tells of trials, or has ended."""
        while self.process.poll() is None and not self.reported():
            time.sleep(0.02)


def workers_of(folder: Path) -> set[int]:
    """Returns the processes that work for one whose temporary files are below `folder`."""
    pids = set()
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(scratch.MARK)
        except psutil.Error:
            continue
        if mark is not None and Path(mark).is_relative_to(folder):
            pids.add(process.pid)
    return pids


def _listen() -> None:
    # a shell's background jobs start with Ctrl-C ignored, and tests may run in one
    signal.signal(signal.SIGINT, signal.default_int_handler)


def measure_briefly(patch: Callable[[object, str, Any], None] = setattr) -> None:
    """Lets real measurements take a moment."""
    measure_session, begin_rounds = DuetMeasurer.measure_session, Rounds.__init__

    def briefly(
        self: DuetMeasurer, path: Path, config: Any, effort: Effort, *others: Any, **named: Any
    ) -> Outcome:
        moment = replace(MOMENT, fewest_runs=effort.fewest_runs)
        outcome = measure_session(self, path, config, moment, *others, **named)
        if not isinstance(outcome, Measurement):
            return outcome
        # what rests on quiet turns is not measured again
        return replace(
            outcome, ratio=_AS_FAST, latency_ms=self.reference_ms, undisturbed_turns=outcome.turns
        )

    def few(self: Rounds, *arguments: Any, plan: RoundsPlan | None = None, **named: Any) -> None:
        two = replace(plan or RoundsPlan(), fewest=_ROUNDS, enough=_ROUNDS, most=_ROUNDS)
        begin_rounds(self, *arguments, plan=two, **named)

    def peaks(moved_bytes: int) -> Peaks:
        return Peaks(float_per_s=1e11, int8_per_s=4e11, bytes_per_s=1e10, moved_bytes=moved_bytes)

    patch(DuetMeasurer, "measure_session", briefly)
    patch(Rounds, "__init__", few)
    patch(measurer, "_CALIBRATION_SLICES", 3)
    patch(schedule, "_REPLAYED_S", 0.1)
    patch(application_study, "confirm", partial(confirm, rounds=_ROUNDS))
    for module in (inspect, profiling):
        patch(module, "measure_peaks", peaks)


if __name__ == "__main__":
    measure_briefly()
    sys.path[0] = ""  # as python -m has it
    runpy.run_module("autotune", run_name="__main__", alter_sys=True)
