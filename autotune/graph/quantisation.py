"""What the precisions share: a model ready for quantisation, calibration samples, silent tools."""

import contextlib
import io
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import version_converter

from autotune.facts.feeds import Feed
from autotune.graph import sensitivity
from autotune.graph.entries import StepRefusedError
from autotune.graph.model_file import LARGEST_PROTO_BYTES, load, save

# The first opset with a scale for each channel, and with QDQ around most operators.
_QDQ_OPSET = 13


def ready_to_quantise(source: Path, target: Path) -> tuple[onnx.ModelProto, Path]:
    """Returns the model with shapes inferred, constants folded, a recent opset and named nodes.

    Returns a file with the same model too, beside `target`: ONNX Runtime's tools take a model in
    memory for a damaged one after its weights were moved to a file.

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
    with silent_tools():
        try:
            # symbolic shapes need sympy, and quantisation has no use for them
            quant_pre_process(path, path, skip_symbolic_shape=True)
        except Exception:  # noqa: BLE001  # it fails on many models that can be quantised
            onnx.save(model, path)
    model = load(path)
    sensitivity.name_nodes(model)
    onnx.save(model, path)
    return model, path


def most_sensitive(
    model: onnx.ModelProto, samples: Sequence[Feed], types: Sequence[str], count: int
) -> list[str]:
    """Returns the names of the `count` nodes of these types that are best left in float.

    Args:
        model: The float model, its nodes named.
        samples: Calibration samples.
        types: Types of nodes that are considered; none means all that can be quantised.
        count: How many; 0 ranks nothing.
    """
    if not count:
        return []
    return sensitivity.rank(model, samples, types or sensitivity.QUANTISABLE)[:count]


class CalibrationReader:
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
