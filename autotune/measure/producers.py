"""The producers of a model's outputs, through the operators that only move data.

An output may join what several nodes make: boxes in pixels and scores of classes, as one tensor.
Which element comes from which of them is found for any layout in one way: the data-moving end of
the graph is added a second time, with a number for each producer in the place of its values. Run
beside the model, it gives each element of an output the number of its producer. Indices and shapes
are those of the graph itself. Only child processes use this module.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
from numpy.typing import NDArray
from onnx import TensorProto, external_data_helper, helper

from autotune.facts.feeds import Feed
from autotune.facts.graphs import operator_of
from autotune.facts.output_parts import Producer
from autotune.graph.distance import open_exactly
from autotune.graph.model_file import model_bytes

# The inputs that hold data, by operator; None means all of them. The others are places and sizes.
_MOVING: dict[str, tuple[int, ...] | None] = {
    "Concat": None,
    "Where": (1, 2),
    "ScatterND": (0, 2),
    "ScatterElements": (0, 2),
    **dict.fromkeys(
        (
            *("Reshape", "Transpose", "Slice", "Split", "Squeeze", "Unsqueeze", "Flatten", "Pad"),
            *("Gather", "GatherND", "GatherElements", "Expand", "Tile", "Compress", "Identity"),
            *("DepthToSpace", "SpaceToDepth", "ReverseSequence"),
            *("Cast", "Dropout", "QuantizeLinear", "DequantizeLinear"),
        ),
        (0,),
    ),
}
# They keep each element where it is, and do not take numbers of producers.
_KEEPING = ("Cast", "Dropout", "QuantizeLinear", "DequantizeLinear")
_SIGMOIDS = ("Sigmoid", "HardSigmoid")
# They make numbers from 0 to 1 of such numbers.
_BETWEEN_0_AND_1 = ("Mul", "Sqrt", "Max", "Min", "ReduceMax")
_DEEPEST = 8
# A copy of a larger model would take too much memory.
_LARGEST_BYTES = 512 << 20
_MARK = "autotune_producer/"


class _End:
    """The end of a graph, seen from its outputs."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._makers = {name: node for node in graph.node for name in node.output if name}

    def moving(self, tensor: str) -> onnx.NodeProto | None:
        """Returns the node that only moves data to this tensor; None where another makes it."""
        node = self._makers.get(tensor)
        if node is None or operator_of(node) not in _MOVING:
            return None
        return None if operator_of(node) == "Dropout" and node.output[0] != tensor else node

    def producers(self, output: str) -> list[str]:
        """Returns the tensors from which data moves to an output, in the order of the graph."""
        tensors: dict[str, None] = {}
        waiting, seen = [output], {output}
        while waiting:
            tensor = waiting.pop()
            node = self.moving(tensor)
            if node is None:
                tensors[tensor] = None
                continue
            sources = [name for name in _data(node) if name not in seen]
            seen.update(sources)
            waiting += reversed(sources)
        return list(tensors)

    def operator(self, tensor: str) -> str:
        """Returns the type of the node that makes a tensor; see :class:`Producer`."""
        node = self._makers.get(tensor)
        if node is None:
            return ""
        return _SIGMOIDS[0] if self._is_between(tensor, _DEEPEST) else operator_of(node)

    def _is_between(self, tensor: str, depth: int) -> bool:
        """Returns whether a tensor is made of sigmoids so that it stays between 0 and 1."""
        node = self._makers.get(tensor)
        if node is None or depth == 0:
            return False
        if operator_of(node) in _SIGMOIDS:
            return True
        moving = self.moving(tensor) is not None
        sources = (
            _data(node) if moving else node.input[: 1 if "Reduce" in operator_of(node) else None]
        )
        return (moving or operator_of(node) in _BETWEEN_0_AND_1) and all(
            self._is_between(name, depth - 1) for name in sources
        )

    def add_numbered(
        self, tensor: str, numbers: dict[str, int], added: dict[str, onnx.NodeProto]
    ) -> None:
        """Adds the nodes that make ``_MARK + tensor`` in the order in which they run.

        Args:
            numbers: The number of each producer.
            added: The nodes by what they make; they may have been added for another output.
        """
        node, name = self.moving(tensor), _MARK + tensor
        if name in added:
            return
        if node is None:
            value = helper.make_tensor("value", TensorProto.FLOAT, [1], [numbers[tensor]])
            shape = f"{name}/shape"
            added[shape] = helper.make_node("Shape", [tensor], [shape])
            added[name] = helper.make_node("ConstantOfShape", [shape], [name], value=value)
            return
        for given in _data(node):
            self.add_numbered(given, numbers, added)
        copy = _on_numbers(node)
        added |= dict.fromkeys(filter(None, copy.output), copy)


