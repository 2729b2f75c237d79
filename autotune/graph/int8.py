"""Activations and weights in eight bits: static, dynamic, or both in one model.

The model is made ready first, and what is costly is kept for other graph halves
(:mod:`autotune.graph.float_model`). ONNX Runtime's own tools quantise.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from autotune.facts.feeds import Feed
from autotune.facts.graphs import all_nodes
from autotune.graph import quantisation, rounding, sensitivity
from autotune.graph.entries import StepRefusedError
from autotune.graph.float_model import OFF, FloatModel, added_products
from autotune.graph.intermediates import Intermediates
from autotune.graph.precision_options import OPERATOR_GROUPS

# A convolution that is quantised at run time is slower than one in float.
_DYNAMIC_TYPES = ("MatMul", "LSTM", "Attention", "Gather", "EmbedLayerNormalization")
_DYNAMIC_RESULTS = frozenset({"MatMulInteger", "DynamicQuantizeLSTM", "QAttention"})
_MATRIX_PRODUCTS = OPERATOR_GROUPS["matmul"].types


def static(
    source: Path,
    target: Path,
    samples: Sequence[Feed],
    *,
    shared: Intermediates | None = None,
    calibration: str = "minmax",
    per_channel: bool = False,
    reduce_range: bool = False,
    symmetric: bool = False,
    quantized_operators: str = "all",
    float_outputs: bool = False,
    kept_in_float: int = 0,
    smoothing: str = OFF,
    equalized: bool = False,
    clipped: bool = False,
    bias_corrected: bool = False,
    matrix_products: str = "float",
) -> None:
    """Writes the model with activations and weights in eight bits (QDQ).

    Args:
        source: The float model.
        target: Where to write.
        samples: What the ranges of activations are taken from.
        shared: What other graph halves of the model made.
        calibration: How: ``minmax``, ``percentile`` or ``entropy``.
        per_channel: Whether each output channel of a weight has a scale of its own.
        reduce_range: Whether weights have seven bits, which do not saturate without VNNI.
        symmetric: Whether activations are signed, with zero in the middle.
        quantized_operators: A name of :data:`autotune.graph.precision_options.OPERATOR_GROUPS`.
        float_outputs: Whether matrix products write floats, so that their outputs are not rounded.
        kept_in_float: How many of the most sensitive nodes are left alone.
        smoothing: How much of the outliers of activations goes into weights.
        equalized: Whether the weights of consecutive convolutions get ranges of one size.
        clipped: Whether the largest weights are clipped for the others' sake.
        bias_corrected: Whether biases make up for what rounded weights shift.
        matrix_products: What becomes of matrix products that are not quantised with the others.

    Raises:
        StepRefusedError: there is nothing to quantise, or the model cannot be made ready.
    """
    types = OPERATOR_GROUPS[quantized_operators].types
    ready = FloatModel.ready(source, samples, shared or Intermediates())
    if not sensitivity.quantisable(ready.load(), types or sensitivity.QUANTISABLE):
        raise StepRefusedError("there is no node with a constant weight to quantise")
    adjusted = (ready.equalised() if equalized else ready).smoothed(smoothing)
    if clipped:
        adjusted = adjusted.clipped(per_channel=per_channel, reduce_range=reduce_range)
    in_float = adjusted.most_sensitive(types, kept_in_float)
    model = adjusted.load()
    if bias_corrected:
        weighted = sensitivity.quantisable(model, types or sensitivity.QUANTISABLE)
        rounding.correct_bias(
            model,
            adjusted.inputs(),
            set(weighted) - set(in_float),
            per_channel=per_channel,
            reduce_range=reduce_range,
        )
    _quantise_statically(
        model,
        target,
        adjusted.ranges(calibration, target.with_name("calibrated.onnx")),
        types=types,
        in_float=in_float,
        per_channel=per_channel,
        reduce_range=reduce_range,
        symmetric=symmetric,
        float_outputs=float_outputs,
    )
    _quantise_other_products(
        target,
        matrix_products,
        in_float=in_float,
        per_channel=per_channel,
        reduce_range=reduce_range,
    )


def _quantise_statically(
    model: onnx.ModelProto,
    target: Path,
    ranges: dict[str, list[Any]],
    *,
    types: Sequence[str],
    in_float: Sequence[str],
    per_channel: bool,
    reduce_range: bool,
    symmetric: bool,
    float_outputs: bool,
) -> None:
    """Writes the model with quantised nodes of these types, none of them in `in_float`."""
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.calibrate import TensorData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    with quantisation.silent_tools():
        quantizer = QDQQuantizer(
            model,
            per_channel,
            reduce_range,
            QuantType.QInt8,
            QuantType.QInt8 if symmetric else QuantType.QUInt8,
            {
                name: TensorData(lowest=np.array(low, kind), highest=np.array(high, kind))
                for name, (kind, low, high) in ranges.items()
            },
            [],
            [*in_float, *added_products(model)],
            list(types) or quantisation.quantisable_types(),
            {
                "ActivationSymmetric": symmetric,
                # it compares arrays as if they were numbers where a MatMul has scales per channel
                "QDQDisableWeightAdjustForInt32Bias": per_channel,
                "OpTypesToExcludeOutputQuantization": _MATRIX_PRODUCTS if float_outputs else (),
            },
        )
        quantizer.quantize_model()
        quantizer.model.save_model_to_file(str(target))


def dynamic(
    source: Path,
    target: Path,
    samples: Sequence[Feed],
    *,
    shared: Intermediates | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    kept_in_float: int = 0,
    smoothing: str = OFF,
    clipped: bool = False,
) -> None:
    """Writes the model with eight-bit weights, and activations that are rounded at run time.

    Convolutions stay in float. Products in the branches and bodies of other nodes are quantised
    too. See :func:`static` for the arguments.

    Raises:
        StepRefusedError: there is nothing to quantise, or the model cannot be made ready.
    """
    adjusted = FloatModel.ready(source, samples, shared or Intermediates()).smoothed(smoothing)
    if clipped:
        adjusted = adjusted.clipped(per_channel=per_channel, reduce_range=reduce_range)
    in_float = adjusted.most_sensitive(_MATRIX_PRODUCTS, kept_in_float)
    copy = adjusted.copy_to(target.with_name("float.onnx"))
    _quantise_dynamically(
        copy, target, in_float=in_float, per_channel=per_channel, reduce_range=reduce_range
    )
    copy.unlink()


def _quantise_dynamically(
    source: Path, target: Path, *, in_float: Sequence[str], per_channel: bool, reduce_range: bool
) -> None:
    """Writes the model with quantised matrix products, none of them in `in_float`.

    Raises:
        StepRefusedError: there is nothing to quantise.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with quantisation.silent_tools():
        quantize_dynamic(
            source,
            target,
            op_types_to_quantize=list(_DYNAMIC_TYPES),
            per_channel=per_channel,
            reduce_range=reduce_range,
            weight_type=QuantType.QInt8,
            # a Gemm becomes a MatMul of this name first
            nodes_to_exclude=[*in_float, *(f"{name}_MatMul" for name in in_float)],
            extra_options={"MatMulConstBOnly": True, "EnableSubgraph": True},
        )
    written = onnx.load(target, load_external_data=False).graph
    if _DYNAMIC_RESULTS.isdisjoint(node.op_type for node in all_nodes(written)):
        raise StepRefusedError("there is no matrix product or LSTM to quantise")


def _quantise_other_products(
    path: Path,
    how: str,
    *,
    in_float: Sequence[str],
    per_channel: bool,
    reduce_range: bool,
) -> None:
    """Quantises the matrix products of the model in `path`, whose convolutions are in int8.

    Args:
        path: The file; written anew.
        how: A name of :data:`autotune.graph.precision_options.MATRIX_PRODUCTS`.
        in_float: Names of the nodes that stay as they are.
        per_channel: As in :func:`static`.
        reduce_range: As in :func:`static`.
    """
    if how == "int8_dynamic":
        half = path.with_name("half.onnx")
        path.replace(half)
        _quantise_dynamically(
            half, path, in_float=in_float, per_channel=per_channel, reduce_range=reduce_range
        )
        half.unlink()
    elif how == "int8_weights":
        onnx.save(quantisation.with_packed_weights(onnx.load(path), in_float), path)
