"""What takes the place of ONNX Runtime's rounding of weights gives the same bits."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnxruntime.quantization import qdq_quantizer, quant_utils

from autotune.graph.quick_rounding import parameters, quick_rounding, rounded

TYPES = (onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
CHANNELS = st.sampled_from([np.float32, np.float16]).flatmap(
    lambda kind: arrays.arrays(
        kind, st.integers(0, 9), elements=st.floats(width=16, allow_nan=False, allow_infinity=False)
    )
)
UNUSUAL = (
    np.zeros(3, np.float32),
    np.full(3, 1e-38, np.float32),
    np.full(3, 1e-44, np.float32),
    np.array([3e38, -3e38], np.float32),
    np.array([], np.float32),
    np.array([1e-7, 2e-7], np.float16),
)


def _same(data: np.ndarray, kind: int, symmetric: bool, reduce_range: bool) -> None:
    theirs = quant_utils.compute_data_quant_params(data, kind, symmetric, reduce_range)
    ours = parameters(data, kind, symmetric, reduce_range)
    for expected, actual in zip(theirs, ours, strict=True):
        assert expected.dtype == actual.dtype
        assert expected.shape == actual.shape
        assert expected.tobytes() == actual.tobytes()
    zero_point, scale = theirs
    expected = quant_utils.quantize_nparray(kind, data, scale, zero_point)
    actual = rounded(kind, data, scale, zero_point)
    assert expected.dtype == actual.dtype
    np.testing.assert_array_equal(expected, actual)


@given(CHANNELS, st.sampled_from(TYPES), st.booleans(), st.booleans())
def test_each_channel_is_rounded_to_the_same_bits(
    data: np.ndarray, kind: int, symmetric: bool, reduce_range: bool
) -> None:
    _same(data, kind, symmetric, reduce_range)


@pytest.mark.parametrize("data", UNUSUAL, ids=str)
@pytest.mark.parametrize("kind", TYPES)
def test_unusual_channels_are_left_to_the_tool(data: np.ndarray, kind: int) -> None:
    with np.errstate(over="ignore"):
        _same(data, kind, symmetric=True, reduce_range=False)


def test_limits_are_left_to_the_tool() -> None:
    data = np.linspace(-1, 1, 9, dtype=np.float32)
    narrow = parameters(data, onnx.TensorProto.INT8, True, rmin_override=-9.0, rmax_override=9.0)
    assert narrow[1] > parameters(data, onnx.TensorProto.INT8, True)[1]
    step, zero = np.array(0.01, np.float32), np.array(0, np.int8)
    assert rounded(onnx.TensorProto.INT8, data, step, zero, -5, 5).max() == 5


def test_the_tools_functions_are_theirs_again_afterwards() -> None:
    theirs = quant_utils.compute_data_quant_params
    with quick_rounding():
        assert quant_utils.compute_data_quant_params is parameters
        assert qdq_quantizer.compute_data_quant_params is parameters
    assert quant_utils.compute_data_quant_params is theirs
    assert qdq_quantizer.compute_data_quant_params is theirs
