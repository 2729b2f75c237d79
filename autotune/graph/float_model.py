"""The float model that a precision quantises, with its ranges and rankings, each made once."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import onnx
from onnx import version_converter

from autotune.facts.feeds import Feed
from autotune.facts.graphs import operator_of
from autotune.graph import by_time, calibration, sensitivity, smoothing
from autotune.graph.by_time import Quantise, Slow
from autotune.graph.calibration import Ranges
from autotune.graph.distance import open_exactly
from autotune.graph.entries import OFF, StepRefusedError
from autotune.graph.intermediates import Intermediates
from autotune.graph.model_file import LARGEST_PROTO_BYTES, size_with_data, write_optimised

# The first opset with a scale for each channel, and with QDQ around most operators.
_QDQ_OPSET = 13
# What ONNX Runtime calls the types of tensors that decide on how nodes are quantised.
_ELEMENT_TYPES = {
    "tensor(float)": onnx.TensorProto.FLOAT,
    "tensor(float16)": onnx.TensorProto.FLOAT16,
    "tensor(int64)": onnx.TensorProto.INT64,
    "tensor(int32)": onnx.TensorProto.INT32,
    "tensor(bool)": onnx.TensorProto.BOOL,
}


class FloatModel:
    """A model that is ready to be quantised.

    Args:
        path: Its file, which nobody writes to.
    """

    def __init__(
        self, path: Path, name: str, samples: Sequence[Feed], shared: Intermediates
    ) -> None:
        self.path = path
        self._name = name
        self._samples = samples
        self._shared = shared

    @classmethod
    def ready(cls, source: Path, samples: Sequence[Feed], shared: Intermediates) -> "FloatModel":
        """Returns the model in the file `source`, as quantisation needs it.

        Raises:
            StepRefusedError: it cannot be made ready.
        """
        path = shared.file("ready.onnx", partial(ready_to_quantise, source))
        return cls(path, "ready", samples, shared)

    def load(self) -> onnx.ModelProto:
        """Returns the model, its weights in memory."""
        return onnx.load(self.path)

    def smoothed(self, alpha: str) -> "FloatModel":
        """Returns the model with outliers moved into weights; see :func:`smoothing.smooth`."""

        def make(path: Path) -> None:
            model = self.load()
            largest: dict[str, list[float]] = self._shared.record(
                f"{self._name}-inputs", partial(smoothing.largest_inputs, model, self._samples)
            )
            smoothing.smooth(model, largest, float(alpha))
            onnx.save(model, path)

        if alpha == OFF:
            return self
        name = f"{self._name}-smoothed_{alpha}"
        path = self._shared.file(f"{name}.onnx", make)
        return FloatModel(path, name, self._samples, self._shared)

    def ranges(self, method: str, scratch: Path) -> Ranges:
        """Returns the ranges of all activations.

        Args:
            method: How they are taken: a value of ``calibration``.
        """

        def make() -> Ranges:
            # ONNX Runtime's tools write beside the file that they read
            shutil.copyfile(self.path, scratch)
            try:
                return calibration.activation_ranges(scratch, self._samples, method)
            finally:
                scratch.unlink()

        ranges: Ranges = self._shared.record(f"{self._name}-ranges_{method}", make)
        return ranges

    def slow(self, quantise: Quantise, kernels: str) -> Slow:
        """Returns which nodes eight bits make slower, measured once for the same kernels.

        Args:
            quantise: Writes a copy of the model, all in eight bits.
            kernels: The name of what decides on the kernels that ONNX Runtime runs that copy with.
        """

        def make() -> dict[str, Any]:
            model = self.load()
            return by_time.slow(model, by_time.measure(model, self._samples, quantise))

        return Slow(**self._shared.record(f"{self._name}-slow-{kernels}", make))

    def most_sensitive(
        self,
        types: Sequence[str],
        count: int,
        in_float: Sequence[str],
        costs: Mapping[str, float] | None = None,
    ) -> list[str]:
        """Returns the names of the `count` nodes of these types that are best left in float.

        Args:
            types: Types of nodes that are considered; none means all that can be quantised.
            count: How many; 0 ranks nothing.
            in_float: Names of nodes that are in float already, and do not count.
            costs: What leaving each of the others in float costs; None counts multiplications.
        """
        if not count:
            return []
        model = self.load()
        names = sensitivity.ranked(self._name, self._shared, model, self._samples, costs=costs)
        allowed = types or sensitivity.QUANTISABLE
        types_by_name = {node.name: operator_of(node) for node in model.graph.node}
        free = (name for name in names if name not in in_float)
        return [name for name in free if types_by_name[name] in allowed][:count]


def added_products(model: onnx.ModelProto) -> list[str]:
    """Returns the nodes that smoothing added: rounding what they take would undo it."""
    return [node.name for node in model.graph.node if node.doc_string == smoothing.MARK]


def ready_to_quantise(source: Path, path: Path) -> None:
    """Writes the model with shapes inferred, constants folded, a recent opset and named nodes.

    Raises:
        StepRefusedError: it is too large, or its opset cannot be raised.
    """
    if size_with_data(source) > LARGEST_PROTO_BYTES:
        raise StepRefusedError("ONNX Runtime's tools cannot quantise a model over 2 GiB")
    model = onnx.load(source)
    opset = max(item.version for item in model.opset_import if item.domain in {"", "ai.onnx"})
    if opset < _QDQ_OPSET:
        try:
            model = version_converter.convert_version(model, _QDQ_OPSET)
        except Exception as error:
            raise StepRefusedError(f"opset {opset} cannot be raised to {_QDQ_OPSET}") from error
    onnx.save(model, path)
    # ONNX Runtime's own quant_pre_process drops what it optimised without symbolic shapes (to 1.30)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        optimised = Path(folder) / path.name
        try:
            write_optimised(path, optimised, "ORT_ENABLE_BASIC")
            model = onnx.shape_inference.infer_shapes(onnx.load(optimised))
        except MemoryError:  # another time it may go well
            raise
        # it fails on some models that can be quantised; a disk that is full fails here again
        except Exception:  # noqa: BLE001
            model = onnx.load(path)
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
        outputs = open_exactly(model.SerializeToString()).get_outputs()
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
