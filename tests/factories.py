"""Factories that tests of several modules share: models in ONNX's text form, and their parts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

from autotune.deploy.config import Evidence, Interval, Numbers
from autotune.facts.model import Model
from autotune.facts.model_facts import Dimension, Tensor
from autotune.results.score import SMALLEST_GAIN, SMALLEST_MEMORY_GAIN, is_gain, speed_of

Array = NDArray[Any]


def onnx_model(
    body: str,
    constants: Mapping[str, Array | float] | None = None,
    *,
    opset: int = 17,
    x: str = "float[2,4,6,6] x",
    y: str = "float[?] y",
) -> onnx.ModelProto:
    """Returns a model of nodes in ONNX's text form."""
    graph = parser.parse_graph(f"g ({x}) => ({y}) {{ {body} }}")
    for item in graph.output:
        if [size.WhichOneof("value") for size in item.type.tensor_type.shape.dim] == [None]:
            item.type.tensor_type.ClearField("shape")
    taken = _taken(graph)
    for name, value in (constants or {}).items():
        if name in taken:
            array = value if isinstance(value, np.ndarray) else np.array(value, np.float32)
            graph.initializer.append(numpy_helper.from_array(array, name))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _taken(graph: onnx.GraphProto) -> set[str]:
    """Returns what nodes take and no node makes, those of branches among them."""
    inner = [item.g for node in graph.node for item in node.attribute if item.HasField("g")]
    taken = {name for node in graph.node for name in node.input}.union(*map(_taken, inner))
    return taken - {name for node in graph.node for name in node.output}


def save_onnx(path: Path, body: str, *arguments: Any, **options: Any) -> Path:
    onnx.save(onnx_model(body, *arguments, **options), path)
    return path


def normal(seed: int, *shape: int) -> Array:
    """Returns standard normal numbers of 32 bits."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def everything_in(place: Path) -> dict[str, bytes | None]:
    """Returns what lies in a folder, links not followed: names, and what files hold."""
    return {
        str(path.relative_to(place)): path.read_bytes()
        if path.is_file() and not path.is_symlink()
        else None
        for path in sorted(place.rglob("*"))
    }


def tensor(name: str, dtype: str, *shape: Dimension, bound: int | None = None) -> Tensor:
    return Tensor(name=name, dtype=dtype, shape=shape, index_bound=bound)


def model_of(*tensors: Tensor, **changes: Any) -> Model:
    """Returns the facts of a model with these inputs that has everything but operators."""
    facts: dict[str, Any] = {
        "path": Path("model.onnx"),
        "data_names": (),
        "sha256": "0",
        "size_bytes": 1,
        "inputs": tensors,
        "outputs": ("y",),
        "operators": {},
        "parameters": 1,
        "has_conv": True,
        "has_gelu": True,
        "branches": 3,
        "subnormals": 1,
    }
    facts |= changes
    # every product has a constant weight unless the test says otherwise
    return Model(**{"quantisable": facts["operators"], "quantisable_inside": {}, **facts})


def make_numbers(
    values: Mapping[str, float], gains: Mapping[str, Interval], **changes: Any
) -> Numbers:
    """Returns numbers with these quantities and gains over the default, on a quiet machine."""
    quantities: dict[str, Any] = {"cpu_s": 0.01, "load_ms": 1.0, **values}
    facts: dict[str, Any] = {
        "error": 0.0,
        "rounds": 3,
        "steady": True,
        "noise_floor": SMALLEST_GAIN,
        "memory_noise_floor": SMALLEST_MEMORY_GAIN,
        "speedup": speed_of(gains),
        "significant": is_gain(speed_of(gains)),
    }
    return Numbers(**quantities, gains=gains, **{**facts, **changes})


def make_evidence(numbers: Numbers, trial: int = 0) -> Evidence:
    """Returns these numbers as those of a trial that was measured on generated inputs."""
    return Evidence(**vars(numbers), trial=trial, error_data="generated", max_error=0.05)
