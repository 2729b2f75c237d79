"""Runs `autotune study` on a folder of models and checks what it promises of each.

For every model: a study; the selected config loaded in a separate process by a three-line script,
its outputs compared with the untouched model's; `autotune compare`, which must not find it slower
than the default by more than the noise; and a script without any of autotune's measuring, which
runs the config and the default in processes by turns: median run and the kernel's high-water mark.

    python benchmarks/models.py FOLDER|MODEL.onnx [--trials 40] [--json] [OPTIONS OF STUDY]

A file NAME_inputs.npz beside NAME.onnx is given as --data.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import program
from inputs import file_beside, workload_of

from autotune.deploy.cpu import cpu_model, usable_cores
from autotune.deploy.telemetry import switch_off
from autotune.facts.model import describe

_LOAD = """
import sys, numpy, autotune
session = autotune.load(sys.argv[1])
names = [item.name for item in session.get_inputs()]
with numpy.load(sys.argv[2]) as feeds:
    count = len({key.partition(":")[0] for key in feeds.files})
    runs = [{n: feeds[f"{i}:{n}"] for n in names if f"{i}:{n}" in feeds} for i in range(count)]
outputs = [session.run(None, run) for run in runs]
numpy.savez(sys.argv[3], **{f"{i}:{j}": a for i, o in enumerate(outputs) for j, a in enumerate(o)})
"""

_ORIGINAL = _LOAD.replace("import sys, numpy, autotune", "import sys, numpy, onnxruntime").replace(
    "session = autotune.load(sys.argv[1])",
    """
settings = onnxruntime.SessionOptions()
settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
session = onnxruntime.InferenceSession(sys.argv[1], settings, providers=["CPUExecutionProvider"])
""",
)

_MEASURE = """
import re, sys, time, numpy, onnxruntime, autotune
autotune.load

