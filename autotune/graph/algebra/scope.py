"""One graph of a model, open to changes: its constants, and what produces and consumes tensors."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from autotune.facts.graphs import ONNX_DOMAINS, RUNTIME_DOMAIN, all_graphs, operator_of
from autotune.graph.model_file import keep

Array = NDArray[Any]

SMALL = 4096
"""A constant of at most so many elements may be copied, and may be read again and again."""

READ_TYPES = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.INT32: "int32",
    onnx.TensorProto.INT64: "int64",
    onnx.TensorProto.BOOL: "bool",
}
"""Types of the constants that are read; others, such as four-bit integers, are left alone."""

_FLOATS = ("float16", "float32", "float64")


class TensorFacts(NamedTuple):
    """What shape inference says of a tensor.

    Attributes:
        kind: The element type, a value of ``onnx.TensorProto.DataType``.
        sizes: Its sizes, an open one by its name, None for an unknown one; None where even their
            number is unknown.
    """

    kind: int
    sizes: tuple[int | str | None, ...] | None


class Scope:
    """A graph, the main one or the body of a branch or loop, and the changes to it.

    A tensor keeps its name where its value stays the same, so inputs and outputs of the graph keep
    theirs. :meth:`write` writes the changes to the graph.

    Args:
        graph: The graph, without Constant nodes.
        opset: The version of ONNX's own operators.
        facts: Known types and sizes of tensors, by name.
        names: All names of the model; names that this scope invents are added.
        outer: The graph around this one; None for the main graph.
        settled: Outputs of nodes that no rule changes any more, because a runtime knows the pattern
            that they are in.
    """

    def __init__(
        self,
        graph: onnx.GraphProto,
        *,
        opset: int,
        facts: Mapping[str, TensorFacts],
        names: set[str],
        outer: "Scope | None",
        settled: set[str],
    ) -> None:
        self.opset = opset
        self.facts = facts
        self.settled = settled
        # the nodes in the place of each node of the graph, so that a change touches one place
        self._places: list[list[onnx.NodeProto]] = [[node] for node in graph.node]
        self._place_of = {id(place[0]): i for i, place in enumerate(self._places)}
        self._graph = graph
        self._names = names
        self._outer = outer
        self._inputs = {item.name for item in graph.input}
        self._outputs = {item.name for item in graph.output}
        bodies = [body for body in all_graphs(graph) if body is not graph]
        self._captured = {name for body in bodies for node in body.node for name in node.input}
        self._captured |= {item.name for body in bodies for item in body.output}
        self._tensors = {item.name: item for item in graph.initializer}
        self._read: dict[str, Array] = {}
        self._producers: dict[str, onnx.NodeProto] = {}
        # who takes a tensor, by the node's identity and the place of the input
        self._consumers: dict[str, dict[tuple[int, int], onnx.NodeProto]] = {}
        for node in self.nodes:
            self._connect(node)

    @property
    def nodes(self) -> list[onnx.NodeProto]:
        """The nodes of this graph, in their order."""
        return [node for place in self._places for node in place]

    def producer(self, name: str, *operators: str) -> onnx.NodeProto | None:
        """Returns the node of this graph whose first output is a tensor.

        None where it is no operator of ONNX's own, or none of `operators`, if there are some.
        """
        node = self._producers.get(name)
        if node is None or node.output[0] != name or node.domain not in ONNX_DOMAINS:
            return None
        return node if not operators or operator_of(node) in operators else None

    def consumers(self, name: str) -> Sequence[onnx.NodeProto]:
        """Returns the nodes of this graph that take a tensor; twice if they take it twice."""
        return list(self._consumers.get(name, {}).values())

    def is_visible(self, name: str) -> bool:
        """Returns whether something besides the nodes of this graph takes a tensor."""
        return name in self._outputs or name in self._captured

    def is_private(self, name: str) -> bool:
        """Returns whether one node of this graph alone takes a tensor, once."""
        return len(self._consumers.get(name, ())) == 1 and not self.is_visible(name)

    def has(self, node: onnx.NodeProto) -> bool:
        """Returns whether a node is still in this graph."""
        return any(self._producers.get(name) is node for name in node.output)

    def kind(self, name: str) -> int:
        """Returns the element type of a tensor; 0 where it is unknown."""
        return self._facts_of(name).kind

    def is_float32(self, name: str) -> bool:
        """Returns whether a tensor is known to hold floats of 32 bits."""
        return self.kind(name) == onnx.TensorProto.FLOAT

    def shape(self, name: str) -> tuple[int | None, ...] | None:
        """Returns the sizes of a tensor, None for open and unknown ones."""
        sizes = self.sizes(name)
        return None if sizes is None else tuple(s if isinstance(s, int) else None for s in sizes)

    def sizes(self, name: str) -> tuple[int | str | None, ...] | None:
        """Returns the sizes of a tensor, open ones by name; equal names stand for equal sizes."""
        return self._facts_of(name).sizes

    def rank(self, name: str) -> int | None:
        """Returns the number of a tensor's axes."""
        shape = self.shape(name)
        return None if shape is None else len(shape)

    def _facts_of(self, name: str) -> TensorFacts:
        item = self._tensors.get(name)
        if item is not None and name not in self._inputs:
            return TensorFacts(item.data_type, tuple(item.dims))
        return self.facts.get(name, TensorFacts(onnx.TensorProto.UNDEFINED, None))

    def array(self, name: str) -> Array | None:
        """Returns the values of a constant; None where `name` is none, or of another type.

        An initializer that is an input of the graph too is no constant.
        """
        if name in self._read:
            return self._read[name]
        if name in self._inputs or name in self._producers:
            return None
        item = self._tensors.get(name)
        if item is None:
            return self._outer.array(name) if self._outer else None
        if item.data_type not in READ_TYPES:
            return None
        values = numpy_helper.to_array(item)
        if values.size <= SMALL:
            self._read[name] = values
        return values

    def floats(self, name: str) -> Array | None:
        """Returns the values of a constant of floats in their own type; None where it is none."""
        values = self.array(name)
        return values if values is not None and values.dtype.name in _FLOATS else None

    def integers(self, name: str) -> list[int] | None:
        """Returns the values of a constant vector of integers; None where it is none."""
        values = self.array(name)
        if values is None or values.dtype.kind != "i" or values.ndim > 1:
            return None
        return [int(value) for value in np.atleast_1d(values)]

    def number(self, name: str, beside: str) -> float | None:
        """Returns the value of a constant float that has one element.

        None where an operation with `beside` could have a result of more axes than `beside`.
        """
        values = self.floats(name)
        if values is None or values.size != 1:
            return None
        rank = self.rank(beside)
        if values.ndim and (rank is None or values.ndim > rank):
            return None
        return float(values.reshape(()))

    def is_changeable(self, name: str) -> bool:
        """Returns whether a node may get a changed copy of this constant.

        It may if the node alone takes the constant, or if the constant is small.
        """
        values = self.array(name)
        if values is None:
            return False
        return values.size <= SMALL or (name in self._tensors and self.is_private(name))

    def constant(self, values: Array, stem: str) -> str:
        """Returns the name of a new constant."""
        name = self.fresh(stem)
        self._tensors[name] = numpy_helper.from_array(np.asarray(values, order="C"), name)
        if values.size <= SMALL:
            self._read[name] = values
        return name

    def fresh(self, stem: str) -> str:
        """Returns a name that nothing in the model has."""
        name, count = stem, 0
        while name in self._names:
            count += 1
            name = f"{stem}_{count}"
        self._names.add(name)
        return name

    def make(
        self, operator: str, inputs: Sequence[str], output: str = "", **attributes: Any
    ) -> onnx.NodeProto:
        """Returns a new node, which is in no graph yet; its output gets a new name by default."""
        name = self.fresh(f"{output or inputs[0]}/{operator}")
        return helper.make_node(operator, inputs, [output or name], name=name, **attributes)

    def replace(self, node: onnx.NodeProto, *others: onnx.NodeProto) -> None:
        """Puts new nodes in the place of a node, whose output the last of them writes.

        Nodes whose outputs nothing takes any more are removed.
        """
        i = self._place_of[id(node)]
        at = next(j for j, item in enumerate(self._places[i]) if item is node)
        self._disconnect(node)
        self._places[i][at:at] = others
        for other in others:
            self._place_of[id(other)] = i
            self._connect(other)
        self._remove_unused(node.input)

    def rewire(self, node: onnx.NodeProto, changes: Mapping[int, str]) -> None:
        """Gives a node other inputs, by their places."""
        while len(node.input) <= max(changes):
            node.input.append("")
        old = [node.input[place] for place in changes]
        for place, name in changes.items():
            self._consumers.get(node.input[place], {}).pop((id(node), place), None)
            node.input[place] = name
            self._consumers.setdefault(name, {})[id(node), place] = node
        self._remove_unused(old)

    def bypass(self, node: onnx.NodeProto, name: str) -> bool:
        """Removes a node whose output equals the tensor `name`.

        Returns False, and changes nothing, where both names are needed.
        """
        output = node.output[0]
        producer = self._producers.get(name)
        takes = any(item == name for item in node.input)
        if producer is not None and takes and self.is_private(name):
            self._disconnect(node)
            names = [output if item == name else item for item in producer.output]
            del producer.output[:]
            producer.output.extend(names)
            self._producers.pop(name, None)
            self._producers[output] = producer
        elif not self.is_visible(output):
            for (_, place), consumer in list(self._consumers.get(output, {}).items()):
                self.rewire(consumer, {place: name})
            if self.has(node):
                self._disconnect(node)
        else:
            return False
        self._remove_unused(node.input)
        return True

    def _connect(self, node: onnx.NodeProto) -> None:
        self._producers.update({name: node for name in node.output if name})
        for place, name in enumerate(node.input):
            self._consumers.setdefault(name, {})[id(node), place] = node

    def _disconnect(self, node: onnx.NodeProto) -> None:
        """Takes a node out of the graph."""
        for name in node.output:
            self._producers.pop(name, None)
        for place, name in enumerate(node.input):
            self._consumers.get(name, {}).pop((id(node), place), None)
        beside = self._places[self._place_of[id(node)]]
        beside[:] = [item for item in beside if item is not node]

    def _remove_unused(self, names: Iterable[str]) -> None:
        """Removes the nodes that write these tensors if nothing takes what they write."""
        pending = [*names]
        while pending:
            node = self._producers.get(pending.pop())
            if node is None or any(
                self._consumers.get(n) or self.is_visible(n) for n in node.output
            ):
                continue
            self._disconnect(node)
            pending += node.input

    def write(self) -> None:
        """Writes the changes to the graph; constants that nothing takes are left out."""
        nodes = self.nodes
        used = {name for node in nodes for name in node.input}
        used |= self._captured | self._outputs | self._inputs
        del self._graph.node[:]
        self._graph.node.extend(nodes)
        known = {item.name for item in self._graph.initializer}
        keep(self._graph.initializer, lambda item: item.name in used)
        new = self._tensors.keys() & used - known
        self._graph.initializer.extend(i for name, i in self._tensors.items() if name in new)
        infos = {i.name: i for i in self._graph.value_info if i.name in self._producers}
        for node in nodes:
            name = node.output[0]
            if node.domain == RUNTIME_DOMAIN and name not in infos and name in self.facts:
                # shape inference does not know these operators
                infos[name] = helper.make_tensor_value_info(name, *self.facts[name])
        del self._graph.value_info[:]
        self._graph.value_info.extend(infos.values())
