"""ONNX Runtime's quantisation tools, quicker where most of their time went.

They round the weights of each channel in dozens of calls, and look through all nodes for each
tensor. For the 20,000 channels of a small transformer that took three of the four seconds that its
file took to make. The file that comes out is the same, byte for byte.
"""

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

_EIGHT_BITS = (TensorProto.INT8, TensorProto.UINT8)
_TINY = np.finfo(np.float32).tiny

Array = NDArray[Any]


@contextlib.contextmanager
def quick_tools() -> Iterator[None]:
    """Makes the tools in this process quicker: for weights in eight bits, a scale per channel.

    What else they do stays theirs. A context serves one model.
    """
    with _quick_dynamic(), _quick_static(), _quick_inputs():
        yield


@contextlib.contextmanager
def _quick_dynamic() -> Iterator[None]:
    """Rounds all channels of a weight at once in dynamic quantisation."""
    from onnxruntime.quantization.onnx_quantizer import ONNXQuantizer

    original = ONNXQuantizer.quantize_weight_per_channel_impl

    def add_rounded(
        quantizer: Any,
        name: str,
        quant_type: int,
        axis: int,
        reduce_range: bool = True,
        *more: Any,
        **others: Any,
    ) -> tuple[str, str, str]:
        """Adds the weight, its zero points and its scales to the model."""
        weight = quantizer.model.get_initializer(name)
        largest = None
        if (
            not any((*more, *others.values()))
            and quantizer.is_weight_symmetric(quant_type)
            and _is_usual(quantizer, name, quant_type)
        ):
            largest = _largest(weight, axis)
        if largest is None:
            names: tuple[str, str, str] = original(
                quantizer, name, quant_type, axis, reduce_range, *more, **others
            )
            return names
        zeros, scales = _parameters(largest, quant_type, quantizer.reduce_range and reduce_range)
        rounded = _rounded(numpy_helper.to_array(weight), quant_type, zeros, scales, axis)
        added = _rounded_name(name), f"{name}_zero_point", f"{name}_scale"
        shape = [len(scales)]
        quantizer.model.initializer_extend(
            [
                helper.make_tensor(added[2], TensorProto.FLOAT, shape, scales.tolist()),
                helper.make_tensor(added[1], quant_type, shape, zeros.tolist()),
                numpy_helper.from_array(rounded, added[0]),
            ]
        )
        return added

    with patch.object(ONNXQuantizer, "quantize_weight_per_channel_impl", add_rounded):
        yield


@contextlib.contextmanager
def _quick_static() -> Iterator[None]:
    """Rounds all channels of a weight at once in static quantisation."""
    from onnxruntime.quantization import qdq_quantizer
    from onnxruntime.quantization.base_quantizer import QuantizationParams

    quantizer_class, weight_kind = (
        qdq_quantizer.QDQQuantizer,
        qdq_quantizer.QDQQuantTensorType.WEIGHT,
    )
    original_parameters = quantizer_class._calc_initializer_quant_params  # noqa: SLF001
    original_rounded = qdq_quantizer.quantize_onnx_initializer

    def parameters(quantizer: Any) -> dict[str, Any]:
        """Returns the zero points and the scales of all weights."""
        quick, rest = {}, {}
        for name, asked in quantizer.tensors_to_quantize.items():
            is_weight = asked.tensor_type is weight_kind
            quant_type = quantizer.weight_qType if is_weight else quantizer.activation_qType
            weight: Any = None
            largest: Array | None = None
            if asked.axis is not None and _is_usual(quantizer, name, quant_type):
                weight = quantizer.model.get_initializer(name)
                largest = _largest(weight, asked.axis)
            if largest is None:
                rest[name] = asked
                continue
            zeros, scales = _parameters(largest, quant_type, quantizer.reduce_range)
            axis = asked.axis % len(weight.dims)
            quick[name] = QuantizationParams(
                zero_point=zeros, scale=scales, quant_type=quant_type, axis=axis
            )
        with patch.object(quantizer, "tensors_to_quantize", rest):
            return {**original_parameters(quantizer), **quick}

    def rounded(
        weight: TensorProto,
        quant_type: int,
        zeros: Array,
        scales: Array,
        axis: int | None = None,
        **others: Any,
    ) -> TensorProto:
        """Returns a rounded weight."""
        is_usual = weight.data_type == TensorProto.FLOAT and quant_type in _EIGHT_BITS
        if axis is None or not is_usual or any(others.values()):
            usual: TensorProto = original_rounded(weight, quant_type, zeros, scales, axis, **others)
            return usual
        values = _rounded(numpy_helper.to_array(weight), quant_type, zeros, scales, axis)
        return numpy_helper.from_array(values, _rounded_name(weight.name))

    with (
        patch.object(quantizer_class, "_calc_initializer_quant_params", parameters),
        patch.object(qdq_quantizer, "quantize_onnx_initializer", rounded),
    ):
        yield


