"""Fewer bits: eight-bit integers, static, dynamic or for weights alone, four-bit weights, fp16.

ONNX Runtime's own tools do the work. What is added is the care that their defaults lack: the model
is made ready first (shapes inferred, constants folded, opset high enough for scales per channel),
nodes have names, the most sensitive of them can stay in float, and calibration sees the calibration
samples alone. To add a precision, write its function and its entry in :data:`PRECISIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.graph.entries import Step, StepRefusedError
from autotune.graph.precision_options import OPERATOR_GROUPS

if TYPE_CHECKING:  # it brings in onnxruntime, which the entries do without
    from autotune.facts.feeds import Feed

# A convolution that is quantised at run time is slower than one in float.
_DYNAMIC_TYPES = ("MatMul", "LSTM", "Attention", "Gather", "EmbedLayerNormalization")
_DYNAMIC_RESULTS = frozenset({"MatMulInteger", "DynamicQuantizeLSTM", "QAttention"})
# By the names of ONNX Runtime's enumeration.
_CALIBRATION_METHODS = {"minmax": "MinMax", "percentile": "Percentile", "entropy": "Entropy"}
# Calibration by histograms holds all activations of its samples in memory at once.
_HISTOGRAM_SAMPLES = 16


@dataclass(frozen=True, kw_only=True)
class Precision(Step):
    """A precision.

    ``run`` gets the calibration samples as its third argument, and the options by name.

    Attributes:
        options: Names of the options that ``run`` takes, from
            :data:`autotune.graph.precision_options.OPTIONS`.
        wants_samples: Whether ``run`` reads the samples.
        saturates: Whether its products saturate on x86 without VNNI, unless ``reduce_range`` is on.
        float_types: Types of the nodes that it quantises and that ``kept_in_float`` leaves alone.
        always_quantised: Types of the nodes that it quantises whatever ``kept_in_float`` is.
    """

    options: frozenset[str] = frozenset()
    wants_samples: bool = True
    saturates: bool = False
    float_types: tuple[str, ...] = ()
    always_quantised: tuple[str, ...] = ()


def int8_static(
    source: Path,
    target: Path,
    samples: Sequence[Feed],
    *,
    calibration: str = "minmax",
    per_channel: bool = False,
    reduce_range: bool = False,
    symmetric: bool = False,
    quantized_operators: str = "all",
    kept_in_float: int = 0,
) -> None:
    """Writes the model with activations and weights in eight bits (QDQ).

    Args:
        source: The float model.
        target: Where to write.
        samples: What the ranges of activations are taken from.
        calibration: How: ``minmax``, ``percentile`` or ``entropy``.
        per_channel: Whether each output channel of a weight has a scale of its own.
        reduce_range: Whether weights have seven bits, which do not saturate without VNNI.
        symmetric: Whether activations are signed, with zero in the middle.
        quantized_operators: A name of :data:`autotune.graph.precision_options.OPERATOR_GROUPS`.
        kept_in_float: How many of the most sensitive nodes are left alone.

    Raises:
        StepRefusedError: there is nothing to quantise, or the model cannot be made ready.
    """
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    from autotune.graph import quantisation, sensitivity

    types = OPERATOR_GROUPS[quantized_operators].types
    model, path = quantisation.ready_to_quantise(source, target)
    if not sensitivity.quantisable(model, types or sensitivity.QUANTISABLE):
        raise StepRefusedError("there is no node with a constant weight to quantise")
    if calibration != "minmax":
        samples = samples[:_HISTOGRAM_SAMPLES]
    with quantisation.silent_tools():
        quantize_static(
            path,
            target,
            quantisation.CalibrationReader(samples),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(types) or None,
            per_channel=per_channel,
            reduce_range=reduce_range,
            activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=quantisation.most_sensitive(model, samples, types, kept_in_float),
            calibrate_method=CalibrationMethod[_CALIBRATION_METHODS[calibration]],
            extra_options={
                "ActivationSymmetric": symmetric,
                # it compares arrays as if they were numbers where a MatMul has scales per channel
                "QDQDisableWeightAdjustForInt32Bias": per_channel,
            },
        )
    path.unlink()


def int8_dynamic(
    source: Path,
    target: Path,
    samples: Sequence[Feed],
    *,
    per_channel: bool = False,
    reduce_range: bool = False,
    kept_in_float: int = 0,
) -> None:
    """Writes the model with eight-bit weights, and activations that are rounded at run time.

    Convolutions stay in float; see :func:`int8_static` for the arguments.

    Raises:
        StepRefusedError: there is nothing to quantise, or the model cannot be made ready.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from autotune.graph import quantisation

    model, path = quantisation.ready_to_quantise(source, target)
    types = OPERATOR_GROUPS["matmul"].types
    excluded = quantisation.most_sensitive(model, samples, types, kept_in_float)
    with quantisation.silent_tools():
        quantize_dynamic(
            path,
            target,
            op_types_to_quantize=list(_DYNAMIC_TYPES),
            per_channel=per_channel,
            reduce_range=reduce_range,
            weight_type=QuantType.QInt8,
            # a Gemm becomes a MatMul of this name first
            nodes_to_exclude=[*excluded, *(f"{name}_MatMul" for name in excluded)],
            extra_options={"MatMulConstBOnly": True},
        )
    path.unlink()
    types_written = {n.op_type for n in onnx.load(target, load_external_data=False).graph.node}
    if types_written.isdisjoint(_DYNAMIC_RESULTS):
        raise StepRefusedError("there is no matrix product or LSTM to quantise")


