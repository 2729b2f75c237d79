"""Fewer bits: eight-bit integers, static, dynamic or for weights alone, four-bit weights, fp16.

ONNX Runtime's own tools do the work. What is added is the care that their defaults lack: the model
is prepared first (shapes inferred, constants folded, opset high enough for scales per channel),
nodes have names, the most sensitive of them can stay in float, and calibration sees the calibration
samples alone.
"""

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import version_converter

from autotune.facts.feeds import Feed
from autotune.graph import sensitivity
from autotune.graph.passes import LARGEST_PROTO_BYTES, load, save
from autotune.graph.refusal import StepRefusedError

# Scales for each channel and QDQ around most operators exist from here on.
_QDQ_OPSET = 13

KINDS: Mapping[str, tuple[str, ...]] = {
    "all": (),
    "products": ("Conv", "MatMul", "Gemm"),
    "conv": ("Conv",),
    "matmul": ("MatMul", "Gemm"),
}
"""Groups of operator types that are quantised, by their name in a search space; none means all."""

# A convolution with integers made up at run time is slower than one in float.
_DYNAMIC_KINDS = ("MatMul", "LSTM", "Attention", "Gather", "EmbedLayerNormalization")
_DYNAMIC_RESULTS = frozenset({"MatMulInteger", "DynamicQuantizeLSTM", "QAttention"})
# Histograms are made of all activations at once, which are held until then.
_HISTOGRAM_SAMPLES = 16


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
        quantized_operators: A name of :data:`KINDS`.
        kept_in_float: How many of the most sensitive nodes are left alone.

    Raises:
        StepRefusedError: there is nothing to quantise, or the model cannot be prepared.
    """
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    methods = {
        "minmax": CalibrationMethod.MinMax,
        "percentile": CalibrationMethod.Percentile,
        "entropy": CalibrationMethod.Entropy,
    }
    kinds = KINDS[quantized_operators]
    model, path = _prepared(source, target)
    if not sensitivity.quantisable(model, kinds or sensitivity.QUANTISABLE):
        raise StepRefusedError("there is no node with a constant weight to quantise")
    if calibration != "minmax":
        samples = samples[:_HISTOGRAM_SAMPLES]
    with _silence():
        quantize_static(
            path,
            target,
            _Reader(samples),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(kinds) or None,
            per_channel=per_channel,
            reduce_range=reduce_range,
            activation_type=QuantType.QInt8 if symmetric else QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=_most_sensitive(model, samples, kinds, kept_in_float),
            calibrate_method=methods[calibration],
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
        StepRefusedError: there is nothing to quantise, or the model cannot be prepared.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model, path = _prepared(source, target)
    excluded = _most_sensitive(model, samples, KINDS["matmul"], kept_in_float)
    with _silence():
        quantize_dynamic(
            path,
            target,
            op_types_to_quantize=list(_DYNAMIC_KINDS),
            per_channel=per_channel,
            reduce_range=reduce_range,
            weight_type=QuantType.QInt8,
            # a Gemm becomes a MatMul of this name first
            nodes_to_exclude=[*excluded, *(f"{name}_MatMul" for name in excluded)],
            extra_options={"MatMulConstBOnly": True},
        )
    path.unlink()
    found = {node.op_type for node in onnx.load(target, load_external_data=False).graph.node}
    if found.isdisjoint(_DYNAMIC_RESULTS):
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
        StepRefusedError: there is nothing to quantise, or a package that it needs is missing.
    """
    if find_spec("onnx_ir") is None:
        raise StepRefusedError("the package onnx-ir is not installed; the extra [passes] brings it")
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    model = load(source)
    sensitivity.name_nodes(model)
    if not sensitivity.quantisable(model, ("MatMul",)):
        raise StepRefusedError("there is no matrix product with a constant weight")
    with _silence():
        quantizer = MatMulNBitsQuantizer(
            model,
            bits=bits,
            block_size=block_size,
            is_symmetric=True,
            accuracy_level=accuracy_level,
            nodes_to_exclude=_most_sensitive(model, samples, ("MatMul",), kept_in_float),
            op_types_to_quantize=("MatMul",),
        )
        quantizer.process()
    save(quantizer.model.model, target)


def fp16(source: Path, target: Path, samples: Sequence[Feed]) -> None:
    """Writes the model in half precision; inputs and outputs stay as they are."""
    del samples
    _to_fp16(load(source), target, [])


