"""Which of ONNX Runtime's optimisations change a model, and leaving one of them out."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from factories import onnx_model

from autotune.deploy.opening import open_session
from autotune.deploy.options import OPTIMIZERS
from autotune.facts.model import describe
from autotune.graph.graph_digest import SlimModels
from autotune.graph.optimizers import RULES, TRANSFORMERS, firing_optimizers
from autotune.graph.optimizers_child import firing
from autotune.space.session import session_config


@pytest.fixture
def product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a model with a convolution and its Relu, and a product and its bias."""
    monkeypatch.chdir(tmp_path)
    numbers = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)
    constants = {
        "filter": numbers.reshape(8, 8, 1, 1),
        "w": numbers,
        "b": numbers[0],
        "shape": np.array([-1, 8]),
    }
    body = (
        "c = Conv (x, filter) r = Relu (c) f = Reshape (r, shape) m = MatMul (f, w) y = Add (m, b)"
    )
    onnx.save(onnx_model(body, constants, x="float[1,8,4,4] x"), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_those_that_change_the_graph_are_found(product: Path) -> None:
    assert firing({"path": str(product)}).names == ("ConvActivationFusion", "MatMulAddFusion")


def test_those_that_change_the_graph_after_the_algebra_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A normalisation that only the pre-pass writes as ONNX Runtime's fusion looks for it."""
    monkeypatch.chdir(tmp_path)
    body = """
        mean = ReduceMean <axes = [-1]> (x) d = Sub (x, mean) q = Mul (d, d)
        v = ReduceMean <axes = [-1]> (q) e = Add (v, epsilon) s = Sqrt (e) i = Reciprocal (s)
        n = Mul (d, i) g = Mul (n, gain) y = Add (g, shift)
    """
    gain = np.linspace(1, 2, 6, dtype=np.float32)
    constants = {"epsilon": np.array(1e-5, np.float32), "gain": gain, "shift": gain}
    onnx.save(onnx_model(body, constants, opset=13), tmp_path / "model.onnx")
    assert "LayerNormFusionL2" in firing({"path": str(tmp_path / "model.onnx")}).names


def test_leaving_one_out_has_its_effect(product: Path) -> None:
    def operators(*left_out: str) -> set[str]:
        half = {f"optimizer.{name}": "off" for name in left_out}
        config = session_config(half, {})
        assert config.disabled_optimizers == left_out
        trace = open_session(product, config, trace=product.with_suffix(""))
        trace.run(None, {"x": np.zeros((1, 8, 4, 4), np.float32)})
        text = Path(trace.end_profiling()).read_text()
        return {name for name in ("MatMul", "Gemm") if f'"op_name" : "{name}"' in text}

    assert operators() == {"Gemm"}
    assert operators("MatMulAddFusion") == {"MatMul"}


def test_every_one_that_is_tried_may_be_in_a_config() -> None:
    """A name that the loader refuses would be a parameter that no config could carry."""
    assert TRANSFORMERS.union(RULES) <= OPTIMIZERS
    assert TRANSFORMERS.isdisjoint(RULES)


@pytest.mark.process
def test_they_are_found_in_a_child(product: Path) -> None:
    described = describe(product)
    assert firing_optimizers(described) == ("ConvActivationFusion", "MatMulAddFusion")
    onnx.save(onnx.ModelProto(), product)
    assert firing_optimizers(described) == ()


def test_a_large_weight_is_written_once_and_one_that_is_computed_equals_it(tmp_path: Path) -> None:
    """ONNX Runtime writes what it computes itself into the graph, and leaves the rest outside."""
    weight = np.random.default_rng(0).normal(size=(128, 256)).astype(np.float32)

    def write(body: str, **constants: np.ndarray) -> Path:
        body += " y = MatMul (x, w)"
        return models.write(onnx_model(body, constants, x="float[1,128] x", y="float[1,256] y"))

    models = SlimModels(tmp_path)
    written, again, other = write("", w=weight), write("", w=weight), write("", w=weight + 1)
    computed = write("w = Neg (n)", n=-weight)
    assert written.stat().st_size < 1000
    assert (tmp_path / "weights").stat().st_size == 3 * weight.nbytes
    digests = [models.digest(path) for path in (written, again, computed, other)]
    assert digests[0] == digests[1] == digests[2] != digests[3]
