"""Which operators ONNX Runtime computes in eight bits between QuantizeLinear and DequantizeLinear.

The quantisation tool wraps more types than the CPU provider has kernels for. What it wraps in vain
is dequantised, computed in float and quantised again. So each type is tried on the installed
ONNX Runtime, as the one node of a graph.
"""

import functools
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from autotune.facts.graphs import operator_of

_OPSET = 18
_SHAPE = (1, 4, 8, 8)
_X, _WHOLE = "x", "whole"


class _Example(NamedTuple):
    """A node of a type.

    Attributes:
        inputs: What it takes: ``_X`` is a computed tensor, None nothing; of constants, floats
            become weights in eight bits.
        attributes: Its attributes and its domain.
        outputs: Its outputs; ``_WHOLE`` has whole numbers.
        shape: That of its computed tensors.
    """

    inputs: tuple[Any, ...] = (_X,)
    attributes: Mapping[str, Any] = {}
    outputs: tuple[str, ...] = ("y",)
    shape: tuple[int, ...] = _SHAPE


def _whole(*values: int) -> Any:
    return np.array(values, np.int64)


_ONES, _FILTER, _MATRIX = np.ones(4), np.ones((4, 4, 3, 3)), np.ones((8, 8))
# Relu and Clip are not here: the tool leaves them to the range of what is quantised before them.
_EXAMPLES: Mapping[str, _Example] = {
    **dict.fromkeys("Flatten GlobalAveragePool LeakyRelu Sigmoid Softmax".split(), _Example()),
    **dict.fromkeys(("Add", "Mul"), _Example((_X, _X))),
    **dict.fromkeys(("Conv", "ConvTranspose"), _Example((_X, _FILTER))),
    **dict.fromkeys(("AveragePool", "MaxPool"), _Example(attributes={"kernel_shape": [2, 2]})),
    **dict.fromkeys(("Squeeze", "Unsqueeze", "Gather"), _Example((_X, _whole(0)))),
    "ArgMax": _Example(outputs=(_WHOLE,)),
    "BatchNormalization": _Example((_X, *(_ONES,) * 4)),
    "Concat": _Example((_X, _X), {"axis": 1}),
    "CumSum": _Example((_X, _whole(1))),
    "EmbedLayerNormalization": _Example(
        (np.zeros((1, 8), np.int32), None, _MATRIX, _MATRIX, None, np.ones(8), np.ones(8)),
        {"domain": "com.microsoft"},
        ("y", _WHOLE),
    ),
    "GatherElements": _Example((_X, np.zeros(_SHAPE, np.int64))),
    "Gemm": _Example((_X, _MATRIX), shape=(8, 8)),
    "InstanceNormalization": _Example((_X, *(_ONES,) * 2)),
    "LayerNormalization": _Example((_X, *(np.ones(8),) * 2)),
    "MatMul": _Example((_X, _MATRIX)),
    "Pad": _Example((_X, _whole(0, 0, 1, 1, 0, 0, 1, 1))),
    "Reshape": _Example((_X, _whole(4, 64))),
    "Resize": _Example((_X, None, None, _whole(1, 4, 16, 16))),
    "Slice": _Example((_X, _whole(0), _whole(2), _whole(1))),
    "Split": _Example(attributes={"axis": 1, "num_outputs": 2}, outputs=("y", "z")),
    "TopK": _Example((_X, _whole(2)), outputs=("y", _WHOLE)),
    "Transpose": _Example(attributes={"perm": [0, 2, 3, 1]}),
    "Where": _Example((np.ones(_SHAPE, np.bool_), _X, _X)),
}


def without_kernel(types: Collection[str]) -> set[str]:
    """Returns which of these types are computed in float by ONNX Runtime though they are wrapped.

    A type that is not among the examples, or cannot be tried, is left to the tool.
    """
    return {name for name in types if name in _EXAMPLES and not _has_kernel(name)}


@functools.cache
def _has_kernel(operator: str) -> bool:
    """Returns whether a node of this type no longer takes floats once it is optimised."""
    from autotune.graph.model_file import write_optimised

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "one.onnx", Path(folder) / "optimised.onnx"
        onnx.save(_wrapped(operator, _EXAMPLES[operator]), source)
        try:
            write_optimised(source, target, "ORT_ENABLE_EXTENDED")
        except MemoryError:  # another time it may go well
            raise
        except Exception:  # noqa: BLE001  # another version may not know the type so
            return True
        nodes = onnx.load(target).graph.node
    dequantised = {node.output[0] for node in nodes if operator_of(node) == "DequantizeLinear"}
    return all(dequantised.isdisjoint(node.input) for node in nodes)


def _wrapped(operator: str, example: _Example) -> onnx.ModelProto:
    """Returns a model of one node whose inputs, weights and outputs are in eight bits."""
    constants: dict[str, Any] = {"scale": np.array(0.1, np.float32), "zero": np.uint8(128)}
    nodes, computed, names = [], [], []

    def dequantised(name: str) -> str:
        nodes.append(helper.make_node("DequantizeLinear", [name, "scale", "zero"], [f"{name}_d"]))
        return f"{name}_d"

    def rounded(name: str) -> str:
        nodes.append(helper.make_node("QuantizeLinear", [name, "scale", "zero"], [f"{name}_q"]))
        return dequantised(f"{name}_q")

    for i, values in enumerate(example.inputs):
        if values is None:
            names.append("")
        elif values is _X:
            computed.append(f"x{i}")
            names.append(rounded(f"x{i}"))
        else:
            is_weight = values.dtype.kind == "f"
            constants[f"c{i}"] = values.astype(np.uint8) if is_weight else values
            names.append(dequantised(f"c{i}") if is_weight else f"c{i}")
    nodes.append(helper.make_node(operator, names, example.outputs, **example.attributes))
    outputs = [name if name == _WHOLE else rounded(name) for name in example.outputs]
    graph = helper.make_graph(
        nodes,
        "one",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, example.shape) for n in computed],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(values), name) for name, values in constants.items()],
    )
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


# IMPORT
