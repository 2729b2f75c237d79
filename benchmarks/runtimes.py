"""What other builds of ONNX Runtime bring beside the installed one, and OpenVINO's own runtime.

    python benchmarks/runtimes.py [MODEL.onnx ...] [--runtimes onnxruntime-openvino] [--trials 100]
            [--minutes 50] [--max-error 0.1] [--native PYTHON] [--quick] [--json]

For every model: a study of the installed ONNX Runtime alone, and one of the runtimes as well
(`autotune runtimes add` them first). Then the default, both winners and, with --native, OpenVINO's
own runtime are timed by turns, each in a process of its own, while the others are suspended.
PYTHON is an interpreter with the packages openvino and numpy; with nncf and onnx it is timed in
int8 as well. Ratios are to the default; below 1 is faster. Without a MODEL, those of
../shared/models; NAME_inputs.npz beside NAME.onnx is its input. --minutes shares a time out among
the studies: a search that has its share ends, and the row says after how many trials.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from inputs import file_beside, workload_of

from autotune.deploy.config import TunedConfig
from autotune.deploy.telemetry import switch_off
from autotune.facts.model import describe
from autotune.runtimes.environments import site_of
from autotune.study.progress import Progress
from autotune.study.tune import tune

_MODELS = Path(__file__).parent.parent.parent / "shared" / "models"
_TRIALS = 100
_QUICK_TRIALS = 20
# Of a study's time; the rest is for its final comparison, and for the times by turns.
_SEARCH_SHARE = 0.6
_ROUNDS = 30
_BURST_S = 0.15
_LOOP = """
import sys, time
import numpy
run, feeds = make()
numpy.savez(sys.argv[3], **{f"o{i}": numpy.asarray(o) for i, o in enumerate(run(feeds[0]))})
for _ in range(5):
    run(feeds[0])
print("ready", flush=True)
for line in sys.stdin:
    times, end, n = [], time.perf_counter() + float(line), 0
    run(feeds[0])
    while time.perf_counter() < end or len(times) < 3:
        began = time.perf_counter()
        run(feeds[n % len(feeds)])
        times.append(time.perf_counter() - began)
        n += 1
    print(sorted(times)[len(times) // 2] * 1e3, flush=True)
"""
_FEEDS = """
import sys, numpy
def feeds_in(path):
    with numpy.load(path) as data:
        names = sorted({name.split("|")[0] for name in data.files}, key=int)
        return [{n.split("|", 1)[1]: data[n] for n in data.files if n.split("|")[0] == number}
                for number in names]
"""
_ONNXRUNTIME = (
    _FEEDS
    + """
def make():
    import autotune, onnxruntime
    path, options = sys.argv[1], onnxruntime.SessionOptions()
    if path.endswith(".json"):
        session = autotune.load(path, strict=True)
    else:
        if sys.argv[4] == "exact":
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return (lambda feed: session.run(None, feed)), feeds_in(sys.argv[2])
"""
    + _LOOP
)
_OPENVINO = (
    _FEEDS
    + """
def make():
    import openvino
    feeds, form = feeds_in(sys.argv[2]), sys.argv[4]
    core = openvino.Core()
    if form == "int8":
        import nncf, onnx
        quantised = nncf.quantize(onnx.load(sys.argv[1]), nncf.Dataset(feeds),
                                  subset_size=min(len(feeds), 128))
        path = sys.argv[3] + ".onnx"
        onnx.save(quantised, path)
        model = core.read_model(path)
    else:
        model = core.read_model(sys.argv[1])
    model.reshape({name: list(array.shape) for name, array in feeds[0].items()})
    hint = {"f32": "f32"}.get(form, "bf16")
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": hint,
                                                 "PERFORMANCE_HINT": "LATENCY"})
    request = compiled.create_infer_request()
    def run(feed):
        request.infer(feed)
        return [output.data for output in request.output_tensors]
    return run, feeds
"""
    + _LOOP
)


class Loop:
    """A process that runs one model in one way, for a moment when it is asked."""

    def __init__(self, python: str, script: str, site: Path | None, *arguments: object) -> None:
        paths = [str(site)] if site else []
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._process = subprocess.Popen(
            [python, "-c", script, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._handle = psutil.Process(self._process.pid)
        while (line := self._line()) != "ready":
            if not line:
                self.close()
                raise RuntimeError("it ended before it was ready")
        self._handle.suspend()

    def burst_ms(self) -> float:
        """Returns the median time of a run."""
        assert self._process.stdin is not None
        self._handle.resume()
        self._process.stdin.write(f"{_BURST_S}\n")
        self._process.stdin.flush()
        ms = float(self._line())
        self._handle.suspend()
        return ms

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def main() -> None:
    """Prints a row for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="*", metavar="MODEL.onnx")
    parser.add_argument("--runtimes", default="onnxruntime-openvino")
    parser.add_argument("--trials", type=int, default=_TRIALS)
    parser.add_argument("--minutes", type=float, help="how long all models may take, about")
    parser.add_argument("--max-error", type=float, default=0.1)
    parser.add_argument("--native", help="interpreter with the packages openvino and numpy")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_TRIALS} trials")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    switch_off()
    rows = {}
    models = given.models or sorted(_MODELS.glob("*.onnx"))
    wishes: dict[str, Any] = {
        "trials": _QUICK_TRIALS if given.quick else given.trials,
        "max_error": given.max_error,
    }
    if given.minutes:
        wishes["timeout_s"] = _SEARCH_SHARE * 60 * given.minutes / (2 * len(models))
    for model in models:
        with tempfile.TemporaryDirectory() as scratch:
            row = check(model, Path(scratch), given.runtimes, given.native, wishes)
        rows[model.stem] = row
        print(sentence(model.stem, row), flush=True)
    if given.json:
        print(json.dumps({"models": rows}))


