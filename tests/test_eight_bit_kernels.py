"""Which types of nodes the installed ONNX Runtime computes in eight bits."""

from autotune.graph.calibration import quantisable_types
from autotune.graph.eight_bit_kernels import without_kernel


def test_types_are_tried_on_the_installed_runtime() -> None:
    """Products and moves have kernels; some that the tool wraps are computed in float."""
    types = {"Conv", "MatMul", "Reshape", "Sigmoid", "ConvTranspose", "InstanceNormalization"}
    assert without_kernel(types) == {"ConvTranspose", "InstanceNormalization"}


def test_a_type_without_an_example_is_left_to_the_tool() -> None:
    assert without_kernel({"Gemm", "TypeOfTheFuture"}) == set()


def test_the_tool_gets_no_type_that_it_would_wrap_in_vain() -> None:
    types = quantisable_types()
    assert {"Conv", "Relu", "Concat"} <= set(types)
    assert {"ConvTranspose", "LayerNormalization", "Pad"}.isdisjoint(types)
