"""Runs ONNX's own node tests through a study of three trials each, and checks the answers.

    python benchmarks/conformance.py [TEST ...] [--count 60] [--seed 0] [--quick] [--json]

Without names, the tests are drawn at random from all of `onnx.backend.test.case.node`. The model
and the inputs of each are written to files; `autotune study` runs on them in a process of its own;
and a third process loads the emitted config with `autotune.load` and runs it on the test's inputs.
Its outputs must be those that the test expects, or the study must have refused the model with a
documented exit code and one sentence. Everything else is a failure, and the last figure counts it.

A few tests have answers that ONNX Runtime does not give without autotune either. There the outputs
of the config must be those of ONNX Runtime with its optimisations off, and the test has a row of
its own in the table.

The studies run with `--max-error 1e-4`, because a quantised model has other answers by intention.
"""

import argparse
import json
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import program
from numpy.typing import NDArray
from onnx import numpy_helper

RELATIVE = 1e-3
ABSOLUTE = 1e-5
"""Floats are equal up to these tolerances, all else exactly.

The absolute one is relative to the largest value of the output if that is above 1, because the sums
behind small values have terms as large; in half precision it is one step of the type.
"""

# Exit codes of a request that is refused, and of a model that cannot be measured.
_REFUSALS = (2, 4)
_LONGEST_STUDY_S = 600.0
_SLOW_S = 8.0

