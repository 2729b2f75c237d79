"""What the precisions share: a model ready for quantisation, calibration samples, silent tools."""

import contextlib
import io
import logging
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import version_converter

from autotune.facts.feeds import Feed
from autotune.graph import sensitivity
from autotune.graph.entries import StepRefusedError
from autotune.graph.model_file import LARGEST_PROTO_BYTES, load, save, size_with_data

# The first opset with a scale for each channel, and with QDQ around most operators.
_QDQ_OPSET = 13
# By the names of ONNX Runtime's enumeration.
_CALIBRATION_METHODS = {"minmax": "MinMax", "percentile": "Percentile", "entropy": "Entropy"}
# It has no eight-bit kernel, and ONNX Runtime cannot open a model that has its scale in eight bits
# with session.x64quantprecision.
_NOT_QUANTISED = {"LayerNormalization"}
# Histograms of more samples take minutes.
_HISTOGRAM_SAMPLES = 16


def ready_to_quantise(source: Path, path: Path) -> None:
    """Writes the model with shapes inferred, constants folded, a recent opset and named nodes.

    Args:
        source: The float model.
        path: Where to write.

    Raises:
        StepRefusedError: it is too large, or its opset cannot be raised.
    """
    from onnxruntime.quantization.shape_inference import quant_pre_process

    if size_with_data(source) > LARGEST_PROTO_BYTES:
        raise StepRefusedError("ONNX Runtime's tools cannot quantise a model over 2 GiB")
    model = load(source)
    opset = max(item.version for item in model.opset_import if item.domain in {"", "ai.onnx"})
    if opset < _QDQ_OPSET:
        try:
            model = version_converter.convert_version(model, _QDQ_OPSET)
        except Exception as error:
            raise StepRefusedError(f"opset {opset} cannot be raised to {_QDQ_OPSET}") from error
    onnx.save(model, path)
    with silent_tools():
        try:
            # symbolic shapes need sympy, and quantisation has no use for them
            quant_pre_process(path, path, skip_symbolic_shape=True)
        except Exception:  # noqa: BLE001  # it fails on many models that can be quantised
            onnx.save(model, path)
    model = load(path)
    sensitivity.name_nodes(model)
    onnx.save(model, path)


def activation_ranges(
    path: Path, samples: Sequence[Feed], calibration: str
) -> dict[str, list[Any]]:
    """Returns the type, the lowest and the highest value of each tensor that can be quantised.

    Args:
        path: The model; a file of the same name is written beside it for a while.
        samples: Calibration samples.
        calibration: How ranges are taken: ``minmax``, ``percentile`` or ``entropy``.
    """
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import create_calibrator

    if calibration != "minmax":
        samples = samples[:_HISTOGRAM_SAMPLES]
    with silent_tools(), tempfile.TemporaryDirectory() as folder:
        calibrator = create_calibrator(
            path,
            quantisable_types(),
            augmented_model_path=str(Path(folder) / "augmented.onnx"),
            calibrate_method=CalibrationMethod[_CALIBRATION_METHODS[calibration]],
        )
        for group in _calibration_groups(samples, calibration):
            calibrator.collect_data(CalibrationReader(group))
        tensors = calibrator.compute_data()
    ranges = {}
    for name in tensors:
        low, high = (np.asarray(value) for value in tensors[name].range_value)
        ranges[name] = [str(low.dtype), low.tolist(), high.tolist()]
    return ranges


def _calibration_groups(samples: Sequence[Feed], calibration: str) -> list[list[Feed]]:
    """Returns the samples that a calibrator gets together.

    One at a time needs the least memory, and is the only way for samples that differ in shape. But
    the first group gives a histogram its bins: a tensor that is all but constant in one sample, and
    not in the next, ends in "Too many bins for data range", or in bins without number.
    """
    groups = [[feed] for feed in samples]
    if calibration == "minmax":
        return groups
    shapes = {tuple((name, array.shape) for name, array in group[0].items()) for group in groups}
    return groups if len(shapes) > 1 else [[feed for group in groups for feed in group]]


def quantisable_types() -> list[str]:
    """Returns all types of nodes that ONNX Runtime can give activations in eight bits."""
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    return sorted({*QLinearOpsRegistry, *QDQRegistry} - _NOT_QUANTISED)


def with_packed_weights(
    model: onnx.ModelProto,
    in_float: Sequence[str],
    *,
    bits: int = 8,
    block_size: int = 32,
    accuracy_level: int = 4,
) -> onnx.ModelProto:
    """Returns the model with the weights of its MatMul nodes in blocks of `bits` bits.

    Args:
        model: The float model, its nodes named; changed in place.
        in_float: Names of the nodes that stay as they are.
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
            nodes_to_exclude=list(in_float),
            op_types_to_quantize=("MatMul",),
        )
        quantizer.process()
    packed: onnx.ModelProto = quantizer.model.model
    return packed


class CalibrationReader:
    """Calibration samples as ONNX Runtime's quantisation reads them."""

    def __init__(self, samples: Sequence[Feed]) -> None:
        self._next = iter(samples)

    def get_next(self) -> dict[str, Any] | None:
        """Returns the next sample, or None at the end."""
        feed = next(self._next, None)
        return None if feed is None else dict(feed)


def convert_to_fp16(model: onnx.ModelProto, target: Path, in_fp32: Sequence[str]) -> None:
    """Writes the model in half precision; its inputs and outputs keep their types.

    Args:
        model: The float model; changed in place.
        target: Where to write.
        in_fp32: Names of the nodes that stay as they are.
    """
    from onnxruntime.transformers.float16 import convert_float_to_float16

    sensitivity.name_nodes(model)
    with silent_tools():
        converted = convert_float_to_float16(
            model, keep_io_types=True, node_block_list=list(in_fp32), disable_shape_infer=False
        )
    save(converted, target)


def exact_outputs(path: Path, samples: Sequence[Feed]) -> list[list[Any]]:
    """Returns the outputs of the unoptimised model for each sample."""
    session = sensitivity.open_exactly(str(path))
    return [session.run(None, dict(feed)) for feed in samples]


def largest_distance(
    expected: Sequence[Sequence[Any]], path: Path, samples: Sequence[Feed]
) -> float:
    """Returns the largest relative L2 distance of a float output; infinite if it does not run.

    Args:
        expected: The outputs for each sample, from :func:`exact_outputs`.
        path: The model that is compared.
        samples: The samples.
    """
    try:
        actual = exact_outputs(path, samples)
    except Exception:  # noqa: BLE001  # some mixtures of precisions are no valid model
        return np.inf
    worst = 0.0
    for expected_outputs, outputs in zip(expected, actual, strict=True):
        for x, y in zip(expected_outputs, outputs, strict=True):
            if isinstance(x, np.ndarray) and x.dtype.kind == "f":
                size = float(np.linalg.norm(x))
                gap = float(np.linalg.norm(x.astype(np.float64) - y))
                worst = max(worst, gap / size if size else float(gap > 0))
    return worst if np.isfinite(worst) else np.inf


@contextlib.contextmanager
def silent_tools() -> Iterator[None]:
    """Suppresses what the tools print and log."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(level)
