"""Packed products of one input become one, and give the very same numbers."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from factories import normal, save_onnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.graph import joined_products, weight_only
from autotune.graph.entries import StepRefusedError


def _run(path: Path, x: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [np.asarray(output) for output in session.run(None, {"x": x})]


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sizes=st.lists(st.integers(1, 70), min_size=2, max_size=3),
    width=st.integers(16, 90),
    rows=st.integers(1, 5),
    bits=st.sampled_from([4, 8]),
    level=st.sampled_from([0, 4]),
    zero_points=st.booleans(),
)
def test_joined_products_give_the_same_numbers(
    tmp_path: Path,
    sizes: list[int],
    width: int,
    rows: int,
    bits: int,
    level: int,
    zero_points: bool,
) -> None:
    """One that takes another input stays apart, and so does what is computed of them."""
    body = " ".join(f"y{i} = MatMul (x, w{i})" for i in range(len(sizes)))
    body = f"{body} z = MatMul (y0, other)"
    weights = {f"w{i}": normal(i, width, size) for i, size in enumerate(sizes)}
    weights["other"] = normal(9, sizes[0], 3)
    outputs = ", ".join(f"float[?] {name}" for name in ("z", *(f"y{i}" for i in range(len(sizes)))))
    paths = [tmp_path / name for name in ("float.onnx", "apart.onnx", "joined.onnx")]
    save_onnx(paths[0], body, weights, x=f"float[n,{width}] x", y=outputs)
    weight_only.quantise(
        paths[0], paths[1], bits=bits, block_size=16, accuracy_level=level,
        zero_points=zero_points,
    )  # fmt: skip
    joined_products.join(paths[1], paths[2])
    types = [node.op_type for node in onnx.load(paths[2]).graph.node]
    assert types == ["MatMulNBits", "Split", "MatMulNBits"]
    x = normal(7, rows, width)
    for apart, joined in zip(_run(paths[1], x), _run(paths[2], x), strict=True):
        np.testing.assert_allclose(joined, apart, rtol=1e-5, atol=1e-5)


def test_where_nothing_shares_an_input_it_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    weights = {"a": normal(0, 32, 32), "b": normal(1, 32, 32)}
    body = "y = MatMul (x, a) z = MatMul (y, b)"
    save_onnx(source, body, weights, x="float[n,32] x", y="float[?] z")
    weight_only.quantise(source, tmp_path / "packed.onnx")
    with pytest.raises(StepRefusedError, match="share an input"):
        joined_products.join(tmp_path / "packed.onnx", tmp_path / "out.onnx")
