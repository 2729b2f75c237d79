"""What it costs a session of about 50 microseconds a run to be recorded, and to run tuned.

    python benchmarks/applications/hook.py [--runs 100000] [--rounds 9]

The application runs by turns as it is, under `autotune record`, and under `autotune run`. The tuned
application opens the same model with the same options, so that what differs is the hook. Opening
the session, which imports the loader where it is tuned, is timed apart.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import onnx
import tuning

from autotune.applications.recording import Recording
from autotune.applications.writing import Replacement, write_application
from autotune.deploy.config import TunedConfig
from autotune.deploy.session import SessionConfig
from autotune.facts import sample_models

SIZE, PARTS = 32, 10
APPLICATION = """
import sys, time
import numpy, onnxruntime
settings = onnxruntime.SessionOptions()
settings.intra_op_num_threads = 1
began = time.perf_counter()
session = onnxruntime.InferenceSession(sys.argv[1], settings)
print(1e3 * (time.perf_counter() - began))
size, parts, runs = map(int, sys.argv[2:])
feed = {"image": numpy.ones([1, 3, size, size], numpy.float32)}
for _ in range(parts):
    began = time.perf_counter()
    for _ in range(runs):
        session.run(None, feed)
    print(1e6 * (time.perf_counter() - began) / runs)
"""


def write_tuned(folder: Path, model: Path, recording: Path) -> Path:
    """Writes a tuned application that opens the recorded session as it is; returns its folder."""
    study = [*tuning.AUTOTUNE, "study", str(model), "--out", str(folder / "study"), "--quiet"]
    study += ["--set", "wait=yes", "--space", "session", "--trials", "1"]
    subprocess.run(study, check=True, stdout=subprocess.DEVNULL)
    config = TunedConfig.read(folder / "study" / "best.json")
    same = replace(config, session=SessionConfig(options={"intra_op_num_threads": 1}))
    (session,) = Recording.read(recording).sessions
    replacement = Replacement(session=session, config=same, source=folder / "study")
    write_application(folder / "hook.tuned", [replacement])
    return folder / "hook.tuned"


def run(before: list[str], model: Path, runs: int) -> tuple[float, float]:
    """Returns the ms that opening took, and the microseconds of a run: the median of ten parts."""
    numbers = [str(number) for number in (SIZE, PARTS, runs // PARTS)]
    command = [sys.executable, "-c", APPLICATION, str(model), *numbers]
    done = subprocess.run([*before, *command], stdout=subprocess.PIPE, text=True, check=True)
    opening_ms, *parts_us = map(float, done.stdout.split())
    return opening_ms, statistics.median(parts_us)


def compare(folder: Path, runs: int, rounds: int) -> dict[str, dict[str, float]]:
    """Returns the medians of each way, and of its overhead beside the plain run of its round."""
    model = folder / "hook.onnx"
    onnx.save(sample_models.cnn(channels=16, size=SIZE, blocks=3), model)
    record = [*tuning.AUTOTUNE, "record", "--quiet", "-o"]
    run([*record, str(folder / "first.rec"), "--"], model, PARTS)
    tuned = str(write_tuned(folder, model, folder / "first.rec"))
    said: dict[str, list[tuple[float, float]]] = {"plain": [], "record": [], "run": []}
    for turn in range(rounds):
        ways = {
            "plain": [],
            "record": [*record, str(folder / f"{turn}.rec"), "--"],
            "run": [*tuning.AUTOTUNE, "run", tuned, "--verbose", "--"],
        }
        for way in sorted(ways, reverse=turn % 2 == 1):
            said[way].append(run(ways[way], model, runs))
    return {
        way: {
            "us": statistics.median(us for _, us in own),
            "overhead": statistics.median(
                us / plain - 1 for (_, us), (_, plain) in zip(own, said["plain"], strict=True)
            ),
            "opening_ms": statistics.median(ms for ms, _ in own),
        }
        for way, own in said.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--runs", type=int, default=100_000, help="of a process")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="at most 10,000 runs, 3 rounds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.runs, options.rounds = min(10_000, options.runs), min(3, options.rounds)
    with tempfile.TemporaryDirectory() as temporary:
        rows = compare(Path(temporary), options.runs, options.rounds)
    for way, row in rows.items():
        print(
            f"{way:8} {row['us']:7.2f} us a run, {row['overhead']:+7.2%}; "
            f"opening {row['opening_ms']:.1f} ms"
        )
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
