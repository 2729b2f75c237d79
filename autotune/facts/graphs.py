"""Walks through the graphs of a model, those inside its nodes included."""

from collections.abc import Iterator
from typing import Any

import onnx

ONNX_DOMAINS = ("", "ai.onnx")
"""The names of the domain of ONNX's own operators."""

RUNTIME_DOMAIN = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""


def operator_of(node: onnx.NodeProto) -> str:
    """Returns what a node is: its type, behind its domain where that is not ONNX's own.

    Nothing else reads the type of a node: a function of the model, or an operator of another
    domain, may have the name of one of ONNX's.
    """
    return node.op_type if node.domain in ONNX_DOMAINS else f"{node.domain}.{node.op_type}"


def operator_name(node: onnx.NodeProto) -> str:
    """Returns the type of a node without its domain, to be shown."""
    return str(node.op_type)


def attribute_of(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """Returns the value of an attribute of a node, or the default."""
    for item in node.attribute:
        if item.name == name:
            return onnx.helper.get_attribute_value(item)
    return default


def all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yields the graph and every graph inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from all_graphs(inner)


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yields every node."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from all_nodes(inner)


def all_initializers(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yields every initializer."""
    for inner in all_graphs(graph):
        yield from inner.initializer


def all_weights(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yields the initializers and the tensors of Constant nodes, where some exporters put them."""
    yield from all_initializers(graph)
    for node in all_nodes(graph):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t


def taken_by(node: onnx.NodeProto) -> set[str]:
    """Returns the names of all that a node takes, the graphs inside it included."""
    graphs = [g for a in node.attribute for g in (a.g, *a.graphs)]
    inner = {name for g in graphs for each in g.node for name in taken_by(each)}
    # a graph inside may give a value of the graph around it as its own output
    return {*node.input, *inner, *(item.name for g in graphs for item in g.output)} - {""}
