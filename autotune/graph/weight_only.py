"""Weights of matrix products in blocks of few bits; activations stay floats."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

from autotune.facts.feeds import Feed
from autotune.facts.graphs import all_nodes
from autotune.facts.weights import fold_constants, quantisable_nodes
from autotune.graph import sensitivity
from autotune.graph.entries import StepRefusedError
from autotune.graph.intermediates import Intermediates
from autotune.graph.model_file import is_large, load, save
from autotune.graph.sensitivity import Rounding
from autotune.graph.silence import silent_tools


def quantise(
    source: Path,
    target: Path,
    samples: Sequence[Feed],
    *,
    shared: Intermediates | None = None,
    bits: int = 8,
    block_size: int = 32,
    accuracy_level: int = 4,
    kept_in_float: int = 0,
) -> None:
    """Writes the model with the weights of matrix products in blocks of `bits` bits.

    Args:
        source: The float model.
        target: Where to write.
        samples: For the ranking of nodes.
        shared: What other sets of graph parameters of the model made.
        bits: 4 or 8.
        block_size: How many weights share a scale.
        accuracy_level: What ONNX Runtime may round activations to: 0 leaves them in fp32, 4 takes
            eight bits.
        kept_in_float: How many of the most sensitive nodes are excluded.

    Raises:
        StepRefusedError: there is nothing to quantise, or too much to rank.
    """
    model = load(source)
    fold_constants(model)
    sensitivity.name_nodes(model)
    _split_gemm(model.graph)
    if not any(counts["MatMul"] for counts in quantisable_nodes(model.graph)):
        raise StepRefusedError("there is no matrix product with a constant weight")
    excluded: list[str] = []
    if kept_in_float and is_large(model):
        raise StepRefusedError("the nodes of a model over 2 GiB cannot be ranked")
    if kept_in_float:
        # the file of the other precisions has Gemm where this one has MatMul and Add
        names = sensitivity.ranked(
            "weights",
            shared or Intermediates(),
            model,
            samples,
            types=("MatMul",),
            rounding=Rounding(bits=bits, block=block_size, activations=False),
        )
        excluded = names[:kept_in_float]
    packed = with_packed_weights(
        model, excluded, bits=bits, block_size=block_size, accuracy_level=accuracy_level
    )
    save(packed, target)


def _split_gemm(graph: onnx.GraphProto) -> None:
    """Makes a MatMul and an Add of each Gemm of the main graph with a constant weight.

    ONNX Runtime packs the weights of a MatMul alone. A Gemm that transposes its input or has
    factors stays as it is.
    """
    weights = {item.name: item for item in graph.initializer}
    written: list[onnx.NodeProto] = []
    for node in graph.node:
        own = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        factors = {own.get("alpha", 1.0), own.get("beta", 1.0)}
        weight = weights.get(node.input[1]) if node.op_type == "Gemm" else None
        if weight is None or own.get("transA", 0) or factors != {1.0}:
            written.append(node)
            continue
        name = node.input[1]
        if own.get("transB", 0):
            name = f"{node.name}_transposed"
            array = np.ascontiguousarray(onnx.numpy_helper.to_array(weight).T)
            graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        bias = [item for item in node.input[2:] if item]
        product = f"{node.name}_product" if bias else node.output[0]
        written.append(onnx.helper.make_node("MatMul", [node.input[0], name], [product], node.name))
        if bias:
            outputs = list(node.output)
            written.append(
                onnx.helper.make_node("Add", [product, *bias], outputs, f"{product}_sum")
            )
    del graph.node[:]
    graph.node.extend(written)
    taken = {name for node in all_nodes(graph) for name in node.input}
    taken |= {item.name for item in graph.output}
    for name in weights.keys() - taken:
        graph.initializer.remove(weights[name])


def with_packed_weights(
    model: onnx.ModelProto,
    excluded: Sequence[str],
    *,
    bits: int = 8,
    block_size: int = 32,
    accuracy_level: int = 4,
) -> onnx.ModelProto:
    """Returns the model with the weights of its MatMul nodes in blocks of `bits` bits.

    Args:
        model: The float model, its nodes named; changed in place.
        excluded: Names of the nodes that stay as they are.
        bits: 4 or 8.
        block_size: How many weights share a scale.
        accuracy_level: What ONNX Runtime may round activations to.
    """
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    with silent_tools():
        quantizer = MatMulNBitsQuantizer(
            model,
            bits=bits,
            block_size=block_size,
            is_symmetric=True,
            accuracy_level=accuracy_level,
            nodes_to_exclude=list(excluded),
            op_types_to_quantize=("MatMul",),
        )
        quantizer.process()
    packed: onnx.ModelProto = quantizer.model.model
    return packed
