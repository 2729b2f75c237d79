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

_OPSET = 18
_SHAPE = (1, 4, 8, 8)


class _Example(NamedTuple):
    """A node of a type.

    Attributes:
        inputs: How many tensors it takes that are computed.
        constants: What it takes behind them; floats become weights in eight bits.
        attributes: Its attributes.
    """

    inputs: int = 1
    constants: tuple[Any, ...] = ()
    attributes: Mapping[str, Any] = {}


def _whole(*values: int) -> Any:
    return np.array(values, np.int64)


_ONES, _FILTER, _MATRIX = np.ones(4), np.ones((4, 4, 3, 3)), np.ones((8, 8))
# Relu and Clip are not here: the tool leaves them to the range of what is quantised behind them.
_EXAMPLES: Mapping[str, _Example] = {
    **dict.fromkeys("Flatten GlobalAveragePool LeakyRelu Sigmoid Softmax".split(), _Example()),
    **dict.fromkeys(("Add", "Mul"), _Example(inputs=2)),
    **dict.fromkeys(("Conv", "ConvTranspose"), _Example(constants=(_FILTER,))),
    **dict.fromkeys(("AveragePool", "MaxPool"), _Example(attributes={"kernel_shape": [2, 2]})),
    **dict.fromkeys(("Squeeze", "Unsqueeze", "Gather"), _Example(constants=(_whole(0),))),
    "BatchNormalization": _Example(constants=(_ONES,) * 4),
    "Concat": _Example(inputs=2, attributes={"axis": 1}),
    "CumSum": _Example(constants=(_whole(1),)),
    "GatherElements": _Example(constants=(np.zeros(_SHAPE, np.int64),)),
    "InstanceNormalization": _Example(constants=(_ONES,) * 2),
    "LayerNormalization": _Example(constants=(np.ones(8),) * 2),
    "MatMul": _Example(constants=(_MATRIX,)),
    "Pad": _Example(constants=(_whole(0, 0, 1, 1, 0, 0, 1, 1),)),
    "Reshape": _Example(constants=(_whole(4, 64),)),
    "Slice": _Example(constants=(_whole(0), _whole(2), _whole(1))),
    "Transpose": _Example(attributes={"perm": [0, 2, 3, 1]}),
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
        write_optimised(source, target, "ORT_ENABLE_EXTENDED")
        nodes = onnx.load(target).graph.node
    dequantised = {node.output[0] for node in nodes if node.op_type == "DequantizeLinear"}
    return all(dequantised.isdisjoint(node.input) for node in nodes)


def _wrapped(operator: str, example: _Example) -> onnx.ModelProto:
    """Returns a model of one node whose inputs, weights and output are in eight bits."""
    constants: dict[str, Any] = {"scale": np.array(0.1, np.float32), "zero": np.uint8(128)}
    nodes = []

    def dequantised(name: str) -> str:
        nodes.append(helper.make_node("DequantizeLinear", [name, "scale", "zero"], [f"{name}_d"]))
        return f"{name}_d"

    def rounded(name: str) -> str:
        nodes.append(helper.make_node("QuantizeLinear", [name, "scale", "zero"], [f"{name}_q"]))
        return dequantised(f"{name}_q")

    computed = [f"x{i}" for i in range(example.inputs)]
    names = [rounded(name) for name in computed]
    for i, values in enumerate(example.constants):
        is_weight = values.dtype.kind == "f"
        constants[f"c{i}"] = values.astype(np.uint8) if is_weight else values
        names.append(dequantised(f"c{i}") if is_weight else f"c{i}")
    nodes.append(helper.make_node(operator, names, ["y"], **example.attributes))
    output = rounded("y")
    graph = helper.make_graph(
        nodes,
        "one",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, _SHAPE) for name in computed],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(values), name) for name, values in constants.items()],
    )
    opsets = [helper.make_opsetid("", _OPSET)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