def weight_only(
    source: Path,
    target: Path,
    samples: Sequence[Feed],
    *,
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
        bits: 4 or 8.
        block_size: How many weights share a scale.
        accuracy_level: What ONNX Runtime may round activations to: 0 leaves them in fp32, 4 takes
            eight bits.
        kept_in_float: How many of the most sensitive nodes are left alone.

    Raises:
        StepRefusedError: there is nothing to quantise.
    """
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    from autotune.graph import quantisation, sensitivity
    from autotune.graph.model_file import load, save

    model = load(source)
    sensitivity.name_nodes(model)
    if not sensitivity.quantisable(model, ("MatMul",)):
        raise StepRefusedError("there is no matrix product with a constant weight")
    excluded = quantisation.most_sensitive(model, samples, ("MatMul",), kept_in_float)
    with quantisation.silent_tools():
        quantizer = MatMulNBitsQuantizer(
            model,
            bits=bits,
            block_size=block_size,
            is_symmetric=True,
            accuracy_level=accuracy_level,
            nodes_to_exclude=excluded,
            op_types_to_quantize=("MatMul",),
        )
        quantizer.process()
    save(quantizer.model.model, target)


def fp16(source: Path, target: Path, samples: Sequence[Feed]) -> None:
    """Writes the model in half precision; inputs and outputs stay as they are."""
    from autotune.graph.model_file import load
    from autotune.graph.quantisation import convert_to_fp16

    del samples
    convert_to_fp16(load(source), target, [])


def fp16_mixed(
    source: Path, target: Path, samples: Sequence[Feed], *, max_error: float = 1e-3
) -> None:
    """Writes the model in half precision but for as few sensitive nodes as the error allows.

    Bisection finds how many nodes stay in fp32. Nodes are ordered by how much eight bits would
    change their outputs, then from the last node to the first.

    Raises:
        StepRefusedError: even with every node in fp32 the error is above `max_error`.
    """
    from autotune.graph import sensitivity
    from autotune.graph.model_file import load
    from autotune.graph.quantisation import convert_to_fp16, exact_outputs, largest_distance

    model = load(source)
    sensitivity.name_nodes(model)
    samples_compared = samples[:2]
    expected = exact_outputs(source, samples_compared)
    ranking = sensitivity.rank(model, samples)
    ranking += [n.name for n in reversed(model.graph.node) if n.name not in ranking]

    def error_with(count: int) -> float:
        convert_to_fp16(load(source), target, ranking[:count])
        return largest_distance(expected, target, samples_compared)

    few, many = 0, len(ranking)
    while few < many:
        middle = (few + many) // 2
        if error_with(middle) <= max_error:
            many = middle
        else:
            few = middle + 1
    if error_with(many) > max_error:
        raise StepRefusedError(f"no mixture of precisions keeps the error below {max_error:g}")


def _weight_only(bits: int) -> Precision:
    run: Callable[..., None] = partial(weight_only, bits=bits)
    return Precision(
        run=run,
        words=f"int{bits} weights",
        needs=("matmul",),
        packages=("onnx_ir",),
        options=frozenset({"block_size", "accuracy_level", "kept_in_float"}),
        float_types=("MatMul",),
    )


PRECISIONS: Mapping[str, Precision] = {
    "fp16": Precision(run=fp16, words="fp16", needs=("fp16_kernels",), wants_samples=False),
    "fp16_mixed": Precision(
        run=fp16_mixed, words="fp16, sensitive nodes in fp32", needs=("fp16_kernels",)
    ),
    "int8_static": Precision(
        run=int8_static,
        words="int8 static",
        needs=("weights",),
        options=frozenset(
            {"calibration", "per_channel", "reduce_range", "symmetric", "quantized_operators"}
            | {"kept_in_float"}
        ),
        saturates=True,
        float_types=("Conv", "MatMul", "Gemm"),
    ),
    "int8_dynamic": Precision(
        run=int8_dynamic,
        words="int8 dynamic",
        needs=("matrix_products",),
        options=frozenset({"per_channel", "reduce_range", "kept_in_float"}),
        saturates=True,
        float_types=OPERATOR_GROUPS["matmul"].types,
        always_quantised=("LSTM", "Attention"),
    ),
    "int8_weight_only": _weight_only(8),
    "int4_weight_only": _weight_only(4),
}
"""All precisions by name but the default, ``fp32``."""
