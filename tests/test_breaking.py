"""Models that ONNX Runtime's own optimisations break: found, and opened without them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from factories import normal, save_onnx

from autotune.deploy.opening import open_session
from autotune.facts.breaking import culprits, open_default
from autotune.facts.model import describe, without_breaking
from autotune.space.session import session_config

_FEED = {"x": normal(3, 2, 32)}


def _model(path: Path, before: str) -> Path:
    """Returns a valid model with a product with a quotient, which ONNX Runtime fuses wrongly."""
    return save_onnx(
        path,
        f"a = MatMul(x, w) b = Relu(a) {before} k = Div(one, two) s = Mul(mid, k) y = MatMul(s, v)",
        {"w": normal(0, 32, 32), "v": normal(1, 32, 8), "one": 1.0, "two": 1.0},
        x="float[n,32] x",
        y="float[n,8] y",
    )


@pytest.mark.parametrize("before", ["mid = Cast<to = 1>(b)", "mid = Dropout(b)"])
def test_the_optimisation_that_breaks_a_model_is_off(before: str, tmp_path: Path) -> None:
    path = _model(tmp_path / "m.onnx", before)
    with pytest.raises(Exception, match="mid"):
        onnxruntime.InferenceSession(path)
    session, breaking = open_default(path)
    assert len(breaking) == 1
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    exact = onnxruntime.InferenceSession(path, settings).run(None, _FEED)[0]
    np.testing.assert_allclose(session.run(None, _FEED)[0], exact, rtol=1e-4)
    # so is it in a configuration, beside what that leaves out
    config = session_config({"optimizer.GeluFusionL1": "off"}, {}, breaking)
    assert set(config.disabled_optimizers) == {"GeluFusionL1", *breaking}
    opened = open_session(path, config).run(None, _FEED)[0]
    np.testing.assert_allclose(opened, exact, rtol=1e-4)


@pytest.mark.parametrize(
    ("difference", "columns"),
    [
        ("d = Sub(m, x)", 32),  # ONNX Runtime takes it for x - m: other answers
        ("d = Sub(x, m)", 1),  # and writes a LayerNormalization that refuses a wider gain
    ],
)
def test_what_breaks_a_model_when_it_runs_is_found_on_a_sample(
    difference: str, columns: int, tmp_path: Path
) -> None:
    path = save_onnx(
        tmp_path / "m.onnx",
        f"m = ReduceMean <axes = [-1]> (x) {difference} q = Pow(d, two) "
        "v = ReduceMean <axes = [-1]> (q) e = Add(v, small) s = Sqrt(e) n = Div(d, s) "
        "g = Mul(n, gain) y = Add(g, bias)",
        {"two": 2.0, "small": 1e-5, "gain": normal(0, 32), "bias": normal(1, 32)},
        x=f"float[2,{columns}] x",
        y="float[2,32] y",
    )
    sample = {"x": normal(2, 2, columns)}
    model = describe(path)
    assert model.breaking == ()
    found = without_breaking(model, sample)
    assert found.breaking
    assert "LayerNorm" in found.breaking[0]
    assert without_breaking(found, sample) == found
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    exact = onnxruntime.InferenceSession(path, settings).run(None, sample)[0]
    opened = open_session(path, found.default_session).run(None, sample)[0]
    np.testing.assert_allclose(opened, exact, rtol=1e-3, atol=1e-3)


def test_a_model_that_is_right_or_never_the_same_stays_as_it_is(tmp_path: Path) -> None:
    for name, body in {"right": "y = MatMul(x, w)", "random": "y = RandomNormalLike(x)"}.items():
        path = save_onnx(
            tmp_path / f"{name}.onnx", body, {"w": normal(0, 8, 8)}, x="float[2,8] x", y="float[] y"
        )
        model = describe(path)
        assert without_breaking(model, {"x": normal(1, 2, 8)}) == model


def test_a_study_is_told_of_it(tmp_path: Path) -> None:
    model = describe(_model(tmp_path / "m.onnx", "mid = Cast<to = 1>(b)"))
    assert model.breaking
    assert model.default_session.disabled_optimizers == model.breaking
    (sentence,) = model.remarks
    assert model.breaking[0] in sentence


def test_a_model_that_no_optimisation_breaks_is_refused_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(Exception, match=r"(?i)protobuf"):
        open_default(tmp_path / "m.onnx")


def test_several_culprits_are_found() -> None:
    names = [f"o{i}" for i in range(20)]
    asked = []

    def works(off: Sequence[str]) -> bool:
        asked.append(off)
        return {"o3", "o17"} <= set(off)

    assert culprits(names, works) == ("o17", "o3")
    assert len(asked) < 20
