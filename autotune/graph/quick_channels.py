"""ONNX Runtime's rounding of weights, quicker where each channel has a scale of its own.

Its tools compute the scale of each channel, and round each channel, in dozens of calls: for the
20,000 channels of a small transformer that took three seconds of the four that its file took to
make. The same numbers come out here.
"""

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

_EIGHT_BITS = (TensorProto.INT8, TensorProto.UINT8)
_TINY = np.finfo(np.float32).tiny

Parameters = tuple[NDArray[Any], NDArray[Any]]
"""A zero point and a scale."""


@contextlib.contextmanager
def quick_channels() -> Iterator[None]:
    """Makes the tools in this process round channels quickly; what else they do stays theirs."""
    from onnxruntime.quantization import qdq_quantizer, quant_utils

    original_parameters = quant_utils.compute_data_quant_params
    original_rounded = quant_utils.quantize_nparray

    def parameters(
        data: NDArray[Any],
        quant_type: int,
        symmetric: bool,
        reduce_range: bool = False,
        *more: Any,
        **others: Any,
    ) -> Parameters:
        is_usual = symmetric and quant_type in _EIGHT_BITS and data.dtype == np.float32
        is_limited = any(value is not None for value in (*more, *others.values()))
        largest = float(np.abs(data).max(initial=0.0))
        if not is_usual or is_limited or not np.isfinite(largest):
            usual: Parameters = original_parameters(
                data, quant_type, symmetric, reduce_range, *more, **others
            )
            return usual
        zero, steps = _zero_and_steps(quant_type, reduce_range)
        scale = 2 * largest / steps
        if scale < _TINY:
            return np.zeros((), zero.dtype), np.ones((), np.float32)
        return zero, np.array(scale, np.float32)

    def rounded(
        quant_type: int, data: NDArray[Any], scale: Any, zero: Any, *more: Any, **others: Any
    ) -> NDArray[Any]:
        if quant_type not in _EIGHT_BITS or more or others:
            usual: NDArray[Any] = original_rounded(quant_type, data, scale, zero, *more, **others)
            return usual
        kind = np.iinfo(np.int8 if quant_type == TensorProto.INT8 else np.uint8)
        values = np.asarray((data.astype(np.float32) / scale).round() + zero)
        return values.clip(kind.min, kind.max).astype(kind.dtype)

    with (
        patch.object(quant_utils, "compute_data_quant_params", parameters),
        patch.object(qdq_quantizer, "compute_data_quant_params", parameters),
        patch.object(quant_utils, "quantize_nparray", rounded),
    ):
        yield


@cache
def _zero_and_steps(quant_type: int, reduce_range: bool) -> tuple[NDArray[Any], float]:
    """Returns the zero point of symmetric weights, and the steps between their ends."""
    from onnxruntime.quantization.quant_utils import get_qmin_qmax_for_qType

    lowest, highest = get_qmin_qmax_for_qType(quant_type, reduce_range, symmetric=True)
    middle = np.round((lowest + highest) / 2.0)
    return np.array(middle, lowest.dtype), float(highest) - float(lowest)
