"""Recording, studying and running applications: what their benchmarks share."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

AUTOTUNE: tuple[str, ...] = (sys.executable, "-m", "autotune")
"""The command line of the program; its arguments follow."""

Environment = Mapping[str, str]
Said = dict[str, Any]


def tune(recording: Path, tuned: Path, command: Sequence[str], *options: str) -> Path:
    """Records a command where that was not done yet, and studies it; returns the folder `tuned`."""
    if not recording.exists():
        record = [*AUTOTUNE, "record", "-q", "-o", str(recording), "--", *command]
        subprocess.run(record, check=True, stdout=subprocess.DEVNULL)
    study = [*AUTOTUNE, "study", str(recording), "--out", str(tuned), "--set", "wait=yes"]
    subprocess.run([*study, *options], check=True, stdout=subprocess.DEVNULL)
    return tuned


def said(command: Sequence[str], environment: Environment) -> Said:
    """Returns what a run of an application says: the JSON object in its last line."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    document: Said = json.loads(done.stdout.splitlines()[-1])
    return document


def in_turns(
    environments: Mapping[str, Environment],
    rounds: int,
    run: Callable[[Environment], dict[str, Any]],
) -> dict[str, list[dict[str, Any]]]:
    """Returns what runs give by the name of their environment; each comes first equally often."""
    runs: dict[str, list[Said]] = {name: [] for name in environments}
    names = list(environments)
    for turn in range(rounds):
        for place in range(len(names)):
            name = names[(turn + place) % len(names)]
            runs[name].append(run(environments[name]))
    return runs
