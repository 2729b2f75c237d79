"""Which types of nodes the installed ONNX Runtime computes in eight bits."""

import pytest

from autotune.graph import eight_bit_kernels
from autotune.graph.calibration import quantisable_types
from autotune.graph.eight_bit_kernels import without_kernel


def test_types_are_tried_on_the_installed_runtime() -> None:
    """Products and moves have kernels; some that the tool wraps are computed in float."""
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    types = {*QLinearOpsRegistry, *QDQRegistry}
    assert types - eight_bit_kernels._EXAMPLES.keys() == {"Clip", "Relu"}
    assert without_kernel(types) == {
        "ConvTranspose", "CumSum", "EmbedLayerNormalization", "Pad", "TopK",
        *(f"{kind}Normalization" for kind in ("Batch", "Instance", "Layer")),
    }  # fmt: skip


def test_a_type_that_cannot_be_tried_is_left_to_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no example, or this ONNX Runtime cannot open its example."""
    example = eight_bit_kernels._EXAMPLES["Add"]
    monkeypatch.setitem(eight_bit_kernels._EXAMPLES, "TypeOfTomorrow", example)
    assert without_kernel({"Relu", "TypeOfTheFuture", "TypeOfTomorrow"}) == set()


def test_the_tool_gets_no_type_that_it_would_wrap_in_vain() -> None:
    types = quantisable_types()
    assert {"Conv", "Relu", "Concat"} <= set(types)
    assert {"ConvTranspose", "LayerNormalization", "Pad"}.isdisjoint(types)
