"""Eight-bit products that overflow in 16 bits, and configs that answer rightly all the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from factories import onnx_model
from test_config import requiring
from test_loader import processor

from autotune.deploy.session import SessionConfig
from autotune.facts.eight_bits import signed_products
from autotune.graph.graph_facts import ProcessorFacts
from autotune.graph.prepare_child import look_at_processor_facts
from autotune.graph.processor_facts import requirements


def _qdq(weight: np.ndarray, zero: np.ndarray) -> onnx.ModelProto:
    return onnx_model(
        "q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) "
        "dw = DequantizeLinear (w, s) y = MatMul (d, dw)",
        {"s": 0.1, "z": zero, "w": weight},
        x=X,
    )


LARGE = np.array([[127, -100], [3, 4]], np.int8)
SMALL = np.array([[64, -64], [3, 4]], np.int8)
UNSIGNED = np.array(0, np.uint8)


def _counts(model: onnx.ModelProto, folder: Path) -> list[tuple[str, int, int]]:
    return [(p.node.op_type, p.weights, p.large) for p in signed_products(model, folder)]


@pytest.mark.parametrize("zero", [UNSIGNED, np.array(0, np.int8)], ids=["unsigned", "signed"])
def test_large_signed_weights(tmp_path: Path, zero: np.ndarray) -> None:
    """Two of four are beyond 64. ONNX Runtime makes signed activations unsigned on x86."""
    assert _counts(_qdq(LARGE, zero), tmp_path) == [("MatMul", 4, 2)]


def test_what_cannot_overflow(tmp_path: Path) -> None:
    assert _counts(_qdq(SMALL, UNSIGNED), tmp_path) == [("MatMul", 4, 0)]
    assert _counts(_qdq(LARGE.astype(np.uint8), UNSIGNED), tmp_path) == []
    floats = onnx_model("y = MatMul (x, w)", {"w": LARGE.astype(np.float32)}, x=X)
    assert _counts(floats, tmp_path) == []


def test_integer_products(tmp_path: Path) -> None:
    """Dynamic quantisation makes unsigned activations, whose zero point is no constant."""
    body = "q, s, z = DynamicQuantizeLinear (x) i = MatMulInteger (q, w, z) y = Cast <to = 1> (i)"
    assert _counts(onnx_model(body, {"w": LARGE}, x=X), tmp_path) == [("MatMulInteger", 4, 2)]


NOTHING = ProcessorFacts(overflows=False, exactness_reaches=True, has_blocks=False, float16=False)


def _facts(body: str, folder: Path) -> ProcessorFacts:
    constants: dict[str, Any] = {"s": 0.1, "z": UNSIGNED, "w": LARGE}
    model = onnx_model(body.replace("INPUTS", "x, s, z, w, s, z, s, z"), constants, x=X)
    onnx.save(model, folder / "made.onnx")
    return look_at_processor_facts({"path": str(folder / "made.onnx")})


def test_the_facts_of_files(tmp_path: Path) -> None:
    """Blocks by their domain; exact products reach all but NHWC convolutions of ONNX Runtime's."""
    eight_bits = _facts("y = QLinearMatMul (INPUTS)", tmp_path)
    assert eight_bits == replace(NOTHING, overflows=True)
    assert not _facts("y = com.microsoft.QLinearConv (INPUTS)", tmp_path).exactness_reaches
    blocks = _facts("y = com.microsoft.nchwc.Conv (x, s)", tmp_path)
    assert blocks == replace(NOTHING, has_blocks=True)


@pytest.mark.parametrize(
    ("body", "weights", "computes"),
    [
        ("y = MatMul (x, w)", np.float32, False),
        ("wide = Cast <to = 1> (w) y = MatMul (x, wide)", np.float16, False),
        ("narrow = Cast <to = 10> (x) y = MatMul (narrow, w)", np.float16, True),
    ],
)
def test_half_precision_that_is_only_stored_is_no_arithmetic(
    tmp_path: Path, body: str, weights: type, computes: bool
) -> None:
    """Weights may be kept in 16 bits and converted back before they are used."""
    onnx.save(onnx_model(body, {"w": np.ones((2, 2), weights)}, x=X), tmp_path / "made.onnx")
    facts = look_at_processor_facts({"path": str(tmp_path / "made.onnx")})
    assert facts.float16 is computes


_VNNI = {"avx512f", "avx512_vnni"}


@pytest.mark.parametrize(
    ("is_x86", "features", "facts", "required"),
    [
        # ONNX Runtime has kernels of half precision on ARM alone, and casts elsewhere
        (True, {"avx2"}, {"float16": True}, {"float16_in_float32": True}),
        (False, {"asimddp"}, {"float16": True}, {"float16_in_float32": True}),
        (False, {"asimddp", "asimdhp"}, {"float16": True}, {}),
        # measured where nothing overflows, or where nobody knows: it holds without VNNI
        (True, _VNNI, {"overflows": True}, {"exact_products": True}),
        (True, set(), {"overflows": True}, {"exact_products": True}),
        (True, _VNNI, {"overflows": True, "exactness_reaches": False}, {"vnni": True}),
        (True, set(), {"overflows": True, "exactness_reaches": False}, {"vnni": True}),
        # measured overflowing, it stays as it is
        (True, {"avx2"}, {"overflows": True, "exactness_reaches": False}, {}),
        (True, {"avx2"}, {"has_blocks": True}, {"weight_block": 8}),
    ],
)
def test_a_config_requires_what_its_answers_rest_on(
    monkeypatch: pytest.MonkeyPatch,
    is_x86: bool,
    features: set[str],
    facts: dict[str, bool],
    required: dict[str, Any],
) -> None:
    processor(monkeypatch, features, is_x86=is_x86)
    requires = requirements(SessionConfig(), replace(NOTHING, **facts))
    assert requires == requiring("CPUExecutionProvider", **required)


X = "float[4,4] x"
