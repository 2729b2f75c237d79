"""Eight-bit products in a model's file that a processor without VNNI computes wrongly.

AVX2 multiplies unsigned by signed eight-bit numbers and adds two neighbouring products in 16 bits
(``vpmaddubsw``): 255 * 127 * 2 does not fit. With weights up to 64 nothing overflows. ONNX Runtime
makes signed activations between QuantizeLinear and DequantizeLinear unsigned on x86
(``QDQS8ToU8Transformer``), so there the type of the activations decides nothing.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from autotune.facts.graphs import RUNTIME_DOMAIN, all_graphs, all_nodes, operator_of

_LARGEST_SAFE = 64
_NHWC_CONVOLUTION = f"{RUNTIME_DOMAIN}.QLinearConv"
_DEQUANTISE = ("DequantizeLinear", f"{RUNTIME_DOMAIN}.DequantizeLinear")
_QDQ_PRODUCTS = frozenset({"Conv", "MatMul", "Gemm"})
# Positions of the weights and of the zero point of the activations.
_INTEGER_PRODUCTS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", _NHWC_CONVOLUTION), (3, 2)),
    f"{RUNTIME_DOMAIN}.QGemm": (3, 2),
    **dict.fromkeys(("MatMulInteger", "ConvInteger"), (1, 2)),
    f"{RUNTIME_DOMAIN}.DynamicQuantizeMatMul": (1, -1),
    f"{RUNTIME_DOMAIN}.MatMulIntegerToFloat": (1, -1),
    f"{RUNTIME_DOMAIN}.DynamicQuantizeLSTM": (1, -1),
    f"{RUNTIME_DOMAIN}.QAttention": (1, -1),
}


class SignedProduct(NamedTuple):
    """A product of unsigned eight-bit activations and signed eight-bit weights.

    Attributes:
        weights: How many numbers its weight has.
        large: How many of them are beyond 64, so that sums may overflow.
    """

    node: onnx.NodeProto
    weights: int
    large: int


def signed_products(model: onnx.ModelProto, folder: Path) -> Iterator[SignedProduct]:
    """Yields the products of the model, branches and loop bodies included.

    Args:
        model: The model, with or without its external data in memory.
    """
    graphs = list(all_graphs(model.graph))
    # a branch takes weights of the graphs around it
    constants = {item.name: item for graph in graphs for item in graph.initializer}
    producers = {name: node for graph in graphs for node in graph.node for name in node.output}
    for node in all_nodes(model.graph):
        weight = _signed_weight(node, constants, producers)
        if weight is not None:
            array = numpy_helper.to_array(weight, str(folder)).astype(np.int16)
            yield SignedProduct(node, array.size, int((np.abs(array) > _LARGEST_SAFE).sum()))


def exactness_reaches(product: SignedProduct) -> bool:
    """Returns whether ``session.x64quantprecision`` makes the product exact.

    ONNX Runtime leaves out the convolutions that it has turned to the layout NHWC itself
    (``Avx2WeightS8ToU8Transformer`` of 1.32).
    """
    return operator_of(product.node) != _NHWC_CONVOLUTION


def _signed_weight(
    node: onnx.NodeProto,
    constants: Mapping[str, TensorProto],
    producers: Mapping[str, onnx.NodeProto],
) -> TensorProto | None:
    """Returns the int8 weight of a product with uint8 activations; None for any other node."""
    if operator_of(node) in _INTEGER_PRODUCTS:
        place, zero_place = _INTEGER_PRODUCTS[operator_of(node)]
        weight = constants.get(_input(node, place))
        zero = constants.get(_input(node, zero_place))
        # activations without a zero point among the constants are unsigned: so ONNX defines it
        if zero is not None and zero.data_type != TensorProto.UINT8:
            return None
    elif operator_of(node) in _QDQ_PRODUCTS:
        pair = [producers.get(name) for name in node.input[:2]]
        if any(producer is None or operator_of(producer) not in _DEQUANTISE for producer in pair):
            return None
        dequantised = pair[1]
        assert dequantised is not None
        weight = constants.get(dequantised.input[0])
    else:
        return None
    return weight if weight is not None and weight.data_type == TensorProto.INT8 else None


def _input(node: onnx.NodeProto, place: int) -> str:
    return node.input[place] if 0 <= place < len(node.input) else ""
