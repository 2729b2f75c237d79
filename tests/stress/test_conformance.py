"""ONNX's own node tests, each through a study of three trials: the answers stay as expected.

    AUTOTUNE_STRESS=5 pytest tests/stress/test_conformance.py      # five times as many

The tests are drawn at random from `onnx.backend.test.case.node`. The model and the inputs of each
are written to files, and `autotune study` runs on them. A third process loads the config that the
study wrote and runs it on the same inputs. Either its outputs are those that the test expects, or
those of ONNX Runtime without optimisations where ONNX Runtime does not give the expected ones; or
the study refused the model with an exit code of its own and one sentence.

The studies run with `--max-error 1e-4`, because a quantised model has other answers by intention.
"""

import random
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import brief_studies
import command_line
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from share import SHARE

pytestmark = pytest.mark.stress

RELATIVE = 1e-3
ABSOLUTE = 1e-5
"""Floats are equal up to these tolerances, all else exactly.

The absolute one is relative to the largest value of the output if that is above 1, because the sums
behind small values have terms as large; in half precision it is one step of the type.
"""

_COUNT = 12
# Exit codes of a request that is refused, and of a model that cannot be measured.
_REFUSALS = (2, 4)

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


def collect() -> dict[str, Any]:
    """Returns all of ONNX's node tests by name."""
    # the tests take their inputs from numpy's global generator while they are collected
    np.random.seed(0)  # noqa: NPY002
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of overflows in the tests' own arithmetic
        from onnx.backend.test.case.node import collect_testcases

        return {test.name: test for test in collect_testcases(None)}


@pytest.fixture(scope="module")
def node_tests() -> dict[str, Any]:
    return collect()


def test_studies_of_node_tests_keep_the_expected_answers(
    node_tests: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but right answers and reasons comes back, and most models have right answers."""
    brief_studies.measure_briefly(monkeypatch.setattr)
    drawn = random.Random(0).sample(sorted(node_tests), round(_COUNT * SHARE))
    verdicts = {}
    for name in drawn:
        folder = tmp_path / name
        folder.mkdir()
        verdicts[name] = _verdict(node_tests[name], folder)
    wrong = {name: verdict for name, verdict in verdicts.items() if verdict.startswith("wrong")}
    assert not wrong
    assert sum(verdict == "equal" for verdict in verdicts.values()) > len(drawn) / 2, verdicts


def test_a_model_of_a_missing_operator_is_refused(
    node_tests: dict[str, Any], tmp_path: Path
) -> None:
    """ONNX Runtime has no training operators."""
    verdict = _verdict(node_tests["test_momentum"], tmp_path)
    assert verdict.startswith("refused: ")
    assert "operator" in verdict


def _verdict(test: Any, folder: Path) -> str:
    """Returns ``equal``, ``refused: REASON``, ``as ONNX Runtime`` or ``wrong: REASON``."""
    inputs, expected = test.data_sets[0]
    model, data, out = folder / "model.onnx", folder / "inputs.npz", folder / "out"
    onnx.save(test.model, model)
    names = [item.name for item in test.model.graph.input]
    has_samples = _write_sample(names, inputs, data)
    options = ["--trials", "3", "--max-error", "1e-4", "--out", str(out)]
    if has_samples and names:
        options += ["--data", str(data)]
    done = command_line.run(folder, "study", str(model), *options)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        reason = last.removeprefix("Error: ")
        refused = done.returncode in _REFUSALS and reason not in ("", last)
        return f"{'refused' if refused else 'wrong'}: {reason}"
    if not has_samples:
        return "wrong: a study without the test's inputs ended well"
    tuned = _run(out / "best.json", data)
    difference = differs(tuned, flat(expected))
    if not difference:
        return "equal"
    plain = _run(model, data)
    if differs(plain, flat(expected)) and not differs(tuned, plain):
        return "as ONNX Runtime"
    return f"wrong: {difference}"


def _write_sample(names: Sequence[str], values: Sequence[object], path: Path) -> bool:
    """Writes the inputs of a test as `--data` takes them; returns False where numpy cannot."""
    arrays: dict[str, Any] = {}
    for name, value in zip(names, values, strict=True):
        if value is None or isinstance(value, list):  # an optional one, or a sequence
            return False
        array = _as_array(value)
        if array.dtype.isbuiltin == 2:  # one of the package ml_dtypes
            return False
        arrays[name] = array[np.newaxis]
    np.savez(path, **arrays)
    return True


def _as_array(value: Any) -> NDArray[Any]:
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
            arrays.append(_as_array(value))
    return arrays


def _run(file: Path, inputs: Path) -> list[NDArray[Any]]:
    """Returns the outputs of a config or a model in a fresh process."""
    to = inputs.with_name("outputs.npz")
    command = [sys.executable, "-c", _RUN, str(file), str(inputs), str(to)]
    subprocess.run(command, check=True, timeout=600)
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