@contextlib.contextmanager
def _quick_inputs() -> Iterator[None]:
    """Finds the nodes that take a tensor without looking through all of them."""
    from onnxruntime.quantization.onnx_model import ONNXModel

    takers = _Takers()

    def replace_input(model: Any, old: str, new: str) -> None:
        takers.replace(model.model.graph, old, new)

    with patch.object(ONNXModel, "replace_input_of_all_nodes", replace_input):
        yield


class _Takers:
    """The nodes that take each tensor, while nodes are added to a graph."""

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._by_tensor: dict[str, list[NodeProto]] = defaultdict(list)

    def replace(self, graph: GraphProto, old: str, new: str) -> None:
        """Makes the nodes of the main graph that take `old` take `new`."""
        self._follow(graph)
        for node in self._by_tensor.pop(old, ()):
            # another tool may have changed its inputs since
            for i, name in enumerate(node.input):
                if name == old:
                    node.input[i] = new
                    self._by_tensor[new].append(node)

    def _follow(self, graph: GraphProto) -> None:
        """Takes in the nodes that were added; all of them where others were removed."""
        known = len(self._nodes)
        if known and (known > len(graph.node) or graph.node[known - 1] is not self._nodes[-1]):
            self._nodes, self._by_tensor, known = [], defaultdict(list), 0
        for node in graph.node[known:]:
            self._nodes.append(node)
            for name in set(node.input):
                self._by_tensor[name].append(node)


def _rounded_name(name: str) -> str:
    """Returns what the tools call a weight once it is rounded."""
    from onnxruntime.quantization.quant_utils import TENSOR_NAME_QUANT_SUFFIX

    return f"{name}{TENSOR_NAME_QUANT_SUFFIX}"


def _is_usual(quantizer: Any, name: str, quant_type: int) -> bool:
    """Returns whether nothing but the largest weight of each channel decides on its scale."""
    return (
        quant_type in _EIGHT_BITS
        and quantizer.min_real_range is None
        and not quantizer.tensor_quant_overrides.get(name)
        and not getattr(quantizer, "block_size", 0)
    )


def _largest(weight: TensorProto | None, axis: int) -> Array | None:
    """Returns the largest magnitude of each channel.

    None where the tools have more to say: to other types, empty channels, and values that are not
    finite.
    """
    if weight is None or weight.data_type != TensorProto.FLOAT:
        return None
    weights = numpy_helper.to_array(weight)
    if not weights.size or not -weights.ndim <= axis < weights.ndim:
        return None
    around = tuple(i for i in range(weights.ndim) if i != axis % weights.ndim)
    largest: Array = np.maximum(weights.max(around), -weights.min(around))
    return largest if np.isfinite(largest).all() else None


def _parameters(largest: Array, quant_type: int, reduce_range: bool) -> tuple[Array, Array]:
    """Returns the zero point and the scale of each channel, symmetric around zero."""
    from onnxruntime.quantization.quant_utils import get_qmin_qmax_for_qType

    low, high = get_qmin_qmax_for_qType(quant_type, reduce_range, symmetric=True)
    zero = np.round((low + high) / 2.0).astype(low.dtype)
    scales = 2 * largest.astype(np.float64) / (float(high) - float(low))
    is_none = scales < _TINY
    zeros = np.where(is_none, low.dtype.type(0), zero)
    return zeros, np.where(is_none, 1.0, scales).astype(np.float32)


def _rounded(weights: Array, quant_type: int, zeros: Array, scales: Array, axis: int) -> Array:
    """Returns weights in eight bits, with the zero point and the scale of their channel."""
    kind = np.iinfo(np.int8 if quant_type == TensorProto.INT8 else np.uint8)
    shape = [1] * weights.ndim
    shape[axis] = -1
    values = weights / scales.reshape(shape)
    values.round(out=values)
    values += zeros.reshape(shape)
    return values.clip(kind.min, kind.max, out=values).astype(kind.dtype)
