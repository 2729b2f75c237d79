"""Weights rounded by ONNX Runtime's tools, in a third of their time.

With a scale for each channel the tools round a weight channel by channel, and check types and make
arrays of single numbers for each: that is half of what a file in eight bits takes. The functions
here take the place of theirs. They give the same bits, and leave all unusual cases to them.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import qdq_quantizer, quant_utils

Array = NDArray[Any]

_TYPES: dict[int, type[np.integer[Any]]] = {
    onnx.TensorProto.INT8: np.int8,
    onnx.TensorProto.UINT8: np.uint8,
}
# Scales outside have rules of their own, which differ between versions.
_SCALES = (1e-30, 1e30)

_their_parameters: Callable[..., tuple[Array, Array]] = quant_utils.compute_data_quant_params
_their_rounding: Callable[..., Array] = quant_utils.quantize_nparray


@contextlib.contextmanager
def quick_rounding() -> Iterator[None]:
    """Makes ONNX Runtime's tools round weights by the functions of this module."""
    with (
        patch.object(quant_utils, "quantize_nparray", rounded),
        patch.object(quant_utils, "compute_data_quant_params", parameters),
        patch.object(qdq_quantizer, "compute_data_quant_params", parameters),
    ):
        yield


def parameters(
    data: Array,
    quant_type: int,
    symmetric: bool,
    reduce_range: bool = False,
    *others: Any,
    **more: Any,
) -> tuple[Array, Array]:
    """Returns the zero point and the scale of a channel, as ``compute_data_quant_params`` does."""
    is_usual = symmetric and data.dtype == np.float32 and data.size and quant_type in _TYPES
    if is_usual and all(value is None for value in (*others, *more.values())):
        steps, zero_point = _steps(quant_type, reduce_range)
        scale = 2 * max(-float(data.min()), float(data.max())) / steps
        if _SCALES[0] < scale < _SCALES[1]:
            return zero_point, np.array(scale, np.float32)
    return _their_parameters(data, quant_type, symmetric, reduce_range, *others, **more)


@functools.cache
def _steps(quant_type: int, reduce_range: bool) -> tuple[float, Array]:
    """Returns how many steps a symmetric range has, and its zero point."""
    low, high = quant_utils.get_qmin_qmax_for_qType(quant_type, reduce_range, symmetric=True)
    zero_point, _ = _their_parameters(np.ones(1, np.float32), quant_type, True, reduce_range)
    return float(high) - float(low), zero_point


def rounded(
    quant_type: int, data: Array, scale: Array, zero_point: Array, *limits: Any, **more: Any
) -> Array:
    """Returns the values of a channel in steps of its scale, as ``quantize_nparray`` does."""
    kind = _TYPES.get(quant_type)
    if kind is None or limits or more or data.dtype != np.float32 or scale.dtype != np.float32:
        return _their_rounding(quant_type, data, scale, zero_point, *limits, **more)
    values = data / scale
    np.rint(values, out=values)
    values += zero_point
    limit = np.iinfo(kind)
    np.minimum(np.maximum(values, limit.min, out=values), limit.max, out=values)
    return values.astype(kind)
