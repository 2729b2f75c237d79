"""Where a model keeps its weights, and how they become initializers, which every tool knows.

Exporters put weights into Constant nodes, into the default values of inputs, behind a cast from
half precision, and into the branches of an If or the body of a Loop.
"""

import math
from collections import Counter
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import external_data_helper, helper, numpy_helper

from autotune.facts.graphs import RUNTIME_DOMAIN, all_graphs, all_nodes, operator_of

# The first version in which an initializer is no input of its graph.
_IR_OF_PLAIN_INITIALIZERS = 4
_TYPE_OF_NUMBERS = {
    "value_float": onnx.TensorProto.FLOAT,
    "value_floats": onnx.TensorProto.FLOAT,
    "value_int": onnx.TensorProto.INT64,
    "value_ints": onnx.TensorProto.INT64,
    "value_string": onnx.TensorProto.STRING,
    "value_strings": onnx.TensorProto.STRING,
}
# Inputs of a node that are its weights. An input of the graph that is fed to another one, such as
# the state of an LSTM, may be meant to be fed although it has a default value.
_WEIGHTS_OF: Mapping[str, tuple[int, ...]] = {
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Gemm": (1, 2),
    "MatMul": (1,),
    "LSTM": (1, 2, 3),
    "GRU": (1, 2, 3),
    "RNN": (1, 2, 3),
    f"{RUNTIME_DOMAIN}.Attention": (1, 2),
    "BatchNormalization": (1, 2, 3, 4),
    "InstanceNormalization": (1, 2),
    "LayerNormalization": (1, 2),
    "PRelu": (1,),
    "Gather": (0,),
}
# A smaller table is not worth its scales.
_SMALLEST_TABLE = 1024
# What ONNX Runtime's tools quantise where its weight is constant.
_QUANTISED = ("Conv", "MatMul", "Gemm", "LSTM", f"{RUNTIME_DOMAIN}.Attention")
# Nodes that lie between a stored weight and the product that takes it.
_FOLDED = frozenset({"Cast", "Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze"})
_ELEMENTWISE = frozenset({"Cast", "Identity"})


def to_initializers(model: onnx.ModelProto) -> bool:
    """Turns Constant nodes, sparse weights and weights that are inputs into initializers.

    The model computes the same. An input with a default value can still be fed, unless every
    initializer is an input, as some exporters have it. External data need not be in memory.

    Returns:
        Whether the model was changed.
    """
    defaults = _constant_defaults(model)
    changed = [_without_constants(inner) for inner in all_graphs(model.graph)]
    changed += [_without_sparse(inner) for inner in all_graphs(model.graph)]
    fed = [item for item in model.graph.input if item.name not in defaults]
    changed.append(len(fed) < len(model.graph.input))
    if any(changed):
        del model.graph.input[:]
        model.graph.input.extend(fed)
        model.ir_version = max(model.ir_version, _IR_OF_PLAIN_INITIALIZERS)
    return any(changed)


def _constant_defaults(model: onnx.ModelProto) -> set[str]:
    """Returns the inputs with a default value that nobody feeds."""
    inputs = {item.name for item in model.graph.input}
    defaults = {item.name for item in model.graph.initializer if item.name in inputs}
    if model.ir_version < _IR_OF_PLAIN_INITIALIZERS:
        return defaults  # ONNX Runtime takes no other value for such an input
    taken_as_weights = {
        node.input[i]
        for node in all_nodes(model.graph)
        for i in _WEIGHTS_OF.get(operator_of(node), ())
        if i < len(node.input)
    }
    # an exporter that makes every initializer an input does not mean that they are fed; where it
    # makes some, such as the weights of an adapter, they may be
    is_every = len(defaults) == len(model.graph.initializer)
    return defaults if is_every and defaults & taken_as_weights else set()


def _without_constants(graph: onnx.GraphProto) -> bool:
    """Turns the Constant nodes of one graph into initializers; returns whether it had some."""
    outputs = {item.name for item in graph.output}
    kept = []
    for node in graph.node:
        # a subgraph may not return an initializer everywhere
        is_plain = operator_of(node) == "Constant" and node.output[0] not in outputs
        tensor = _constant(node) if is_plain else None
        if tensor is None:
            kept.append(node)
        else:
            graph.initializer.append(tensor)
    if len(kept) == len(graph.node):
        return False
    del graph.node[:]
    graph.node.extend(kept)
    return True


def _without_sparse(graph: onnx.GraphProto) -> bool:
    """Writes the sparse weights of one graph out, which no tool knows; returns whether it had some.

    Their numbers have one index each, or one for each axis.
    """
    weights = list(graph.sparse_initializer)
    if not weights:
        return False
    for item in weights:
        values, places = map(numpy_helper.to_array, (item.values, item.indices))
        dense = np.zeros(math.prod(item.dims), values.dtype)
        flat = places if places.ndim == 1 else np.ravel_multi_index(tuple(places.T), item.dims)
        dense[flat] = values
        graph.initializer.append(
            numpy_helper.from_array(dense.reshape(tuple(item.dims)), item.values.name)
        )
    del graph.sparse_initializer[:]
    return True


