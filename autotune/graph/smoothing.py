"""Smoothing: outliers of activations go into the weights of matrix products, which have room.

A model computes the same when a tensor is divided by a factor for each channel and the weights that
take it are multiplied by the same factor (Xiao et al., SmoothQuant, 2022). The division costs
nothing where it goes into constants before the tensor: a normalisation's scale and bias, or the
weight of a product. It is exact but for rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from autotune.facts.feeds import Feed
from autotune.facts.graphs import all_graphs, operator_of
from autotune.graph import sensitivity

Array = NDArray[Any]

# A factor beyond these would only move the outliers to the other side.
_LARGEST_FACTOR = 1e4

MARK = "smoothing"
"""The documentation of the nodes that smoothing adds."""


def largest_inputs(model: onnx.ModelProto, samples: Sequence[Feed]) -> dict[str, list[float]]:
    """Returns the largest absolute value of each channel of the inputs of all matrix products.

    Args:
        model: The model, its nodes named.
    """
    wiring = _Wiring(model)
    names = dict.fromkeys(
        node.input[0]
        for node in model.graph.node
        if wiring.input_axis(node) is not None and wiring.constant(node.input[0]) is None
    )
    largest: dict[str, Array] = {}
    for name, array in sensitivity.tensors(model, list(names), samples):
        sizes = np.abs(np.asarray(array, np.float64)).reshape(-1, array.shape[-1])
        if sizes.size:
            largest[name] = np.maximum(largest.get(name, 0.0), sizes.max(axis=0))
    return {name: sizes.tolist() for name, sizes in largest.items()}


def smooth(model: onnx.ModelProto, inputs: Mapping[str, Sequence[float]], alpha: float) -> None:
    """Moves outliers of activations into the weights of matrix products.

    All products that share an input share its factor, which is for channel j the largest activation
    to the power of `alpha` over the largest weight to the power of 1 - `alpha`. The input is
    divided by it for free where a normalisation or a product before it takes the factor, and by a
    node of its own elsewhere.

    Args:
        model: The float model, its nodes named; changed in place.
        inputs: What :func:`largest_inputs` returns.
        alpha: How much of an outlier goes into the weights, from 0 to 1.
    """
    wiring = _Wiring(model)
    groups: dict[str, list[_Constant]] = {}
    for node in model.graph.node:
        axis = wiring.input_axis(node)
        if axis is not None and node.input[0] in inputs:
            groups.setdefault(node.input[0], []).append(_Constant(node, 1, axis))
    for tensor, products in groups.items():
        weights = _largest_weights(wiring, products)
        sizes = np.asarray(inputs[tensor])
        factor = _power(sizes, alpha) / _power(weights, 1 - alpha)
        factor = np.clip(factor, 1 / _LARGEST_FACTOR, _LARGEST_FACTOR)
        # a channel without a size on one side keeps the other
        factor = np.where((sizes > 0) & (weights > 0), factor, 1.0)
        for product in products:
            wiring.scale(product, factor)
        alone = len(wiring.consumers(tensor)) == len(products) and not wiring.is_shared(tensor)
        before = wiring.scalable(tensor, len(factor)) if alone else None
        if before is None:
            nodes = [product.node for product in products]
            wiring.insert_product(tensor, 1 / factor, nodes).doc_string = MARK
        for constant in before or ():
            wiring.scale(constant, 1 / factor)
    wiring.drop_unused()


def _largest_weights(wiring: _Wiring, constants: list[_Constant]) -> Array:
    """Returns the largest weight of each channel over all these constants."""
    sizes = []
    for node, index, axis in constants:
        values = wiring.constant(node.input[index])
        flat = np.moveaxis(np.abs(np.asarray(values, np.float64)), axis, 0)
        sizes.append(flat.reshape(flat.shape[0], -1).max(axis=1))
    return np.asarray(np.max(sizes, axis=0))


def _power(sizes: Array, exponent: float) -> Array:
    return np.asarray(np.where(sizes > 0, sizes, 1.0) ** exponent)


class _Constant(NamedTuple):
    """A constant input of a node, by its place among them, and the axis of its channels."""

    node: onnx.NodeProto
    place: int
    axis: int


class _Wiring:
    """The tensors of a model's main graph.

    Args:
        model: The model, its weights in memory and its nodes named. :meth:`scale` changes it.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._graph = model.graph
        inputs = {item.name for item in model.graph.input}
        self._constants = {
            item.name: item for item in model.graph.initializer if item.name not in inputs
        }
        self._own: dict[str, onnx.TensorProto] = {}  # one node alone takes each of these
        self._producers = {name: node for node in model.graph.node for name in node.output}
        self._consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            for name in node.input:
                self._consumers.setdefault(name, []).append(node)
        self._names = {*self._constants, *self._producers, *self._consumers}
        self._names |= {node.name for node in model.graph.node}
        bodies = [inner for inner in all_graphs(model.graph) if inner is not model.graph]
        # nobody can tell what takes these: another graph or the user
        self._shared = {item.name for item in model.graph.output}
        self._shared |= {name for body in bodies for node in body.node for name in node.input}
        self._shared |= {item.name for body in bodies for item in body.output}

    def constant(self, name: str) -> Array | None:
        """Returns the values of a constant float tensor; None where `name` is none."""
        item = self._constants.get(name)
        if item is None or item.data_type != onnx.TensorProto.FLOAT:
            return None
        return numpy_helper.to_array(item)

    def consumers(self, tensor: str) -> Sequence[onnx.NodeProto]:
        """Returns the nodes that take a tensor; a node that takes it twice is there twice."""
        return self._consumers.get(tensor, [])

    def is_shared(self, tensor: str) -> bool:
        """Returns whether something outside the main graph takes a tensor."""
        return tensor in self._shared

    def input_axis(self, node: onnx.NodeProto) -> int | None:
        """Returns the axis of a matrix product's weight that its first input is multiplied with.

        None where the weight is no constant, or the product has another form.
        """
        weight = self.constant(node.input[1]) if len(node.input) > 1 else None
        if weight is None:
            return None
        numbers = {item.name: item.i for item in node.attribute if item.type == item.INT}
        if operator_of(node) == "MatMul":
            return 0 if weight.ndim == 2 else None
        if operator_of(node) == "Gemm":
            return None if numbers.get("transA") else numbers.get("transB", 0)
        return None

    def scalable(self, tensor: str, channels: int) -> list[_Constant] | None:
        """Returns the constants that a factor for each channel of a tensor can go into.

        Multiplying all of them by the factor multiplies the tensor by it, up to rounding. None
        where there are no such constants.

        Args:
            tensor: The tensor; its last axis is that of the channels.
        """
        node = self._producers.get(tensor)
        if node is None or node.output[0] != tensor:
            return None
        if operator_of(node) in {"Relu", "LeakyRelu"}:  # positive factors pass
            return self._of_input(node, 0, channels)
        if operator_of(node) in {"Add", "Mul"}:
            return self._of_sum_or_product(node, channels)
        own = self._own_constants(node)
        if own is None:
            return None
        for constant in own:
            values = self.constant(constant.node.input[constant.place])
            if values is None or not values.ndim or values.shape[constant.axis] != channels:
                return None
        return own

    def _own_constants(self, node: onnx.NodeProto) -> list[_Constant] | None:
        """Returns the constants of a node whose output is linear in all of them together."""
        given = [i for i in (1, 2) if i < len(node.input) and node.input[i]]
        if operator_of(node) == "LayerNormalization":
            axes = [item.i for item in node.attribute if item.name == "axis"]
            return [_Constant(node, i, -1) for i in given] if axes in ([], [-1]) else None
        taken = self.input_axis(node)
        if taken is None:
            return None
        # the bias of a Gemm may be a number or a row; its last axis is that of the output
        return [_Constant(node, 1, 1 - taken), *(_Constant(node, i, -1) for i in given[1:])]

    def _of_sum_or_product(self, node: onnx.NodeProto, channels: int) -> list[_Constant] | None:
        """Returns the constants of a node that adds or multiplies by a constant vector."""
        for i in (0, 1):
            values = self.constant(node.input[i])
            if values is None:
                continue
            if not values.ndim or not values.size == values.shape[-1] == channels:
                return None  # a number would become a vector, which fusions do not know
            own = _Constant(node, i, -1)
            if operator_of(node) == "Mul":
                return [own]
            before = self._of_input(node, 1 - i, channels)
            return None if before is None else [*before, own]
        return None

    def _of_input(self, node: onnx.NodeProto, i: int, channels: int) -> list[_Constant] | None:
        """Returns the constants before an input of a node, if the node alone takes the input."""
        name = node.input[i]
        alone = len(self.consumers(name)) == 1 and not self.is_shared(name)
        return self.scalable(name, channels) if alone else None

    def scale(self, constant: _Constant, factor: Array) -> None:
        """Multiplies a constant by a factor for each channel; other nodes keep the old values."""
        node, index, axis = constant
        name = node.input[index]
        values = numpy_helper.to_array(self._constants[name])
        shape = [1] * values.ndim
        shape[axis] = -1
        self.replace(node, index, values.astype(np.float64) * factor.reshape(shape))

    def replace(self, node: onnx.NodeProto, index: int, values: Array) -> None:
        """Gives a node a constant of its own at an input."""
        if index == len(node.input):
            node.input.append("")
        if node.input[index] not in self._own:
            node.input[index] = name = self._fresh(f"{node.name}_{index}")
            self._own[name] = self._constants[name] = self._graph.initializer.add()
        name = node.input[index]
        self._own[name].CopyFrom(numpy_helper.from_array(np.asarray(values, np.float32), name))

    def insert_product(
        self, tensor: str, factor: Array, consumers: Sequence[onnx.NodeProto]
    ) -> onnx.NodeProto:
        """Multiplies the last axis of a tensor for these nodes alone; returns the new node."""
        name = self._fresh(f"{tensor}_scaled")
        made = self._fresh(f"{name}_output")
        product = onnx.helper.make_node("Mul", [tensor], [made], name=name)
        self.replace(product, 1, factor)
        # tools leave a tensor of unknown type alone
        for item in [*self._graph.value_info, *self._graph.input]:
            if item.name == tensor:
                self._graph.value_info.append(item)
                self._graph.value_info[-1].name = made
                break
        names = {node.name for node in consumers}
        first = next(i for i, node in enumerate(self._graph.node) if node.name in names)
        for node in consumers:
            node.input[0] = made
        self._graph.node.insert(first, product)
        inserted: onnx.NodeProto = self._graph.node[first]
        return inserted

    def _fresh(self, stem: str) -> str:
        """Returns a name that no tensor and no node has, and takes it."""
        while stem in self._names:
            stem += "_"
        self._names.add(stem)
        return stem

    def drop_unused(self) -> None:
        """Removes the initializers that no node takes any more."""
        used = {name for node in self._graph.node for name in node.input} | self._shared
        kept = [item for item in self._graph.initializer if item.name in used]
        del self._graph.initializer[:]
        self._graph.initializer.extend(kept)
