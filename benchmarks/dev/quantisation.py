"""Errors of quantised models: how far their answers are from the unoptimised model's.

    python benchmarks/dev/quantisation.py MODEL.onnx ... [--before CHECKOUT]

Each row is one set of graph parameters; with ``--before`` the code of another checkout quantises
the same models for the same inputs, and both errors are printed. An error is the largest relative
L2 distance of an output over half of the samples, the other half of which calibrate.
No time is measured, so it may run beside anything.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from common import workload_of

from autotune.deploy import cpu
from autotune.deploy.options import Value
from autotune.facts.model import describe
from autotune.graph.prepare import PreparationError, Preparer

# Half of them calibrate, and answers are compared on the others.
_SAMPLES = 64
_STATIC: Mapping[str, Value] = {"precision": "int8_static", "per_channel": True}
_PRODUCTS: Mapping[str, Value] = {**_STATIC, "quantized_operators": "products"}
_DYNAMIC: Mapping[str, Value] = {"precision": "int8_dynamic", "per_channel": True}
_INT4: Mapping[str, Value] = {"precision": "int4_weight_only"}
_CALIBRATIONS = ("minmax", "percentile")
ROWS: Mapping[str, Mapping[str, Value]] = {
    **{f"static products, {name}": {**_PRODUCTS, "calibration": name} for name in _CALIBRATIONS},
    "static products, 2 nodes in float": {**_PRODUCTS, "kept_in_float": 2},
    **{f"static, all, {name}": {**_STATIC, "calibration": name} for name in _CALIBRATIONS},
    "dynamic": _DYNAMIC,
    "dynamic, 2 nodes in float": {**_DYNAMIC, "kept_in_float": 2},
    "int8 weights": {"precision": "int8_weight_only"},
    "int4 weights": _INT4,
    "int4 weights, 4 nodes in float": {**_INT4, "kept_in_float": 4},
}
"""The graph parameters of each row, by its words."""


def main() -> None:
    """Prints a table for each model."""
    parser = argparse.ArgumentParser(description="Errors of quantised models.")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--before", type=Path, help="another checkout, for a second column")
    parser.add_argument("--json", action="store_true", help="errors as one JSON object")
    arguments = parser.parse_args()
    if arguments.json:
        print(json.dumps({path.stem: dict(errors(path)) for path in arguments.models}))
        return
    print(f"{cpu.cpu_model()}, {', '.join(sorted(cpu.cpu_features()))}")
    print(f"ONNX Runtime {onnxruntime.__version__}; error: relative L2, the worst output\n")
    for path in arguments.models:
        before = None if arguments.before is None else _errors_of(arguments.before, path)
        print(f"{path.stem:40} {'before' if before else '':>10} {'error':>10}")
        for row, error in errors(path):
            columns = [before[row]] if before else [""]
            print(f"  {row:38} {_shown(columns[0]):>10} {_shown(error):>10}", flush=True)
        print(flush=True)


def _errors_of(checkout: Path, model: Path) -> dict[str, Any]:
    """Returns the errors that the code of another checkout makes."""
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    command = [sys.executable, __file__, "--json", str(model.resolve())]
    printed = subprocess.run(
        command, env=environment, cwd=checkout, check=True, capture_output=True, text=True
    ).stdout
    found: dict[str, dict[str, Any]] = json.loads(printed)
    return found[model.stem]


def errors(path: Path) -> Iterator[tuple[str, float | str]]:
    """Yields each row's words with the error of its file, or why there is no file."""
    model = describe(path)
    workload = workload_of(path, model)
    # few enough that every version of autotune calibrates on the same ones
    step = max(1, len(workload.feeds) // _SAMPLES)
    workload = replace(workload, feeds=workload.feeds[::step][:_SAMPLES])
    compared = workload.feeds[::2]
    exact = _answers(path, compared, is_exact=True)
    with tempfile.TemporaryDirectory() as cache:
        preparer = Preparer(model, Path(cache), workload=workload, signature=workload.signature())
        with preparer.child.kept():
            for row, half in ROWS.items():
                try:
                    prepared = preparer.prepare(half)
                except PreparationError as error:
                    yield row, error.message
                    continue
                yield row, _error(exact, _answers(prepared.path, compared))


def _answers(
    path: Path, samples: Any, *, is_exact: bool = False
) -> list[np.ndarray[Any, np.dtype[Any]]]:
    """Returns each output of a model over all samples, flat."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    if is_exact:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    runs = [session.run(None, dict(feed)) for feed in samples]
    return [np.concatenate([np.ravel(array) for array in run]) for run in zip(*runs, strict=True)]


def _error(exact: list[Any], answers: list[Any]) -> float:
    return max(
        float(np.linalg.norm(x.astype(np.float64) - y) / (np.linalg.norm(x) or 1))
        for x, y in zip(exact, answers, strict=True)
        if x.dtype.kind == "f"
    )


def _shown(error: float | str) -> str:
    return f"{error:.4f}" if isinstance(error, float) else error and "refused"


if __name__ == "__main__":
    main()
