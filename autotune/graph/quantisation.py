"""What the precisions share: a model ready for quantisation, distances of outputs, silent tools."""

import contextlib
import io
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import version_converter

from autotune.facts.feeds import Feed
from autotune.graph import sensitivity
from autotune.graph.entries import StepRefusedError
from autotune.graph.model_file import LARGEST_PROTO_BYTES, load, save, size_with_data

# The first opset with a scale for each channel, and with QDQ around most operators.
_QDQ_OPSET = 13
# It has no eight-bit kernel, and ONNX Runtime cannot open a model that has its scale in eight bits
# with session.x64quantprecision.
_NOT_QUANTISED = {"LayerNormalization"}

# What ONNX Runtime calls the types of tensors that decide on how nodes are quantised.
_ELEMENT_TYPES = {
    "tensor(float)": onnx.TensorProto.FLOAT,
    "tensor(float16)": onnx.TensorProto.FLOAT16,
    "tensor(int64)": onnx.TensorProto.INT64,
    "tensor(int32)": onnx.TensorProto.INT32,
    "tensor(bool)": onnx.TensorProto.BOOL,
}


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
        except MemoryError:  # another time it may go well
            raise
        # it fails on many models that can be quantised; a disk that is full fails here again
        except Exception:  # noqa: BLE001
            onnx.save(model, path)
    model = load(path)
    sensitivity.name_nodes(model)
    _add_types(model)
    onnx.save(model, path)


def _add_types(model: onnx.ModelProto) -> None:
    """Adds the types of tensors that shape inference does not know.

    It stops at ONNX Runtime's own operators, which passes write. The quantisation tools refuse a
    matrix product whose input has no type, and calibration passes such tensors over.
    """
    graph = model.graph
    known = {item.name for item in (*graph.input, *graph.output, *graph.value_info)}
    names = [name for node in graph.node for name in node.output if name and name not in known]
    if not names:
        return
    own_outputs = len(graph.output)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        outputs = sensitivity.open_exactly(model.SerializeToString()).get_outputs()
    except MemoryError:  # another time it may go well
        raise
    except Exception:  # noqa: BLE001  # the tools do without, or say what they need
        return
    finally:
        del graph.output[own_outputs:]
    types = {item.name: _ELEMENT_TYPES.get(item.type) for item in outputs}
    graph.value_info.extend(
        onnx.helper.make_tensor_value_info(name, kind, None)
        for name in names
        if (kind := types[name]) is not None
    )


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
    """Returns the largest distance of an output; infinite if the model does not run.

    Args:
        expected: The outputs for each sample, from :func:`exact_outputs`.
        path: The model that is compared.
        samples: The samples.
    """
    try:
        actual = exact_outputs(path, samples)
    except Exception:  # noqa: BLE001  # some mixtures of precisions are no valid model
        return np.inf
    return max(map(output_distance, expected, actual), default=0.0)


def output_distance(expected: Sequence[Any], actual: Sequence[Any]) -> float:
    """Returns the largest distance of an output of one run: of floats the relative L2 distance.

    Of other types it is the share of elements that differ. Values that are not finite in both count
    as equal, and an output of another shape is as far off as one without any relation (1).
    """
    pairs = zip(expected, actual, strict=True)
    return max((_distance(x, y) for x, y in pairs if isinstance(x, np.ndarray)), default=0.0)


def _distance(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    if expected.shape != actual.shape:
        return 1.0
    if expected.dtype.kind != "f":
        return float(np.mean(expected != actual)) if expected.size else 0.0
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(actual)):
        return np.inf
    values = expected[finite].astype(np.float64)  # the norm of large halves is none
    size = float(np.linalg.norm(values))
    gap = float(np.linalg.norm(values - actual[finite]))
    return gap / size if size else float(gap > 0)


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
