"""What a graph tells of its inputs: sizes that weights demand, and what values are used for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from onnx import external_data_helper, numpy_helper

from autotune.facts.demanded_sizes import (
    ELEMENTWISE,
    LARGEST_VALUE,
    Shape,
    demanded_sizes,
    inferred_shapes,
    symbol_of,
)
from autotune.facts.graphs import all_graphs, attribute_of, operator_of
from autotune.facts.model_facts import Axis, Span, Tensor

# The inputs of a node whose numbers come out as they went in.
_PASSED_ON: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(
        """
        Cast Reshape Squeeze Unsqueeze Flatten Identity Transpose Expand Slice Split Tile Gather
        GatherElements GatherND Pad Clip Abs Relu QuantizeLinear DequantizeLinear ReverseSequence
        Compress DepthToSpace SpaceToDepth Add Sub Mod com.microsoft.DequantizeLinear
        """.split(),
        (0,),
    ),
    "Where": (1, 2),
    **dict.fromkeys(("ScatterElements", "ScatterND", "Scatter"), (0, 2)),
    **dict.fromkeys(("Concat", "Max", "Min"), tuple(range(64))),
}
# The data and the indices of a node that picks rows, and its axis by default.
_PICKERS: Mapping[str, tuple[int, int, str, int]] = {
    "Gather": (0, 1, "axis", 0),
    "GatherElements": (0, 1, "axis", 0),
    "ScatterElements": (0, 1, "axis", 0),
    "Scatter": (0, 1, "axis", 0),
    "com.microsoft.GatherBlockQuantized": (0, 1, "gather_axis", 0),
    "ai.onnx.ml.ArrayFeatureExtractor": (0, 1, "", -1),
    "com.microsoft.EmbedLayerNormalization": (2, 0, "", 0),
    "com.microsoft.QEmbedLayerNormalization": (2, 0, "", 0),
}
_POINT_PICKERS = frozenset({"GatherND", "ScatterND"})
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
# Attributes of operators that tell texts apart.
_CATEGORIES = (
    *("keys_strings", "cats_strings", "classlabels_strings"),
    *("string_vocabulary", "pool_strings"),
)
# The ranges that pictures and sound come in.
_PICTURES = (Span(low=0, high=1), Span(low=-1, high=1), Span(low=0, high=255))
_SOUND = (Span(low=-1, high=1), Span(low=-32768, high=32767))
# What constants make of the right range: numbers about 1, or bytes whose mean was subtracted.
_LARGEST_SCALED = 256.0


def described(model: onnx.ModelProto, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Returns the inputs with what the graph tells of them.

    Args:
        model: The model with its functions inlined; external data need not be in memory.
        inputs: The inputs as ONNX Runtime names them.
    """
    constants = _constants(model.graph)
    shapes = inferred_shapes(model, inputs)
    sizes = demanded_sizes(model.graph, shapes)
    uses = _Uses(shapes=shapes, constants=constants)
    for tensor in inputs:
        uses.origins[tensor.name] = {tensor.name: 0.0}
        uses.scaled[tensor.name] = (tensor.name, 1.0, 0.0)
        symbols = {symbol_of(tensor, number) for number in range(len(tensor.shape))}
        if len(tensor.shape) == 2 and len(symbols) == 1:  # which nodes of a graph are joined
            uses.picked |= symbols
    uses.walk(model.graph)
    axes = {
        symbol_of(tensor, number): Axis(input=tensor.name, number=number)
        for tensor in reversed(inputs)
        for number in reversed(range(len(tensor.shape)))
    }
    return tuple(_with_facts(tensor, sizes, uses, axes) for tensor in inputs)


def _with_facts(
    tensor: Tensor, sizes: Mapping[str, int], uses: "_Uses", axes: Mapping[str, Axis]
) -> Tensor:
    known = tuple(
        None if isinstance(size, int) else sizes.get(symbol_of(tensor, number))
        for number, size in enumerate(tensor.shape)
    )
    indexed, steps = uses.indexed.get(tensor.name), uses.steps.get(tensor.name, "")
    axes_of = [symbol_of(tensor, number) for number in range(len(tensor.shape))]
    return replace(
        tensor,
        known=known if any(known) else (),
        index_bound=uses.bounds.get(tensor.name),
        index_of=None if indexed is None else axes.get(indexed),
        indexed=tuple(number for number, name in enumerate(axes_of) if name in uses.picked),
        walked=tuple(number for number, name in enumerate(axes_of) if name in uses.walked),
        length_of=axes.get(steps),
        span=uses.span_of(tensor),
        categories=uses.categories.get(tensor.name, ()),
    )


