"""The patterns of elementwise operators, and the rules of algebra that change them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from factories import onnx_model

from autotune.facts.feeds import save_samples
from autotune.facts.generated import generate
from autotune.facts.model import describe
from autotune.inspection.patterns_child import patterns
from autotune.inspection.profile import Elementwise, elementwise_time

_NUMBERS = {"three": 3.0, "zero": 0.0, "six": 6.0}
_SHAPE = "float[2,4,6,6] x"


def _found(folder: Path, body: str, **constants: Any) -> Elementwise:
    onnx.save(onnx_model(body, {**_NUMBERS, **constants}, x=_SHAPE), folder / "model.onnx")
    save_samples([{"x": np.ones((2, 4, 6, 6), np.float32)}], folder / "samples.npz")
    message = {"model": str(folder / "model.onnx"), "samples": str(folder / "samples.npz")}
    return patterns(message)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_form_is_counted_once_with_the_rule_that_changes_it(folder: Path) -> None:
    """Two hard swishes between convolutions, written in two orders, are one pattern."""
    found = _found(
        folder,
        """
        a = Add (x, three) b = Clip (a, zero, six) c = Mul (x, b) d = Div (c, six)
        e = Conv (d, w)
        f = Add (three, e) g = Clip (f, zero, six) h = Mul (g, e) i = Div (h, six)
        y = Conv (i, w)
        """,
        w=np.ones((4, 4, 1, 1), np.float32),
    )
    (swish,) = found.patterns
    assert swish.expression == "Div(Mul(Clip(Add(x, 3), 0, 6), x), 6)"
    assert (swish.times, swish.nodes) == (2, 4)
    assert "hard_sigmoid" in swish.rules
    assert found.share == pytest.approx(swish.share)
    assert 0 < swish.share < 1


def test_a_pattern_without_a_rule_is_named(folder: Path) -> None:
    found = _found(folder, "a = Sin (x) b = Mul (a, x) y = Add (c, b)", c=np.ones(6, np.float32))
    (pattern,) = found.patterns
    assert pattern.expression == "Add(Mul(Sin(x), x), constant)"
    assert pattern.rules == ()


def test_long_chains_are_cut(folder: Path) -> None:
    body = "".join(f"t{i + 1} = Sin (t{i}) " for i in range(14)).replace("(t0)", "(x)")
    found = _found(folder, body.replace("t14 =", "y ="))
    assert sorted((p.nodes, p.times) for p in found.patterns) == [(2, 1), (6, 2)]


@pytest.mark.process
def test_they_are_measured_in_a_child(folder: Path) -> None:
    onnx.save(onnx_model("a = Sin (x) y = Mul (a, x)", x=_SHAPE), folder / "model.onnx")
    described = describe(folder / "model.onnx")
    found = elementwise_time(folder / "model.onnx", generate(described, {}))
    assert [pattern.expression for pattern in found.patterns] == ["Mul(Sin(x), x)"]