# Runs a config, or a model without ONNX Runtime's optimisations, on the inputs of a test. Elements
# of sequences are outputs of their own, and optional outputs without a value are left out.
_RUN = """
import sys, numpy, onnxruntime, autotune
file, inputs, to = sys.argv[1:]
if file.endswith(".json"):
    session = autotune.load(file, strict=True)
else:
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])

def flat(value):
    if isinstance(value, list):
        return [array for item in value for array in flat(item)]
    return [] if value is None else [numpy.asarray(value)]

with numpy.load(inputs) as samples:
    # [0, ...] and not [0]: ONNX Runtime takes an array without dimensions, but no numpy scalar
    outputs = flat(session.run(None, {name: samples[name][0, ...] for name in samples.files}))
numpy.savez(to, *[a.astype(str) if a.dtype == object else a for a in outputs])
"""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of one test.

    Attributes:
        outcome: One of :data:`OUTCOMES`.
        reason: Why the study refused the model, or what went wrong; empty where nothing did.
        study_s: Seconds of the study.
        cpu_s: CPU time of all processes of the study.
    """

    outcome: str
    reason: str = ""
    study_s: float = 0.0
    cpu_s: float = 0.0


OUTCOMES = {
    "equal": "the answers are the expected ones",
    "as_onnxruntime": "ONNX Runtime has other answers, and so has the config",
    "refused": "the study refuses the model with a reason",
    "failed": "anything else",
}
"""The outcomes of a test, in words."""


def main() -> int:
    """Prints the table; returns 1 if a test failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", metavar="TEST", nargs="*", help="run these tests")
    parser.add_argument("--count", type=int, default=60, help="how many tests are drawn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="3 tests")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    tests = collect(given.seed)
    count = 3 if given.quick else given.count
    names = given.names or random.Random(given.seed).sample(sorted(tests), count)
    verdicts = {}
    for test in map(tests.__getitem__, names):
        with tempfile.TemporaryDirectory() as folder:
            verdicts[test.name] = verdict = check(test, Path(folder), given.seed)
        print(f"{test.name:60} {verdict.study_s:5.1f} s  {verdict.outcome}", file=sys.stderr)
    figures = summary(verdicts)
    print_tables(verdicts, figures)
    if given.json:
        print(json.dumps(figures))
    return 1 if figures["failed"] else 0


def collect(seed: int) -> dict[str, Any]:
    """Returns all of ONNX's node tests by name."""
    # the tests take their inputs from numpy's global generator while they are collected
    np.random.seed(seed)  # noqa: NPY002
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of overflows in the tests' own arithmetic
        from onnx.backend.test.case.node import collect_testcases

        return {test.name: test for test in collect_testcases(None)}


def check(test: Any, folder: Path, seed: int) -> Verdict:
    """Returns what becomes of one test.

    Args:
        test: One of ONNX's test cases.
        folder: An empty folder.
        seed: Random seed of the study.
    """
    inputs, expected = test.data_sets[0]
    model, data, out = folder / "model.onnx", folder / "inputs.npz", folder / "out"
    onnx.save(test.model, model)
    names = [item.name for item in test.model.graph.input]
    has_samples = write_sample(names, inputs, data)
    # --wait: a refusal because another study has the cores would say nothing about the model
    options = ["--trials", "3", "--max-error", "1e-4", "--seed", str(seed), "--wait"]
    options += ["--out", str(out)]
    if has_samples and names:
        options += ["--data", str(data)]
    began_s, began_cpu_s = time.monotonic(), _children_cpu_s()
    try:
        done = _process(*program.AUTOTUNE, "study", str(model), *options)
    except subprocess.TimeoutExpired:
        return Verdict(outcome="failed", reason="the study does not end")
    study_s, cpu_s = time.monotonic() - began_s, _children_cpu_s() - began_cpu_s
    if done.returncode:
        verdict = refusal(done.returncode, done.stdout, done.stderr)
    elif has_samples:
        verdict = compare(model, data, out / "best.json", flat(expected))
    else:
        verdict = Verdict(outcome="failed", reason="a study without the test's inputs ended well")
    return replace(verdict, study_s=study_s, cpu_s=cpu_s)


def compare(model: Path, inputs: Path, config: Path, expected: Sequence[NDArray[Any]]) -> Verdict:
    """Returns the verdict on an emitted config, by its outputs in a fresh process."""
    tuned = run(config, inputs, config.parent / "tuned.npz")
    if isinstance(tuned, str):
        return Verdict(outcome="failed", reason=f"the config does not run: {tuned}")
    difference = differs(tuned, expected)
    if not difference:
        return Verdict(outcome="equal")
    plain = run(model, inputs, config.parent / "plain.npz")
    if not isinstance(plain, str) and differs(plain, expected) and not differs(tuned, plain):
        return Verdict(outcome="as_onnxruntime", reason=difference)
    return Verdict(outcome="failed", reason=difference)


def write_sample(names: Sequence[str], values: Sequence[object], path: Path) -> bool:
    """Writes the inputs of a test as `--data` takes them; returns False where numpy cannot."""
    arrays: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        if value is None or isinstance(value, list):  # an optional one, or a sequence
            return False
        array = as_array(value)
        if array.dtype.isbuiltin == 2:  # one of the package ml_dtypes
            return False
        arrays[name] = array[np.newaxis]
    np.savez(path, **arrays)
    return True


def as_array(value: Any) -> NDArray[Any]:
    """Returns a value of a test as an array, text as numpy's own strings."""
    array = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
    array = np.asarray(array)
    return array.astype(str) if array.dtype == object else array


def flat(values: Sequence[object]) -> list[NDArray[Any]]:
    """Returns outputs as arrays: each element of a sequence is one, and a missing one is none."""
    arrays = []
    for value in values:
        if isinstance(value, list):
            arrays += flat(value)
        elif value is not None:
            arrays.append(as_array(value))
    return arrays


def run(file: Path, inputs: Path, to: Path) -> list[NDArray[Any]] | str:
    """Returns the outputs of a config or a model in a fresh process, or its last words."""
    done = _process(sys.executable, "-c", _RUN, str(file), str(inputs), str(to))
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    with np.load(to) as archive:
        return [archive[f"arr_{i}"] for i in range(len(archive.files))]


def differs(outputs: Sequence[NDArray[Any]], expected: Sequence[NDArray[Any]]) -> str:
    """Returns how outputs differ from the expected ones, or an empty string."""
    if len(outputs) != len(expected):
        return f"{len(outputs)} outputs for {len(expected)}"
    for i, (output, right) in enumerate(zip(outputs, expected, strict=True)):
        if output.shape != right.shape:
            return f"output {i} has the shape {output.shape} for {right.shape}"
        if output.dtype.kind != right.dtype.kind:
            return f"output {i} has the type {output.dtype} for {right.dtype}"
        equal = output == right
        if right.dtype.kind in "fc":
            largest = np.abs(right[np.isfinite(right)]).max(initial=1.0)
            absolute = max(ABSOLUTE, float(np.finfo(right.dtype).eps)) * largest
            equal = np.isclose(output, right, rtol=RELATIVE, atol=absolute, equal_nan=True)
        if not np.all(equal):
            return f"output {i} differs in {1 - np.mean(equal):.0%} of its values"
    return ""


def refusal(code: int, stdout: str, stderr: str) -> Verdict:
    """Returns the verdict on a study that did not end well, by what it printed."""
    last = (stderr.strip().splitlines() or [""])[-1]
    reason = last.removeprefix("autotune: ")
    if code not in _REFUSALS:
        return Verdict(outcome="failed", reason=f"exit code {code}: {last}")
    if "Traceback" in stderr + stdout or reason in ("", last):
        return Verdict(outcome="failed", reason=f"exit code {code} without a reason: {last}")
    return Verdict(outcome="refused", reason=reason)


def summary(verdicts: dict[str, Verdict]) -> dict[str, Any]:
    """Returns the figures by name; the count of failed tests is the last one."""
    studies = [v for v in verdicts.values() if v.outcome in ("equal", "as_onnxruntime")]
    refused = [v for v in verdicts.values() if v.outcome == "refused"]
    counts = Counter(verdict.outcome for verdict in verdicts.values())
    return {
        "tests": len(verdicts),
        "study_s_median": statistics.median([v.study_s for v in studies]) if studies else None,
        "study_s_longest": max((v.study_s for v in studies), default=None),
        "study_cpu_s_median": statistics.median([v.cpu_s for v in studies]) if studies else None,
        "studies_over_8_s": sum(v.study_s > _SLOW_S for v in studies),
        "refusal_s_median": statistics.median([v.study_s for v in refused]) if refused else None,
        **{outcome: counts[outcome] for outcome in OUTCOMES},
    }


def print_tables(verdicts: dict[str, Verdict], figures: dict[str, Any]) -> None:
    """Prints the reasons, the times, and the outcomes."""
    for outcome in ("refused", "as_onnxruntime", "failed"):
        rows = {name: v.reason for name, v in verdicts.items() if v.outcome == outcome}
        if rows:
            print(f"{OUTCOMES[outcome]}:")
        kinds: dict[str, list[str]] = {}
        for name, reason in rows.items():
            kinds.setdefault(_general(reason), []).append(name)
        for kind, names in sorted(kinds.items(), key=lambda item: -len(item[1])):
            shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
            print(f"  {len(names):3}  {kind}\n       ({shown})")
    if figures["study_s_median"] is not None:
        print(
            f"a study of three trials takes {figures['study_s_median']:.1f} s in the median "
            f"({figures['study_cpu_s_median']:.1f} s of CPU time), at most "
            f"{figures['study_s_longest']:.1f} s; {figures['studies_over_8_s']} take over "
            f"{_SLOW_S:g} s"
        )
    if figures["refusal_s_median"] is not None:
        print(f"a refusal takes {figures['refusal_s_median']:.1f} s in the median")
    print(f"\n{figures['tests']:4}  tests")
    for outcome, words in OUTCOMES.items():
        print(f"{figures[outcome]:4}  {words}")


def _general(reason: str) -> str:
    """Returns a reason without the names of this test."""
    return re.sub(r"'[^']*'", "'..'", re.sub(r"\S*/model\.onnx\b", "the model", reason))


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _process(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=_LONGEST_STUDY_S,
    )


if __name__ == "__main__":
    sys.exit(main())