def _constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Returns the value of a Constant node under the name of its output; None for a sparse one."""
    attribute = node.attribute[0]
    tensor = onnx.TensorProto()
    if attribute.name == "value":
        tensor.CopyFrom(attribute.t)
    elif attribute.name in _TYPE_OF_NUMBERS:
        value = helper.get_attribute_value(attribute)
        is_list = attribute.name.endswith("s")
        kind, dims = _TYPE_OF_NUMBERS[attribute.name], [len(value)] if is_list else []
        tensor = helper.make_tensor("", kind, dims, list(value) if is_list else [value])
    else:
        return None
    tensor.name = node.output[0]
    return tensor


def quantisable_nodes(graph: onnx.GraphProto) -> tuple[Counter[str], Counter[str]]:
    """Returns how many nodes of each type have a constant float weight.

    The first count is of the main graph, where every tool finds them; the second one of the
    graphs inside its nodes.
    """
    main: Counter[str] = Counter()
    inner: Counter[str] = Counter()
    _count(graph, {}, main, inner)
    return main, inner


def _count(
    graph: onnx.GraphProto, outer: Mapping[str, int], counts: Counter[str], inner: Counter[str]
) -> None:
    """Adds the nodes of one graph to `counts`, and those inside them to `inner`.

    Args:
        outer: Element types of the constant tensors around it, by name.
        counts: For its own nodes.
        inner: For the nodes of its subgraphs.
    """
    constants = {**outer, **{item.name: item.data_type for item in graph.initializer}}
    for item in graph.input:  # the default value of an input may be replaced
        constants.pop(item.name, None)
    for node in graph.node:
        if node.input and all(name in constants for name in node.input if name):
            # ONNX Runtime computes it once; most operators keep the type of their first input
            cast = [item.i for item in node.attribute if item.name == "to"]
            kind = cast[0] if cast else constants.get(node.input[0], onnx.TensorProto.UNDEFINED)
            constants.update(dict.fromkeys(node.output, kind))
        weight = node.input[1] if len(node.input) > 1 else ""
        if operator_of(node) in _QUANTISED and constants.get(weight) == onnx.TensorProto.FLOAT:
            counts[operator_of(node)] += 1
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                _count(body, constants, inner, inner)


def embedding_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Returns the nodes of the main graph that take rows out of a large constant float table.

    A table that other nodes take too is none: its float values would have to stay.
    """
    tables = _large_tables(graph)
    consumers = [node for node in graph.node if _takes_rows(node, tables)]
    own = Counter(node.input[0] for node in consumers)
    uses = Counter(name for node in all_nodes(graph) for name in node.input)
    uses.update(item.name for inner in all_graphs(graph) for item in inner.output)
    return [node for node in consumers if own[node.input[0]] == uses[node.input[0]]]


def _large_tables(graph: onnx.GraphProto) -> set[str]:
    """Returns the names of large constant float matrices, those behind a cast too."""
    inputs = {item.name for item in graph.input}
    kinds = {
        item.name: item.data_type
        for item in graph.initializer
        if item.name not in inputs
        and len(item.dims) == 2
        and element_count(item) >= _SMALLEST_TABLE
    }
    for node in graph.node:
        if operator_of(node) == "Transpose" and node.input[0] in kinds:  # a tied table
            kinds[node.output[0]] = kinds[node.input[0]]
        if operator_of(node) in _ELEMENTWISE and node.input[0] in kinds:
            cast = [item.i for item in node.attribute if item.name == "to"]
            kinds[node.output[0]] = cast[0] if cast else kinds[node.input[0]]
    return {name for name, kind in kinds.items() if kind == onnx.TensorProto.FLOAT}


def _takes_rows(node: onnx.NodeProto, tables: Container[str]) -> bool:
    """Returns whether a node takes rows of one of these tables."""
    is_rows = not any(item.name == "axis" and item.i != 0 for item in node.attribute)
    return operator_of(node) == "Gather" and is_rows and node.input[0] in tables


def read(tensor: onnx.TensorProto, folder: Path) -> NDArray[Any]:
    """Returns the numbers of a tensor; those in a file are mapped."""
    if not external_data_helper.uses_external_data(tensor):
        return numpy_helper.to_array(tensor)
    place: Any = external_data_helper.ExternalDataInfo(tensor)
    return np.memmap(
        folder / place.location,
        helper.tensor_dtype_to_np_dtype(tensor.data_type),
        "r",
        place.offset or 0,
        tuple(tensor.dims),
    )


def element_count(tensor: onnx.TensorProto) -> int:
    """Returns the number of elements of the tensor."""
    count = 1
    for size in tensor.dims:
        count *= size
    return count
