"""Activations and weights in eight bits: static, dynamic, or both in one model.

The model is made ready first, and what is costly is kept for other graph halves
(:mod:`autotune.graph.float_model`). ONNX Runtime's own tools quantise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from autotune.facts.feeds import Feed
from autotune.facts.graphs import all_nodes
from autotune.facts.weights import embedding_nodes
from autotune.graph import quantisation, rounding, sensitivity
from autotune.graph.calibration import Ranges
from autotune.graph.entries import StepRefusedError
from autotune.graph.float_model import FloatModel, added_products
from autotune.graph.intermediates import Intermediates
from autotune.graph.precision_options import AS_PRECISION, BY_OUTPUTS, OFF, OPERATOR_GROUPS
from autotune.graph.quick_tools import quick_tools

# A convolution that is quantised at run time is slower than one in float.
_DYNAMIC_TYPES = ("MatMul", "LSTM", "Attention", "Gather", "EmbedLayerNormalization")
_DYNAMIC_RESULTS = frozenset({"MatMulInteger", "DynamicQuantizeLSTM", "QAttention"})
_MATRIX_PRODUCTS = OPERATOR_GROUPS["matmul"].types
_MATRIX_RANK = 2


@dataclass(frozen=True, kw_only=True)
class StaticOptions:
    """How a model gets weights and activations in eight bits.

    Attributes:
        calibration: How ranges are taken: one of :data:`autotune.graph.calibration.SOURCES`.
        per_channel: Whether each output channel of a weight has a scale of its own.
        reduce_range: Whether weights have seven bits, which do not saturate without VNNI.
        unsigned_weights: Whether weights are unsigned, which do not saturate without VNNI either.
        symmetric: Whether activations are signed, with zero in the middle.
        quantized_operators: A name of :data:`autotune.graph.precision_options.OPERATOR_GROUPS`.
        float_outputs: Whether matrix products write floats, so that their outputs are not rounded.
        kept_in_float: How many of the most sensitive nodes are left alone.
        ranking: What makes a node sensitive: the model's outputs, or its own (``nodes``).
        embeddings: What becomes of embeddings: ``as_precision`` quantises them with the other
            nodes where all types are, the other values leave them alone.
        smoothing: How much of the outliers of activations goes into weights.
        equalized: Whether the weights of consecutive convolutions get ranges of one size.
        clipped: Whether the largest weights are clipped for the others' sake.
        bias_corrected: Whether biases make up for what rounded weights shift.
        matrix_products: What becomes of matrix products that are not quantised with the others.
    """

    calibration: str = "minmax"
    per_channel: bool = False
    reduce_range: bool = False
    unsigned_weights: bool = False
    symmetric: bool = False
    quantized_operators: str = "all"
    float_outputs: bool = False
    kept_in_float: int = 0
    ranking: str = BY_OUTPUTS
    embeddings: str = AS_PRECISION
    smoothing: str = OFF
    equalized: bool = False
    clipped: bool = False
    bias_corrected: bool = False
    matrix_products: str = "float"

    @property
    def types(self) -> tuple[str, ...]:
        """Types of the nodes that are quantised; none means all that can be."""
        return OPERATOR_GROUPS[self.quantized_operators].types

    @property
    def weighted_types(self) -> tuple[str, ...]:
        """Those of them that have weights."""
        return self.types or sensitivity.QUANTISABLE

    @property
    def ranked_types(self) -> tuple[str, ...]:
        """Types of the nodes that may stay in float, those of ``matrix_products`` among them."""
        apart = () if self.matrix_products == "float" else _MATRIX_PRODUCTS
        return (*self.weighted_types, *apart)

    @property
    def weights(self) -> dict[str, bool]:
        """What weights become, as :mod:`autotune.graph.rounding` takes it."""
        return {
            "per_channel": self.per_channel,
            "reduce_range": self.reduce_range,
            "unsigned": self.unsigned_weights,
        }


def static(
    source: Path,
    target: Path,
    samples: Sequence[Feed],
    *,
    shared: Intermediates | None = None,
    **options: Any,
) -> None:
    """Writes the model with activations and weights in eight bits (QDQ).

    Args:
        source: The float model.
        target: Where to write.
        samples: What the ranges of activations are taken from.
        shared: What other graph halves of the model made.
        options: Fields of :class:`StaticOptions`.

    Raises:
        StepRefusedError: there is nothing to quantise, or the model cannot be made ready.
    """
    how = StaticOptions(**options)
    ready = FloatModel.ready(source, samples, shared or Intermediates())
    if not sensitivity.quantisable(ready.load(), how.weighted_types):
        raise StepRefusedError("there is no node with a constant weight to quantise")
    adjusted = (ready.equalised() if how.equalized else ready).smoothed(how.smoothing)
    in_float = adjusted.most_sensitive(how.ranked_types, how.kept_in_float, how.ranking)
    model = adjusted.load()
    ranges = adjusted.ranges(how.calibration, target.with_name("calibrated.onnx"))
    in_float = [*in_float, *_nodes_without_range(model, ranges)]
    if how.per_channel:
        in_float += _stacked_products(model)
    names = set(sensitivity.quantisable(model, how.weighted_types)) - set(in_float)
    products = set(sensitivity.quantisable(model, _MATRIX_PRODUCTS)) - set(in_float)
    if not names | products:
        raise StepRefusedError("there is no node left that can be quantised")
    if how.clipped:
        too = products if how.matrix_products == "int8_dynamic" else set()
        rounding.clip(model, names | too, **how.weights)
    if how.bias_corrected:
        rounding.correct_bias(model, adjusted.inputs(), names, **how.weights)
    left_alone = [*in_float, *_embeddings_apart(model, how.embeddings)]
    _quantise_statically(model, target, ranges, left_alone, how)
    if how.matrix_products == "int8_dynamic" and products:
        half = target.with_name("half.onnx")
        target.replace(half)
        _quantise_dynamically(half, target, left_alone=left_alone, **how.weights)
        half.unlink()
    elif how.matrix_products == "int8_weights" and products:
        onnx.save(quantisation.with_packed_weights(onnx.load(target), left_alone), target)


def _embeddings_apart(model: onnx.ModelProto, embeddings: str) -> list[str]:
    """Returns the names of the embeddings that are not quantised with the other nodes."""
    if embeddings == AS_PRECISION:
        return []
    return [node.name for node in embedding_nodes(model.graph)]


def _stacked_products(model: onnx.ModelProto) -> list[str]:
    """Returns the names of matrix products whose weight is a stack of matrices, or a vector.

    ONNX Runtime takes one scale for such a weight, and none for each channel.
    """
    return [
        target.node.name
        for target in sensitivity.targets(model, ("MatMul",))
        if target.weight.ndim != _MATRIX_RANK
    ]


def _nodes_without_range(model: onnx.ModelProto, ranges: Ranges) -> list[str]:
    """Returns the names of the nodes that take or make values that are not finite.

    Such are the sums with a mask of minus infinity. No scale holds them.
    """
    endless = {name for name, (_, low, high) in ranges.items() if not _are_finite(low, high)}
    endless |= {
        item.name
        for item in model.graph.initializer
        if item.data_type == onnx.TensorProto.FLOAT and not _are_finite(numpy_helper.to_array(item))
    }
    return [
        node.name
        for node in model.graph.node
        if not endless.isdisjoint((*node.input, *node.output))
    ]


def _are_finite(*values: Any) -> bool:
    return all(np.isfinite(value).all() for value in values)


def _quantise_statically(
    model: onnx.ModelProto,
    target: Path,
    ranges: Ranges,
    left_alone: Sequence[str],
    how: StaticOptions,
) -> None:
    """Writes the model with quantised nodes, none of them in `left_alone`."""
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.calibrate import TensorData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    with quantisation.silent_tools(), quick_tools():
        quantizer = QDQQuantizer(
            model,
            how.per_channel,
            how.reduce_range,
            QuantType.QUInt8 if how.unsigned_weights else QuantType.QInt8,
            QuantType.QInt8 if how.symmetric else QuantType.QUInt8,
            {
                name: TensorData(lowest=np.array(low, kind), highest=np.array(high, kind))
                for name, (kind, low, high) in ranges.items()
                if _are_finite(low, high)
            },
            [],
            [*left_alone, *added_products(model)],
            list(how.types) or quantisation.quantisable_types(),
            {
                "ActivationSymmetric": how.symmetric,
                # convolutions take one zero for all channels
                "WeightSymmetric": True,
                # it compares arrays as if they were numbers where a MatMul has scales per channel
                "QDQDisableWeightAdjustForInt32Bias": how.per_channel,
                "OpTypesToExcludeOutputQuantization": (
                    _MATRIX_PRODUCTS if how.float_outputs else ()
                ),
            },
        )
        quantizer.quantize_model()
        if added := added_products(model):
            _read_unrounded(quantizer.model.model, added)
        quantizer.model.save_model_to_file(str(target))


def _read_unrounded(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Makes these nodes take what is rounded for others as it was before.

    ONNX Runtime's tools give the rounded tensor to all that take it. What smoothing divides must
    not be rounded before, because that would undo it.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.name not in names:
            continue
        back = makers.get(node.input[0])
        if back is not None and back.op_type == "DequantizeLinear":
            rounding_node = makers.get(back.input[0])
            if rounding_node is not None and rounding_node.op_type == "QuantizeLinear":
                node.input[0] = rounding_node.input[0]
    # what nobody takes rounded any more need not be rounded; ONNX Runtime would go on doing so
    for operator in ("DequantizeLinear", "QuantizeLinear"):
        taken = {name for node in all_nodes(model.graph) for name in node.input}
        taken |= {item.name for item in model.graph.output}
        for node in [n for n in model.graph.node if n.op_type == operator]:
            if taken.isdisjoint(node.output):
                model.graph.node.remove(node)


def dynamic(
    source: Path,
    target: Path,
    samples: Sequence[Feed],
    *,
    shared: Intermediates | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    unsigned_weights: bool = False,
    kept_in_float: int = 0,
    ranking: str = BY_OUTPUTS,
    embeddings: str = AS_PRECISION,
    smoothing: str = OFF,
    clipped: bool = False,
) -> None:
    """Writes the model with eight-bit weights, and activations that are rounded at run time.

    Convolutions stay in float. Products in the branches and bodies of other nodes are quantised
    too. See :class:`StaticOptions` for the options.

    Raises:
        StepRefusedError: there is nothing to quantise, or the model cannot be made ready.
    """
    adjusted = FloatModel.ready(source, samples, shared or Intermediates()).smoothed(smoothing)
    weights = {
        "per_channel": per_channel,
        "reduce_range": reduce_range,
        "unsigned": unsigned_weights,
    }
    in_float = adjusted.most_sensitive(_MATRIX_PRODUCTS, kept_in_float, ranking)
    model = adjusted.load()
    if per_channel:
        in_float = [*in_float, *_stacked_products(model)]
    apart = _embeddings_apart(model, embeddings)
    if clipped:
        names = set(sensitivity.quantisable(model, _MATRIX_PRODUCTS)) - set(in_float)
        rounding.clip(model, names, **weights)
    copy = target.with_name("float.onnx")
    onnx.save(model, copy)
    _quantise_dynamically(copy, target, left_alone=[*in_float, *apart], **weights)
    copy.unlink()


def _quantise_dynamically(
    source: Path,
    target: Path,
    *,
    left_alone: Sequence[str],
    per_channel: bool,
    reduce_range: bool,
    unsigned: bool,
) -> None:
    """Writes the model with quantised matrix products and embeddings, none of them in `left_alone`.

    Raises:
        StepRefusedError: there is nothing to quantise.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with quantisation.silent_tools(), quick_tools():
        quantize_dynamic(
            source,
            target,
            op_types_to_quantize=list(_DYNAMIC_TYPES),
            per_channel=per_channel,
            reduce_range=reduce_range,
            weight_type=QuantType.QUInt8 if unsigned else QuantType.QInt8,
            # a Gemm becomes a MatMul of this name first
            nodes_to_exclude=[*left_alone, *(f"{name}_MatMul" for name in left_alone)],
            extra_options={
                "MatMulConstBOnly": True,
                "EnableSubgraph": True,
                "WeightSymmetric": True,
            },
        )
    written = onnx.load(target, load_external_data=False).graph
    if _DYNAMIC_RESULTS.isdisjoint(node.op_type for node in all_nodes(written)):
        raise StepRefusedError("there is no matrix product or LSTM to quantise")