def _on_numbers(node: onnx.NodeProto) -> onnx.NodeProto:
    """Returns a copy of a moving node that moves numbers of producers in the same way."""
    if operator_of(node) in _KEEPING:
        return helper.make_node("Identity", [_MARK + node.input[0]], [_MARK + node.output[0]])
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = ""
    data = _data(node)
    for i, given in enumerate(node.input):
        copy.input[i] = _MARK + given if given in data else given
    for i, made in enumerate(node.output):
        copy.output[i] = _MARK + made if made else ""
    if operator_of(node) == "Pad":  # what it adds has number 0
        for attribute in [item for item in copy.attribute if item.name == "value"]:
            copy.attribute.remove(attribute)
        if len(copy.input) > 2:
            copy.input[2] = ""
    return copy


def _data(node: onnx.NodeProto) -> list[str]:
    """Returns the inputs of a moving node that hold data."""
    places = _MOVING[operator_of(node)]
    return [name for i, name in enumerate(node.input) if name and (places is None or i in places)]


def producers_of(model: onnx.ModelProto) -> dict[str, tuple[Producer, ...]]:
    """Returns the producers of each output of a model."""
    end = _End(model.graph)
    tensors = {output.name: end.producers(output.name) for output in model.graph.output}
    numbers: dict[str, int] = {}
    for name in (name for own in tensors.values() for name in own):
        numbers.setdefault(name, len(numbers) + 1)
    return {
        output: tuple(
            Producer(number=numbers[name], tensor=name, operator=end.operator(name)) for name in own
        )
        for output, own in tensors.items()
    }


def numbers_of_elements(
    path: Path, samples: Sequence[Feed]
) -> tuple[dict[str, tuple[Producer, ...]], list[dict[str, NDArray[Any]]]]:
    """Returns the producers of each output, and the number of the producer of each element.

    The numbers are those of each sample, by output. Outputs with one producer have none, and there
    are none at all where they cannot be computed, and where the model is large.
    """
    model = onnx.load(path, load_external_data=False)
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    producers = producers_of(model)
    several = {name: own for name, own in producers.items() if len(own) > 1}
    if not several or model_bytes(path, model) > _LARGEST_BYTES:
        return producers, []
    external_data_helper.load_external_data_for_model(model, str(path.absolute().parent))
    numbers = {each.tensor: each.number for own in several.values() for each in own}
    _make_numbered(model, list(several), numbers)
    try:
        session = open_exactly(model.SerializeToString())
        rows = [session.run(None, dict(feed)) for feed in samples]
    except Exception:  # noqa: BLE001  # such as an output of a custom type
        return producers, []
    return producers, [dict(zip(several, row, strict=True)) for row in rows]


def _make_numbered(model: onnx.ModelProto, outputs: Sequence[str], numbers: dict[str, int]) -> None:
    """Makes a model give the numbers of producers in the place of its outputs."""
    end = _End(model.graph)
    added: dict[str, onnx.NodeProto] = {}
    for output in outputs:
        end.add_numbered(output, numbers, added)
    nodes = {id(node): node for node in added.values()}  # one may make several tensors
    casts = [
        helper.make_node("Cast", [_MARK + output], [f"{_MARK}{output}/last"], to=TensorProto.INT32)
        for output in outputs
    ]
    model.graph.node.extend([*nodes.values(), *casts])
    del model.graph.output[:]
    model.graph.output.extend(
        helper.make_tensor_value_info(node.output[0], TensorProto.INT32, None) for node in casts
    )