def _constants(graph: onnx.GraphProto) -> dict[str, Any]:
    """Returns the small constants that are in the file, by name."""
    arrays = {}
    for inner in all_graphs(graph):
        for item in inner.initializer:
            if not external_data_helper.uses_external_data(item) and (
                math.prod(item.dims) <= LARGEST_VALUE
            ):
                arrays[item.name] = numpy_helper.to_array(item)
    return arrays


@dataclass
class _Uses:
    """What the values of the inputs are used for.

    Attributes:
        shapes: The shape of each value.
        constants: Small constants by name.
        origins: By value, the inputs whose numbers it holds, each with what was added to them.
        scaled: By value, the one input that it is a multiple of: name, factor, summand.
        bounds: By input, the fewest rows of a table that it indexes.
        indexed: By input, the symbol of a dimension that it indexes.
        picked: The symbols of all dimensions that inputs index.
        walked: The symbols of all dimensions that recurrent nodes go through.
        steps: By input, the symbol of a dimension whose steps it counts.
        spans: By input, the factor and the summand that the first constants make.
        categories: By input, the texts that it may hold.
    """

    shapes: Mapping[str, Shape]
    constants: Mapping[str, Any]
    origins: dict[str, dict[str, float]] = field(default_factory=dict)
    scaled: dict[str, tuple[str, float, float]] = field(default_factory=dict)
    bounds: dict[str, int] = field(default_factory=dict)
    indexed: dict[str, str] = field(default_factory=dict)
    picked: set[str] = field(default_factory=set)
    walked: set[str] = field(default_factory=set)
    steps: dict[str, str] = field(default_factory=dict)
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)
    categories: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def walk(self, graph: onnx.GraphProto) -> None:
        """Follows the inputs through a graph and those inside its nodes."""
        for node in graph.node:
            self._index(node)
            self._name(node)
            self._scale(node)
            inner = [g for item in node.attribute for g in (item.g, *item.graphs) if g.node]
            for body in inner:
                is_loop = operator_of(node) == "Loop"
                first = 2 if is_loop else 0
                for item, name in zip(body.input[first:], node.input[first:], strict=False):
                    if name in self.origins:
                        self.origins[item.name] = self.origins[name]
                self.walk(body)
                skipped = 1 if is_loop else 0
                for item, name in zip(body.output[skipped:], node.output, strict=False):
                    if item.name in self.origins:
                        self.origins.setdefault(name, {}).update(self.origins[item.name])
            self._pass_on(node)

    def _pass_on(self, node: onnx.NodeProto) -> None:
        kind = operator_of(node)
        places = _PASSED_ON.get(kind, ())
        if kind in ("Add", "Sub"):
            places = tuple(i for i in (0, 1) if node.input[1 - i] in self.constants)
        carried: dict[str, float] = {}
        for place in places:
            if place < len(node.input):
                carried |= self.origins.get(node.input[place], {})
        if not carried:
            return
        if kind in ("Add", "Sub"):
            constant = self.constants[node.input[1 - places[0]]]
            if constant.size != 1 or constant.dtype.kind not in "iuf":
                return
            summand = float(constant.item()) * (1 if kind == "Add" else -1)
            carried = {name: added + summand for name, added in carried.items()}
        for name in node.output:
            self.origins[name] = dict(carried)

    def _index(self, node: onnx.NodeProto) -> None:
        """Notes which inputs index the rows of what."""
        kind = operator_of(node)
        if kind in _PICKERS:
            data, indices, attribute, axis = _PICKERS[kind]
            self._bound(node, data, indices, attribute_of(node, attribute, axis))
            if kind.endswith("EmbedLayerNormalization"):
                self._bound(node, 4, 1, 0)
        elif kind in _POINT_PICKERS:
            first = attribute_of(node, "batch_dims", 0)
            *_, places = self._shape(node, 1) or (None,)
            axes = range(len(self._shape(node, 0)))[first:]
            for axis in reversed(axes[:places] if isinstance(places, int) else axes):
                self._bound(node, 0, 1, axis)
        elif kind in _RECURRENT:
            axis = 1 if attribute_of(node, "layout", 0) else 0
            steps = (*self._shape(node, 0), None, None)[axis]
            if isinstance(steps, str):
                self.walked.add(steps)
                lengths = node.input[4] if len(node.input) > 4 else ""
                self.steps |= dict.fromkeys(self.origins.get(lengths, {}), steps)
        elif kind == "OneHot" and node.input[1] in self.constants:
            depth = int(np.ravel(self.constants[node.input[1]])[0])
            self._bound_by(node.input[0], depth)

    def _shape(self, node: onnx.NodeProto, place: int) -> Shape:
        return self.shapes.get(node.input[place], ()) if place < len(node.input) else ()

    def _bound(self, node: onnx.NodeProto, data: int, indices: int, axis: int) -> None:
        shape = self._shape(node, data)
        if indices < len(node.input) and -len(shape) <= axis < len(shape):
            self._bound_by(node.input[indices], shape[axis])

    def _bound_by(self, value: str, rows: int | str | None) -> None:
        for name, added in self.origins.get(value, {}).items():
            if isinstance(rows, int):
                bound = max(1, rows - max(0, int(added)))
                self.bounds[name] = min(self.bounds.get(name, bound), bound)
            elif rows:
                self.indexed.setdefault(name, rows)
                self.picked.add(rows)

    def _name(self, node: onnx.NodeProto) -> None:
        """Notes the texts that a node tells apart."""
        for name in self.origins.get(node.input[0], {}) if node.input else ():
            for attribute in _CATEGORIES:
                if texts := attribute_of(node, attribute, ()):
                    names = tuple(dict.fromkeys(text.decode("utf-8", "replace") for text in texts))
                    self.categories.setdefault(name, names)

    def _scale(self, node: onnx.NodeProto) -> None:
        """Follows an input through factors and summands that are constants."""
        for place, value in enumerate(node.input[:2]):
            if value not in self.scaled:
                continue
            name, factor, summand = self.scaled[value]
            step = self._step(node, place)
            if step is None:
                continue
            scaled = (name, factor * step[0], summand * step[0] + step[1])
            if all(map(math.isfinite, scaled[1:])):
                self.scaled[node.output[0]] = scaled
                if step != (1.0, 0.0):
                    self.spans[name] = scaled[1:]

    def _step(self, node: onnx.NodeProto, place: int) -> tuple[float, float] | None:
        """Returns the factor and the summand of a node; None where it does something else."""
        kind = operator_of(node)
        if kind == "BatchNormalization" and place == 0:
            values = [self.constants[name] for name in node.input[1:5] if name in self.constants]
            if len(values) < 4:
                return None
            scale, bias, mean, variance = values
            factor = scale / np.sqrt(np.abs(variance) + 1e-5)
            return float(np.mean(factor)), float(np.mean(bias - factor * mean))
        if kind not in ELEMENTWISE:
            keeps = place == 0 and kind in _PASSED_ON and kind not in ("Clip", "Abs", "Relu")
            return (1.0, 0.0) if keeps and "Quantize" not in kind else None
        constant = self.constants.get(node.input[1 - place])
        if constant is None or not constant.size or constant.dtype.kind not in "fiu":
            return None
        value = float(np.mean(constant))
        if kind == "Add":
            return 1.0, value
        if kind == "Sub":
            return (1.0, -value) if place == 0 else (-1.0, value)
        if kind == "Mul":
            return value, 0.0
        return (1.0 / value, 0.0) if place == 0 and value else None

    def span_of(self, tensor: Tensor) -> Span | None:
        """Returns the usual range that the constants bring nearest to numbers about 1."""
        if tensor.name not in self.spans or tensor.dtype.startswith(("str", "bool", "int64")):
            return None
        factor, summand = self.spans[tensor.name]
        usual = _PICTURES if len(tensor.shape) >= 3 else _SOUND
        best, distance = None, math.inf
        for span in usual:
            ends = sorted((factor * span.low + summand, factor * span.high + summand))
            largest = max(map(abs, ends))
            # where zero lies far outside, another range was meant
            is_near = 0 < largest <= _LARGEST_SCALED and ends[1] - ends[0] >= 0.8 * largest
            if is_near and abs(math.log(largest)) < distance:
                best, distance = span, abs(math.log(largest))
        return best
