"""The benchmark with ONNX's own node tests: what it takes for right, refused and failed."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conformance import Verdict, differs, flat, refusal, summary, write_sample


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (np.array([1.0005, 0.0]), np.array([1.0, 9e-6])),
        (np.array([1000.0, 0.005]), np.array([1000.0, 0.0])),
        (np.array([np.nan, np.inf]), np.array([np.nan, np.inf])),
        (np.array([0.5, 0.2505], np.float16), np.array([0.5, 0.25], np.float16)),
        (np.array([3, -1]), np.array([3, -1])),
        (np.array(["ab", ""]), np.array(["ab", ""])),
        (np.zeros((0, 3)), np.zeros((0, 3))),
    ],
)
def test_outputs_within_the_tolerance_are_equal(output: Any, expected: Any) -> None:
    """Floats may differ by rounding; integers and text are equal to the last one."""
    assert differs([output], [expected]) == ""


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (np.array([1.003]), np.array([1.0])),
        (np.array([0.5, 0.001]), np.array([0.5, 0.0])),
        (np.array([1.0]), np.array([np.nan])),
        (np.array([np.inf]), np.array([-np.inf])),
        (np.array([3, 0]), np.array([3, 1])),
        (np.array(["ab"]), np.array(["abc"])),
        (np.array([1.0, 1.0]), np.array([1.0])),
        (np.array([1]), np.array([1.0])),
    ],
)
def test_other_outputs_differ(output: Any, expected: Any) -> None:
    """Another value, shape or kind of type is a difference, in words."""
    assert differs([output], [expected]).startswith("output 0 ")


def test_an_output_too_few_is_a_difference() -> None:
    """Outputs are counted with the elements of sequences, and without missing optional ones."""
    expected = flat([[np.zeros(2), np.ones(2)], None, np.ones(1)])
    assert len(expected) == 3
    assert differs(expected, expected) == ""
    assert differs(expected[:2], expected) == "2 outputs for 3"


@pytest.mark.parametrize(
    ("code", "stderr", "outcome"),
    [
        (2, "reading the model ...\nautotune: m.onnx is no model\n", "refused"),
        (4, "autotune: it does not run\n", "refused"),
        (1, "autotune: it does not run\n", "failed"),
        (75, "autotune: the disk is full\n", "failed"),
        (2, "usage: autotune\n", "failed"),
        (2, "", "failed"),
        (2, "Traceback (most recent call last):\nautotune: no\n", "failed"),
        (-11, "", "failed"),
    ],
)
def test_a_refusal_has_a_code_and_a_reason(code: int, stderr: str, outcome: str) -> None:
    """Without a documented exit code and a reason of its own, an end is a failure."""
    verdict = refusal(code, "", stderr)
    assert verdict.outcome == outcome
    assert "autotune: " not in verdict.reason or outcome == "failed"


@pytest.mark.parametrize(
    "value", [None, [np.zeros(1)], np.zeros(2, ml_dtypes.bfloat16), np.zeros(2, ml_dtypes.int4)]
)
def test_inputs_that_numpy_cannot_hold_are_not_written(value: Any, tmp_path: Path) -> None:
    """Sequences, missing inputs and types outside numpy have no place in an .npz file."""
    assert not write_sample(["x"], [value], tmp_path / "x.npz")
    assert not (tmp_path / "x.npz").exists()


def test_inputs_are_written_as_one_sample(tmp_path: Path) -> None:
    """The first axis counts samples; text is written without pickling."""
    text = np.array(["a", "bc"], dtype=object)
    assert write_sample(["x", "s"], [np.float32(2), text], tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz", allow_pickle=False) as arrays:
        assert arrays["x"].shape == (1,)
        assert arrays["s"].tolist() == [["a", "bc"]]


def test_the_last_figure_counts_failures() -> None:
    """Whatever is neither equal nor refused is in the last figure."""
    verdicts = {
        "a": Verdict(outcome="equal", study_s=9.0, cpu_s=4.0),
        "b": Verdict(outcome="refused", reason="no kernel", study_s=1.0),
        "c": Verdict(outcome="failed", reason="exit code 1"),
    }
    figures = summary(verdicts)
    assert list(figures.items())[-1] == ("failed", 1)
    assert (figures["equal"], figures["refused"], figures["tests"]) == (1, 1, 3)
    assert (figures["study_s_median"], figures["studies_over_8_s"]) == (9.0, 1)
