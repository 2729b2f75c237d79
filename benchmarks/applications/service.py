"""A service with two models in one process, under four clients: tuned together, apart, and not.

    pip install fastapi uvicorn
    python benchmarks/applications/service.py [--requests 400] [--trials 60]

A text encoder and an image classifier, both generated, are served by FastAPI in one process.
"Together" is the study of a recording of both; "apart" puts the studies of two recordings, each
with requests of one kind alone, into one folder. All three ways run in turns, without autotune's
measuring: the clients' own clock times each request.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import tuning

from autotune.applications.command import tuned_environment
from autotune.facts import sample_models

APPLICATION = Path(__file__).parent / "service_application.py"
KINDS = ("text", "image")


def write_models(folder: Path, *, is_small: bool) -> None:
    """Writes the two models."""
    if is_small:
        text, image = sample_models.transformer(), sample_models.cnn(channels=16, blocks=1)
    else:
        text = sample_models.transformer(width=256, heads=4, layers=4)
        image = sample_models.cnn()
    onnx.save(text, folder / "text.onnx")
    onnx.save(image, folder / "image.onnx")


def command(options: argparse.Namespace, *kinds: str) -> list[str]:
    """Returns the command of the service with requests of these kinds."""
    words = [str(APPLICATION), str(options.folder), str(options.requests), ",".join(kinds)]
    return [options.python, *words]


def tune(options: argparse.Namespace, name: str, *kinds: str) -> Path:
    """Records the service with requests of these kinds and tunes it; returns the folder."""
    recording, tuned = options.folder / f"{name}.rec", options.folder / f"{name}.tuned"
    study = ["--trials", str(options.trials), "--space", options.space]
    return tuning.tune(recording, tuned, command(options, *kinds), *study)


def merge(parts: list[Path], folder: Path) -> Path:
    """Returns a tuned application that replaces what either of two replaces."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    sessions = []
    applications = [json.loads((part / "application.json").read_text()) for part in parts]
    for part, application in zip(parts, applications, strict=True):
        for session in application["sessions"]:
            if session["folder"]:
                shutil.copytree(part / session["folder"], folder / session["folder"])
                sessions.append(session)
    merged = {**applications[0], "sessions": sessions, "pool_threads": None}
    (folder / "application.json").write_text(json.dumps(merged))
    return folder


def compare(options: argparse.Namespace, tuned: dict[str, Path]) -> dict[str, dict[str, float]]:
    """Returns the numbers of each way: medians of plain runs in turns."""
    environments = {"today": dict(os.environ)}
    environments |= {name: tuned_environment(folder) for name, folder in tuned.items()}
    run = partial(tuning.said, command(options, *KINDS))
    runs = tuning.in_turns(environments, options.rounds, run)
    rows: dict[str, dict[str, float]] = {}
    for name, own in runs.items():
        pairs = zip(own, runs["today"], strict=True)
        rows[name] = {
            "requests_per_s": statistics.median(said["requests_per_s"] for said in own),
            "throughput_of_today": statistics.median(
                mine["requests_per_s"] / its["requests_per_s"] for mine, its in pairs
            ),
            "peak_mib": statistics.median(said["peak_mib"] for said in own),
        }
        for kind in KINDS:
            pair = [said[0]["answers"][kind] for said in (runs["today"], own)]
            rows[name][f"{kind}_error"] = _error(*pair)
            for share in (50, 95):
                times = [np.percentile(said["ms"][kind], share) for said in own]
                rows[name][f"{kind}_p{share}_ms"] = float(statistics.median(times))
    return rows


def _error(today: list[list[float]], tuned: list[list[float]]) -> float:
    """Returns the relative distance of the answers."""
    first, second = np.array(today), np.array(tuned)
    return float(np.linalg.norm(second - first) / np.linalg.norm(first))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--python", default=sys.executable, help="where FastAPI is installed")
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--space", default="default")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path, default=Path("service"))
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small models, at most 60 requests, 10 trials, 3 rounds",
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.requests = min(60, options.requests)
        options.trials, options.rounds = min(10, options.trials), min(3, options.rounds)
        options.space = "session"
    options.folder.mkdir(parents=True, exist_ok=True)
    write_models(options.folder, is_small=options.quick)
    apart = [tune(options, kind, kind) for kind in KINDS]
    tuned = {
        "apart": merge(apart, options.folder / "apart.tuned"),
        "together": tune(options, "both", *KINDS),
    }
    rows = compare(options, tuned)
    names = list(rows["today"])
    sys.stdout.write(f"{'':10}" + "".join(f"{name:>20}" for name in names) + "\n")
    for way, numbers in rows.items():
        cells = "".join(f"{numbers[name]:20.4g}" for name in names)
        sys.stdout.write(f"{way:10}{cells}\n")
    if options.json:
        sys.stdout.write(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
