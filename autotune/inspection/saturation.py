"""Quantised products that a processor without VNNI computes wrongly, found in the file.

AVX2 multiplies unsigned by signed eight-bit numbers and adds two neighbouring products in 16 bits
(``vpmaddubsw``): 255 * 127 * 2 does not fit. With weights up to 64 nothing overflows.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from autotune.facts.graphs import all_graphs
from autotune.inspection.reading import Saturation

_LARGEST_SAFE = 64
_QDQ_PRODUCTS = frozenset({"Conv", "MatMul", "Gemm"})
# Positions of the weights and of the zero point of the activations.
_INTEGER_PRODUCTS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QGemm"), (3, 2)),
    **dict.fromkeys(("MatMulInteger", "ConvInteger"), (1, 2)),
    **dict.fromkeys(("DynamicQuantizeMatMul", "MatMulIntegerToFloat"), (1, -1)),
}


def saturation(model: onnx.ModelProto, folder: Path) -> Saturation:
    """Returns which quantised products of the model may saturate.

    Args:
        model: The model, with or without its external data in memory.
        folder: Folder of the external data.
    """
    products = large = numbers = 0
    for graph in all_graphs(model.graph):
        constants = {item.name: item for item in graph.initializer}
        makers = {name: node for node in graph.node for name in node.output}
        for node in graph.node:
            weight = _signed_weight(node, constants, makers)
            if weight is None:
                continue
            array = numpy_helper.to_array(weight, str(folder)).astype(np.int16)
            products += 1
            numbers += array.size
            large += int((np.abs(array) > _LARGEST_SAFE).sum())
    return Saturation(
        products=products if large else 0, large_share=large / numbers if numbers else 0.0
    )


def _signed_weight(
    node: onnx.NodeProto,
    constants: Mapping[str, TensorProto],
    makers: Mapping[str, onnx.NodeProto],
) -> TensorProto | None:
    """Returns the int8 weight of a product with uint8 activations; None for any other node."""
    if node.op_type in _INTEGER_PRODUCTS:
        place, zero_place = _INTEGER_PRODUCTS[node.op_type]
        weight = constants.get(node.input[place])
        zero = constants.get(_name(node, zero_place))
    elif node.op_type in _QDQ_PRODUCTS:
        pair = [makers.get(name) for name in node.input[:2]]
        if any(maker is None or maker.op_type != "DequantizeLinear" for maker in pair):
            return None
        activation, dequantised = pair
        assert activation is not None
        assert dequantised is not None
        weight = constants.get(dequantised.input[0])
        zero = constants.get(_name(activation, 2))
    else:
        return None
    if weight is None or weight.data_type != TensorProto.INT8:
        return None
    # activations without a zero point among the constants are unsigned: so ONNX defines it
    is_unsigned = zero is None or zero.data_type == TensorProto.UINT8
    return weight if is_unsigned else None


def _name(node: onnx.NodeProto, place: int) -> str:
    return node.input[place] if 0 <= place < len(node.input) else ""
