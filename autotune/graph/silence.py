"""ONNX Runtime's quantisation tools: silent, and with all channels of a weight rounded at once.

What they print and log is of no use to a user. They round one channel after another in Python,
which takes more than half of the time of a file.
"""

import contextlib
import io
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]

_TINY = float(np.finfo(np.float32).tiny)
_INTEGERS: dict[int, str] = {TensorProto.INT8: "int8", TensorProto.UINT8: "uint8"}


@contextlib.contextmanager
def silent_tools() -> Iterator[None]:
    """Suppresses what the tools print and log, and rounds the weights in their place."""
    from onnxruntime.quantization import base_quantizer, qdq_quantizer

    places = (
        (base_quantizer.BaseQuantizer, "quantize_weight_per_channel_impl", _quick_weights),
        (qdq_quantizer, "compute_data_quant_params", _quick_steps),
        (qdq_quantizer, "quantize_onnx_initializer", _quick_initializers),
    )
    originals = [getattr(place, name) for place, name, _ in places]
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        for (place, name, quick), original in zip(places, originals, strict=True):
            setattr(place, name, quick(original))
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        for (place, name, _), original in zip(places, originals, strict=True):
            setattr(place, name, original)
        logging.disable(level)


def _quick_weights(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what writes a weight with a scale for each channel, as the tools' method does."""

    def write(
        quantizer: Any, name: str, kind: int, axis: int, reduce_range: bool = True, *rest: Any
    ) -> tuple[str, str, str]:
        from onnxruntime.quantization.quant_utils import find_by_name

        weight = find_by_name(name, quantizer.model.initializer())
        is_usual = kind in _INTEGERS and quantizer.is_weight_symmetric(kind) and not any(rest)
        if not is_usual or weight is None or weight.data_type != TensorProto.FLOAT:
            return original(quantizer, name, kind, axis, reduce_range, *rest)  # type: ignore[no-any-return]
        values = numpy_helper.to_array(weight)
        axis %= values.ndim
        largest = np.abs(values).max(tuple(i for i in range(values.ndim) if i != axis), initial=0)
        zeros, steps = _steps(largest, kind, quantizer.reduce_range and reduce_range)
        written = (f"{name}_quantized", f"{name}_zero_point", f"{name}_scale")
        sizes = [len(steps)]
        quantizer.model.initializer_extend(
            [
                helper.make_tensor(written[2], weight.data_type, sizes, steps.tolist()),
                helper.make_tensor(written[1], kind, sizes, zeros.tolist()),
                numpy_helper.from_array(_rounded(values, kind, steps, zeros, axis), written[0]),
            ]
        )
        return written

    return write


def _quick_steps(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what finds the zero and the step of some weights, as the tools' function does."""

    def found(
        data: Array, kind: int, symmetric: bool, reduce_range: bool = False, **named: Any
    ) -> tuple[Array, Array]:
        is_usual = kind in _INTEGERS and symmetric and data.dtype == np.float32 and data.size
        if not is_usual or any(value is not None for value in named.values()):
            made: tuple[Array, Array] = original(data, kind, symmetric, reduce_range, **named)
            return made
        return _steps(np.abs(data).max(), kind, reduce_range)

    return found


def _quick_initializers(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what rounds an initializer, as the tools' function does."""

    def rounded(
        weight: onnx.TensorProto,
        kind: int,
        zeros: Array,
        steps: Array,
        axis: int | None = None,
        name: str | None = None,
        *rest: Any,
        **named: Any,
    ) -> onnx.TensorProto:
        is_usual = kind in _INTEGERS and weight.data_type == TensorProto.FLOAT
        if axis is None or not is_usual or any((*rest, *named.values())):
            made: onnx.TensorProto = original(
                weight, kind, zeros, steps, axis, name, *rest, **named
            )
            return made
        values = _rounded(numpy_helper.to_array(weight), kind, steps, zeros, axis)
        return numpy_helper.from_array(values, name or f"{weight.name}_quantized")

    return rounded


def _steps(largest: Array, kind: int, reduce_range: bool) -> tuple[Array, Array]:
    """Returns the zero and the step of weights up to these sizes, of each channel or of one.

    Raises:
        ValueError: a size is no number.
    """
    from onnxruntime.quantization.quant_utils import get_qmin_qmax_for_qType

    low, high = map(int, get_qmin_qmax_for_qType(kind, reduce_range, symmetric=True))
    steps = 2 * largest.astype(np.float64) / (high - low)
    if not (steps >= 0).all():
        raise ValueError("a weight has values that are no numbers")
    is_tiny = steps < _TINY
    zeros = np.where(is_tiny, 0, round((low + high) / 2)).astype(_INTEGERS[kind])
    return zeros, np.where(is_tiny, 1, steps).astype(np.float32)


def _rounded(values: Array, kind: int, steps: Array, zeros: Array, axis: int) -> Array:
    """Returns the numbers in eight bits, those of each channel by its own step and zero."""
    shape = [1] * values.ndim
    shape[axis] = -1
    bounds = np.iinfo(_INTEGERS[kind])
    rounded = (values / steps.reshape(shape)).round() + zeros.reshape(shape)
    return np.clip(rounded, bounds.min, bounds.max).astype(bounds.dtype)
