"""Small graphs in ONNX's text form, and what the rules of algebra make of them."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from autotune.graph.algebra.model import simplify

Array = NDArray[Any]


def simplified(before: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy of a model with the rules applied; checks that its interface is the same."""
    after = onnx.ModelProto()
    after.CopyFrom(before)
    simplify(after)
    assert list(after.graph.input) == list(before.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    return after


def operators(model: onnx.ModelProto) -> list[str]:
    """Returns the types of the nodes, in alphabetical order."""
    return sorted(node.op_type for node in model.graph.node)


def optimised_operators(model: onnx.ModelProto) -> list[str]:
    """Returns the types of the nodes that ONNX Runtime makes of a model, in order."""
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    settings.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        settings.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        onnxruntime.InferenceSession(
            model.SerializeToString(), settings, providers=["CPUExecutionProvider"]
        )
        optimised = onnx.load(settings.optimized_model_filepath)
    return [node.op_type for node in optimised.graph.node]


def inputs_of(model: onnx.ModelProto, seed: int = 0, spread: float = 3.0) -> dict[str, Array]:
    """Returns random inputs; an open dimension has the size 3."""
    random = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for item in model.graph.input:
        tensor = item.type.tensor_type
        shape = [dim.dim_value or 3 for dim in tensor.shape.dim]
        kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        is_float = kind.kind == "f"
        values = random.normal(0, spread, shape) if is_float else random.integers(0, 2, shape)
        feeds[item.name] = np.asarray(values).astype(kind)
    return feeds


def answers(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> Sequence[Array]:
    """Returns the outputs that ONNX Runtime computes without any optimisation."""
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), settings, providers=["CPUExecutionProvider"], enable_fallback=0
    )
    outputs: Sequence[Array] = session.run(None, dict(feeds))
    return outputs


def assert_same_answers(
    before: onnx.ModelProto, after: onnx.ModelProto, feeds: Mapping[str, Array], tolerance: float
) -> None:
    """Checks outputs up to a part of their largest value, and their shapes and types exactly."""
    pairs = zip(answers(before, feeds), answers(after, feeds), strict=True)
    for expected, found in pairs:
        assert found.shape == expected.shape
        assert found.dtype == expected.dtype
        is_finite = np.isfinite(expected) if expected.dtype.kind == "f" else False
        largest = float(np.max(np.abs(expected), initial=1.0, where=is_finite))
        np.testing.assert_allclose(
            found, expected, rtol=tolerance, atol=tolerance * largest, equal_nan=True
        )
