"""One of several drivers of a study, for tests: the whole job with a measurer that computes.

    python tests/shared_worker.py MODEL FOLDER TRIALS MEASURE_S [STORAGE]

Every configuration that is measured is written to FOLDER/measured, a line each, before it is told.
"""

import faulthandler
import hashlib
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from fakes import FakeMeasurer, FakeWorld

from autotune.measure.outcome import SEARCH, Outcome
from autotune.space.configuration import BASELINE, Configuration
from autotune.storage.database import open_storage
from autotune.study.progress import Progress


def cost(configuration: Configuration) -> tuple[float, float]:
    digits = hashlib.sha256(configuration.key.encode()).digest()
    if configuration == BASELINE:
        return 10.0, 100.0
    return 5.0 + digits[0] / 25, 50.0 + digits[1] / 3


def main() -> None:
    """Runs the study and prints how it ended."""
    faulthandler.dump_traceback_later(120)  # where it hangs is then in what the test prints
    model, folder, trials, measure_s, *url = sys.argv[1:]
    notes = Path(folder) / "measured"
    Path(folder).mkdir(exist_ok=True)

    class Slow(FakeMeasurer):
        def measure(self, *arguments: Any, **named: Any) -> Outcome:
            time.sleep(float(measure_s))
            outcome = super().measure(*arguments, **named)
            if arguments[1] == SEARCH:
                with notes.open("a") as file:
                    file.write(f"{arguments[0].key}\n")
            return outcome

    class World(FakeWorld):
        def measurer(self, *_: object) -> FakeMeasurer:
            return Slow(cost)

    def say(progress: Progress) -> None:
        if progress.note:
            sys.stderr.write(f"{progress.note}\n")

    # longer than the cut of the test, and not the minute of a real study
    storage = partial(open_storage, heartbeat_s=1, grace_s=10)
    result = World(cost).tune(
        model,
        trials=int(trials),
        space="session",
        out=folder,
        storage=url[0] if url else os.environ.get("SHARED_STORAGE"),
        early_stop=False,
        on_progress=say,
        seams={"storage": storage},
    )
    sys.stdout.write(f"done {result.trials} {result.picked}\n")


if __name__ == "__main__":
    main()
