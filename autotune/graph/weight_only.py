"""Weights of matrix products in blocks of few bits; activations stay floats."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from autotune.facts.feeds import Feed
from autotune.facts.weights import fold_constants, quantisable_nodes
from autotune.graph import sensitivity, streamed_weights
from autotune.graph.entries import AS_PRECISION, StepRefusedError
from autotune.graph.intermediates import Intermediates
from autotune.graph.model_file import (
    LARGEST_PROTO_BYTES,
    is_large,
    remove_unused_weights,
    save,
    size_with_data,
)
from autotune.graph.sensitivity import Rounding
from autotune.graph.silence import silent_tools

# Larger models are not in memory as a whole, unless what is asked for needs all of it. That also
# takes a third of the time.
_STREAMED_BYTES = 1 << 27
# Up to here a weight that a node computes from constants is computed first, in memory.
_FOLDED_BYTES = 1 << 30
_FLOAT = "float"
_BITS = {"int8": 8, "int4": 4}


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
    zero_points: bool = False,
    rounding: str = "nearest",
    last_product: str = AS_PRECISION,
) -> None:
    """Writes the model with the weights of matrix products in blocks of `bits` bits.

    Args:
        bits: 4 or 8.
        accuracy_level: What ONNX Runtime may round activations to: 0 leaves them in fp32, 4 takes
            eight bits.
        rounding: How scales are found: ``nearest``, ``k_quant`` or ``hqq``.
        last_product: The precision of the last product, which gives a decoder's logits.

    Raises:
        StepRefusedError: there is nothing to quantise, or too much to rank.
    """
    forms: dict[str, Any] = {"block_size": block_size, "accuracy_level": accuracy_level}
    if _is_streamed(source, kept_in_float, rounding):
        _stream(source, target, last_product, bits, zero_points=zero_points, **forms)
        return
    model = onnx.load(source)
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
    last = _last_product(model)
    if last_product == _FLOAT:
        excluded.append(last)
    elif _BITS.get(last_product, bits) != bits and last not in excluded:
        others = [n.name for n in model.graph.node if n.op_type == "MatMul" and n.name != last]
        model = with_packed_weights(
            model, others, bits=_BITS[last_product], zero_points=zero_points, **forms
        )
    packed = with_packed_weights(
        model, excluded, bits=bits, zero_points=zero_points, rounding=rounding, **forms
    )
    save(packed, target)


def _is_streamed(source: Path, kept_in_float: int, rounding: str) -> bool:
    """Returns whether the model is written tensor by tensor.

    Raises:
        StepRefusedError: it would have to be, and what is asked for needs all of it.
    """
    size_bytes, has_inside = size_with_data(source), _has_products_inside(source)
    needs_whole = kept_in_float > 0 or rounding != "nearest"
    if needs_whole and size_bytes > LARGEST_PROTO_BYTES:
        raise StepRefusedError("a model over 2 GiB is rounded to the nearest, node by node")
    if rounding != "nearest" and has_inside:
        raise StepRefusedError("products inside branches and loops are rounded to the nearest")
    is_bulky = size_bytes > _STREAMED_BYTES and not _has_computed_weights(source)
    return not needs_whole and (has_inside or is_bulky)


def _has_products_inside(source: Path) -> bool:
    """Returns whether products in branches or bodies take weights of the main graph."""
    graph = onnx.load(source, load_external_data=False).graph
    tensors = {item.name: item for item in graph.initializer}
    outside = {node.output[0] for node in graph.node}
    return any(n.output[0] not in outside for n in streamed_weights.products(graph, tensors))


def _has_computed_weights(source: Path) -> bool:
    """Returns whether a node computes a weight of a matrix product from constants.

    Above a gigabyte that is not asked: such a weight stays as it is, unless it is a turned matrix.
    """
    if size_with_data(source) > _FOLDED_BYTES:
        return False
    graph = onnx.load(source, load_external_data=False).graph
    constants = {item.name for item in graph.initializer}
    made = {n.output[0] for n in graph.node if n.input and constants.issuperset(n.input)}
    return any(n.op_type in ("MatMul", "Gemm") and n.input[1] in made for n in graph.node)


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
    remove_unused_weights(graph)


def _last_product(model: onnx.ModelProto) -> str:
    """Returns the name of the last matrix product with a constant weight, in the main graph."""
    constants = {item.name for item in model.graph.initializer}
    products = [n for n in model.graph.node if n.op_type == "MatMul" and n.input[1] in constants]
    return products[-1].name if products else ""


def _stream(source: Path, target: Path, last_product: str, bits: int, **forms: Any) -> None:
    """Writes a model tensor by tensor, those that branches and bodies take too."""
    model = onnx.load(source, load_external_data=False)
    tensors = {item.name: item for item in model.graph.initializer}
    # both branches of a merged decoder take the same last weight
    weights = [node.input[1] for node in streamed_weights.products(model.graph, tensors)]
    last = weights[-1] if weights else ""

    def bits_of(node: onnx.NodeProto) -> int | None:
        if node.input[1] != last or last_product == AS_PRECISION:
            return bits
        return _BITS.get(last_product)

    streamed_weights.quantise(source, target, bits_of=bits_of, **forms)


def with_packed_weights(
    model: onnx.ModelProto,
    excluded: Sequence[str],
    *,
    bits: int = 8,
    block_size: int = 32,
    accuracy_level: int = 4,
    zero_points: bool = False,
    rounding: str = "nearest",
) -> onnx.ModelProto:
    """Returns the model with the weights of its MatMul nodes in blocks of `bits` bits.

    Args:
        model: The float model, its nodes named; changed in place.
    """
    from onnxruntime.quantization import matmul_nbits_quantizer as tools

    algorithm = None
    if rounding == "k_quant":
        algorithm = tools.KQuantWeightOnlyQuantConfig(op_types_to_quantize=("MatMul",))
    elif rounding == "hqq":
        algorithm = tools.HQQWeightOnlyQuantConfig(
            block_size=block_size, bits=bits, op_types_to_quantize=("MatMul",)
        )
    with silent_tools():
        quantizer = tools.MatMulNBitsQuantizer(
            model,
            bits=bits,
            block_size=block_size,
            is_symmetric=not zero_points,
            accuracy_level=accuracy_level,
            nodes_to_exclude=list(excluded),
            op_types_to_quantize=("MatMul",),
            algo_config=algorithm,
        )
        quantizer.process()
    packed: onnx.ModelProto = quantizer.model.model
    return packed