def held(name):
    return int(re.search(name + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024

feed = {k[2:]: a for k, a in numpy.load(sys.argv[2]).items() if k.startswith("0:")}
open("/proc/self/clear_refs", "w").write("5")
before = held("VmRSS")
if sys.argv[1].endswith(".json"):
    session = autotune.load(sys.argv[1])
else:
    session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
times = []
end = time.perf_counter() + float(sys.argv[3])
while time.perf_counter() < end or len(times) < 20:
    began = time.perf_counter()
    session.run(None, feed)
    times.append(time.perf_counter() - began)
print(numpy.median(times), held("VmHWM") - before)
"""
_PROCESSES = 7
"""How often an independent script runs the config and the default."""
_SECONDS = 1.5


def main() -> int:
    """Prints a row for each model; returns 1 if a promise is broken."""
    parser = program.parser_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="8 trials")
    parser.add_argument("--processes", type=int, default=_PROCESSES, help="of the last script")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="of each process")
    given, options = parser.parse_known_args()
    switch_off()  # before the import; the scripts below inherit it
    import onnxruntime

    trials = 8 if given.quick else given.trials
    independent = (given.processes, given.seconds)
    rows = {}
    models = [given.folder] if given.folder.is_file() else sorted(given.folder.glob("*.onnx"))
    print(f"{cpu_model()}, {usable_cores()} cores, ONNX Runtime {onnxruntime.__version__}\n")
    print(
        "| model | speed-up (95 %) | memory | error | what changed "
        "| speed-up by `compare` | by a plain script | its memory | outputs differ |"
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for model in models:
        with tempfile.TemporaryDirectory() as scratch:
            row = check(model, Path(scratch), trials, independent, options)
        rows[model.stem] = row
        print(
            f"| {model.stem} | {row['speedup']:.2f} ({row['low']:.2f} to {row['high']:.2f}) "
            f"| {row['memory']:.2f} | {row['error']:.1g} | {row['words']} "
            f"| {row['again']:.2f} | {1 / row['independent_latency']:.2f} "
            f"| {row['independent_memory']:.2f} | {row['difference']:.1g} |",
            flush=True,
        )
    broken = [name for name, row in rows.items() if row["slower"] or row["wrong"]]
    print(f"broken promises: {', '.join(broken) or 'none'}")
    program.print_json(given, {"broken": len(broken), "models": rows})
    return 1 if broken else 0


def check(
    model: Path,
    scratch: Path,
    trials: int,
    independent: tuple[int, float],
    options: list[str],
) -> dict[str, Any]:
    """Returns what became of one model.

    Args:
        model: The model.
        scratch: Where the study is written.
        trials: Trials of the study.
        independent: The processes of the independent script, and the seconds of each.
        options: Options of the study.
    """
    data = file_beside(model)
    inputs = [] if data is None else ["--data", str(data)]
    study = _autotune(
        "study",
        str(model),
        *inputs,
        *options,
        "--trials",
        str(trials),
        "--out",
        str(scratch / "out"),
        "--json",
    )
    best = next(m for m in study["members"] if m["evidence"]["trial"] == study["picked"])
    evidence = best["evidence"]
    feed = scratch / "feed.npz"
    # the samples on which a study compares answers
    samples = workload_of(model, describe(model)).validation
    arrays: Any = {
        f"{i}:{name}": a for i, sample in enumerate(samples) for name, a in sample.items()
    }
    np.savez(feed, **arrays)
    _python(_LOAD, scratch / "out" / "best.json", feed, scratch / "tuned.npz")
    _python(_ORIGINAL, model, feed, scratch / "original.npz")
    difference = _difference(scratch / "original.npz", scratch / "tuned.npz")
    latency, memory = independently(scratch / "out" / "best.json", model, feed, *independent)
    # the study may have been given a looser limit than the default
    limit = ["--max-error", str(max(0.05, 2 * evidence["error"]))]
    compared = _autotune("compare", str(scratch / "out" / "best.json"), *inputs, "--json", *limit)
    if not compared["configs"]:
        raise SystemExit(f"the config of {model} fails: {compared['failures']}")
    again = compared["configs"][0]["numbers"]["gains"]["latency_ms"]
    return {
        "speedup": evidence["speedup"]["value"],
        "low": evidence["speedup"]["low"],
        "high": evidence["speedup"]["high"],
        "memory": evidence["peak_memory_mib"] / study["members"][0]["evidence"]["peak_memory_mib"],
        "error": evidence["error"],
        "words": best["words"],
        "trials": study["trials"],
        "difference": difference,
        # the stated error is the largest of several processes
        "wrong": difference > max(1.05 * evidence["error"], 1e-5),
        "independent_latency": latency,
        "independent_memory": memory,
        "again": again["value"],
        "slower": again["high"] < 1,
    }


def independently(
    config: Path, model: Path, feed: Path, processes: int, seconds: float
) -> tuple[float, float]:
    """Returns latency and memory of the config over the default's, medians over processes."""
    loaders = {config: dict(os.environ), model: dict(os.environ)}
    medians = in_turns(loaders, feed, processes, seconds)
    (own_s, own_mib), (base_s, base_mib) = medians[config], medians[model]
    return own_s / base_s, own_mib / base_mib


def in_turns(
    environments: Mapping[Path, Mapping[str, str]], feed: Path, processes: int, seconds: float
) -> dict[Path, tuple[float, float]]:
    """Returns the median run in seconds and the peak in MiB of configs and models.

    They are run by turns in plain processes, without autotune's measuring.

    Args:
        environments: The environment variables in which each file is opened.
        feed: The inputs.
        processes: How many processes each file has.
        seconds: How long each process runs.
    """
    samples: dict[Path, list[tuple[float, float]]] = {path: [] for path in environments}
    for _ in range(processes):
        for path, environment in environments.items():
            file = str(path.resolve())
            command = [sys.executable, "-c", _MEASURE, file, str(feed.resolve()), str(seconds)]
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=True,
                env=environment,
                cwd=feed.parent,
            )
            run_s, mib = map(float, done.stdout.split())
            samples[path].append((run_s, mib))
    medians = {path: np.median(own, axis=0) for path, own in samples.items()}
    return {path: (float(run_s), float(mib)) for path, (run_s, mib) in medians.items()}


def _autotune(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [*program.AUTOTUNE, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 3):
        raise SystemExit(f"autotune {' '.join(arguments)} failed:\n{done.stderr}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def _python(script: str, *arguments: Path) -> None:
    subprocess.run([sys.executable, "-c", script, *map(str, arguments)], check=True)


def _difference(original: Path, tuned: Path) -> float:
    """Returns the relative L2 distance: mean over samples, worst output."""
    errors: dict[str, list[float]] = {}
    with np.load(original) as expected, np.load(tuned) as outputs:
        for name in expected.files:
            gap = float(np.linalg.norm(outputs[name] - expected[name]))
            size = max(float(np.linalg.norm(expected[name])), 1e-30)
            errors.setdefault(name.partition(":")[2], []).append(gap / size)
    return max(float(np.mean(each)) for each in errors.values())


if __name__ == "__main__":
    sys.exit(main())