def check(
    model: Path, folder: Path, runtimes: str, native: str | None, wishes: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns what two studies find for one model, and the times of their winners.

    Args:
        wishes: Options of both studies, by name.
    """
    row: dict[str, Any] = dict(wishes)
    configs = {}
    for name, texts in (("own", ()), ("several", (runtimes,))):
        began_s = time.monotonic()
        result = tune(
            model,
            **wishes,
            runtimes=texts,
            data=file_beside(model),
            wait=True,
            out=folder / name,
            on_progress=lambda progress, name=name: _report(model, name, progress),  # type: ignore[misc]
        )
        row[name] = {
            "wall_s": time.monotonic() - began_s,
            "trials": result.trials,
            "words": result.best.words,
            "speedup": result.best.evidence.speedup.value,
            "error": result.best.evidence.error,
            "peak_memory_mib": result.best.evidence.peak_memory_mib,
            "failed": dict(result.failed),
        }
        configs[name] = folder / name / "best.json"
    sys.stderr.write("\n")
    row["timed"] = timed(model, folder, configs, native)
    return row


def _report(model: Path, name: str, progress: Progress) -> None:
    sys.stderr.write(f"\r{model.stem}, {name}: {progress.stage} {progress.done}      ")


def timed(
    model: Path, folder: Path, configs: Mapping[str, Path], native: str | None
) -> dict[str, Any]:
    """Returns ratio to the default and error of each way to run a model; or why it does not run."""
    feeds = folder / "feeds.npz"
    samples = workload_of(model, describe(model)).timing
    arrays: Any = {f"{i}|{n}": a for i, feed in enumerate(samples) for n, a in feed.items()}
    np.savez(feeds, **arrays)
    ways: list[tuple[str, str, str, Path | None, Path, str]] = [
        ("default", sys.executable, _ONNXRUNTIME, None, model, ""),
        ("exact", sys.executable, _ONNXRUNTIME, None, model, "exact"),
    ]
    for name, config in configs.items():
        needed = TunedConfig.read(config).requires.runtime
        site = None if needed is None else site_of(str(needed))
        ways.append((name, sys.executable, _ONNXRUNTIME, site, config, ""))
    if native:
        ways += [
            (f"native {f}", native, _OPENVINO, None, model, f) for f in ("f32", "bf16", "int8")
        ]
    loops: dict[str, Loop] = {}
    found: dict[str, Any] = {}
    for name, python, script, site, path, form in ways:
        outputs = folder / f"{name}.npz"
        try:
            loops[name] = Loop(python, script, site, path.resolve(), feeds, outputs, form)
        except RuntimeError as error:
            found[name] = {"failure": str(error)}
    try:
        times = {name: [] for name in loops}  # type: dict[str, list[float]]
        for _ in range(_ROUNDS):
            for name, loop in loops.items():
                times[name].append(loop.burst_ms())
    finally:
        for loop in loops.values():
            loop.close()
    for name in loops:
        # by rounds: what disturbs the machine disturbs both
        ratios = np.asarray(times[name]) / np.asarray(times["default"])
        found[name] = {
            "ratio": float(np.median(ratios)),
            "ms": float(np.median(times[name])),
            "error": _error(folder / f"{name}.npz", folder / "exact.npz"),
        }
    return found


def _error(outputs: Path, exact: Path) -> float:
    """Returns the largest relative L2 error of an output on the first sample."""
    with np.load(outputs) as own, np.load(exact) as right:
        errors = []
        for name in right.files:
            a, b = own[name].astype(np.float64), right[name].astype(np.float64)
            errors.append(float(np.linalg.norm(a - b) / (np.linalg.norm(b) or 1.0)))
    return max(errors)


def nearness(row: Mapping[str, Any]) -> Iterator[str]:
    """Yields how near the winner is to native OpenVINO's best within the error limit."""
    times = row["timed"]
    natives = [
        it["ratio"]
        for way, it in times.items()
        if way.startswith("native") and it.get("error", math.inf) <= row["max_error"]
    ]
    if natives and "ratio" in times["several"]:
        yield f"{times['several']['ratio'] / min(natives):.2f} of native's best"


def sentence(name: str, row: Mapping[str, Any]) -> str:
    """Returns a row of numbers in words."""
    times = row["timed"]

    def words(way: str) -> str:
        it = times[way]
        return it["failure"] if "failure" in it else f"{it['ratio']:.2f} (error {it['error']:.1g})"

    natives: Sequence[str] = [way for way in times if way.startswith("native")]
    walls = [f"{row[n]['wall_s']:.0f} s for {row[n]['trials']} trials" for n in ("several", "own")]
    parts = [
        f"own {words('own')}",
        f"several {words('several')}: {row['several']['words']}",
        *(f"{way} {words(way)}" for way in natives),
        f"wall {' against '.join(walls)}",
        *nearness(row),
    ]
    return f"{name}: {'; '.join(parts)}"


if __name__ == "__main__":
    main()