def fp16_mixed(
    source: Path, target: Path, samples: Sequence[Feed], *, max_error: float = 1e-3
) -> None:
    """Writes the model in half precision but for as few sensitive nodes as the error allows.

    The number of nodes that stay in fp32 is found by bisection over all nodes in order of how far
    their outputs in half precision are from fp32's.

    Raises:
        StepRefusedError: even with every node in fp32 the error is above `max_error`.
    """
    model = load(source)
    sensitivity.name_nodes(model)
    expected = _outputs(source, samples[:2])
    names = [node.name for node in model.graph.node]
    ranked = sensitivity.rank(model, samples)
    ranked += [name for name in reversed(names) if name not in ranked]
    few, many = 0, len(ranked)
    while few < many:
        middle = (few + many) // 2
        _to_fp16(load(source), target, ranked[:middle])
        if _distance(expected, target, samples[:2]) <= max_error:
            many = middle
        else:
            few = middle + 1
    _to_fp16(load(source), target, ranked[:many])
    if _distance(expected, target, samples[:2]) > max_error:
        raise StepRefusedError(f"no mixture of precisions keeps the error below {max_error:g}")


def _to_fp16(model: onnx.ModelProto, target: Path, kept: Sequence[str]) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    sensitivity.name_nodes(model)
    with _silence():
        converted = convert_float_to_float16(
            model, keep_io_types=True, node_block_list=list(kept), disable_shape_infer=False
        )
    save(converted, target)


def _prepared(source: Path, target: Path) -> tuple[onnx.ModelProto, Path]:
    """Returns the model with shapes inferred, constants folded, a recent opset and named nodes.

    Beside it a file that holds it: ONNX Runtime's tools take models in memory for damaged ones
    once their weights were moved to a file.

    Raises:
        StepRefusedError: it is too large, or its opset cannot be raised.
    """
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model = load(source)
    if model.ByteSize() > LARGEST_PROTO_BYTES:
        raise StepRefusedError("quantisation cannot take a model over 2 GiB")
    opset = max(item.version for item in model.opset_import if item.domain in {"", "ai.onnx"})
    if opset < _QDQ_OPSET:
        try:
            model = version_converter.convert_version(model, _QDQ_OPSET)
        except Exception as error:
            raise StepRefusedError(f"opset {opset} cannot be raised to {_QDQ_OPSET}") from error
    path = target.with_name("prepared.onnx")
    onnx.save(model, path)
    with _silence():
        try:
            # symbolic shapes need sympy and are of no use here
            quant_pre_process(path, path, skip_symbolic_shape=True)
        except Exception:  # noqa: BLE001  # it fails on many models that can be quantised
            onnx.save(model, path)
    model = load(path)
    sensitivity.name_nodes(model)
    onnx.save(model, path)
    return model, path


def _most_sensitive(
    model: onnx.ModelProto, samples: Sequence[Feed], kinds: Sequence[str], count: int
) -> list[str]:
    return (
        sensitivity.rank(model, samples, kinds or sensitivity.QUANTISABLE)[:count] if count else []
    )


class _Reader:
    """Calibration samples as ONNX Runtime's quantisation reads them."""

    def __init__(self, samples: Sequence[Feed]) -> None:
        self._samples = samples
        self._next = iter(samples)

    def get_next(self) -> dict[str, Any] | None:
        """Returns the next sample, or None at the end."""
        feed = next(self._next, None)
        return None if feed is None else dict(feed)

    def rewind(self) -> None:
        """Starts again."""
        self._next = iter(self._samples)


def _outputs(path: Path, samples: Sequence[Feed]) -> list[list[Any]]:
    session = sensitivity.open_exactly(str(path))
    return [session.run(None, dict(feed)) for feed in samples]


def _distance(expected: Sequence[Sequence[Any]], path: Path, samples: Sequence[Feed]) -> float:
    """Returns the largest relative L2 distance of an output; infinite where it does not run."""
    try:
        found = _outputs(path, samples)
    except Exception:  # noqa: BLE001  # some mixtures are no valid model
        return np.inf
    worst = 0.0
    for these, those in zip(expected, found, strict=True):
        for x, y in zip(these, those, strict=True):
            if isinstance(x, np.ndarray) and x.dtype.kind == "f":
                size = float(np.linalg.norm(x))
                gap = float(np.linalg.norm(x.astype(np.float64) - y))
                worst = max(worst, gap / size if size else float(gap > 0))
    return worst if np.isfinite(worst) else np.inf


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Keeps what the tools print and log out of the way."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(level)
