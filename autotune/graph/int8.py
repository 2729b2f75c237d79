"""Activations and weights in eight bits, static or dynamic.

The model is made ready first, and what is costly is kept for other sets of graph parameters
(:mod:`autotune.graph.float_model`). ONNX Runtime's own tools quantise.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from autotune.facts.feeds import Feed
from autotune.facts.graphs import (
    ONNX_DOMAINS,
    RUNTIME_DOMAIN,
    all_graphs,
    all_nodes,
    operator_of,
    taken_by,
)
from autotune.facts.weights import embedding_nodes
from autotune.graph import sensitivity
from autotune.graph.by_time import PRODUCTS, Quantise
from autotune.graph.calibration import Ranges, quantisable_types
from autotune.graph.dead_products import proven_constants
from autotune.graph.entries import (
    ALL_ERROR,
    AS_PRECISION,
    OFF,
    OPERATOR_GROUPS,
    StepRefusedError,
    UnfitModelError,
)
from autotune.graph.float_model import FloatModel, added_products
from autotune.graph.intermediates import Intermediates
from autotune.graph.model_file import remove_unneeded
from autotune.graph.ready_model import give_names, original_names
from autotune.graph.silence import silent_tools

# A convolution that is quantised at run time is slower than one in float.
_DYNAMIC_TYPES = ("MatMul", "LSTM", "Attention", "Gather", "EmbedLayerNormalization")
_DYNAMIC_RESULTS = frozenset(
    {"MatMulInteger", f"{RUNTIME_DOMAIN}.DynamicQuantizeLSTM", f"{RUNTIME_DOMAIN}.QAttention"}
)
_MATRIX_PRODUCTS = OPERATOR_GROUPS["matmul"].types
_MATRIX_RANK = 2
# A part whose range is so much smaller than another one's keeps fewer than four bits of eight.
_UNEQUAL = 16.0
# Beside a summand so much larger another one is less than a step of eight bits.
_MASKING = 256.0
_SUMS = frozenset({"Add", "Sub", "Where"})
# Larger constants that nodes share are tables, and a copy of one takes memory.
_MOST_COPIED = 1 << 16


@dataclass(frozen=True, kw_only=True)
class StaticOptions:
    """How a model gets weights and activations in eight bits.

    Attributes:
        per_channel: Whether each output channel of a weight has a scale of its own.
        reduce_range: Whether weights have seven bits, which do not saturate without VNNI.
        unsigned_weights: Whether weights are unsigned, which do not saturate without VNNI either.
        symmetric: Whether activations are signed, with zero in the middle.
        quantized_operators: A name of :data:`autotune.graph.entries.OPERATOR_GROUPS`.
        float_outputs: Whether matrix products write floats, so that their outputs are not rounded.
        slow_in_float: Whether nodes that eight bits make slower are excluded.
        error_left: With that, how much of the error of the others may be left, in percent: those
            with the largest error for the time that they save are excluded too.
        embeddings: What becomes of embeddings: ``as_precision`` quantises them with the other
            nodes where all types are, the other values exclude them.
        smoothing: How much of the outliers of activations goes into weights.
    """

    calibration: str = "minmax"
    per_channel: bool = False
    reduce_range: bool = False
    unsigned_weights: bool = False
    symmetric: bool = False
    quantized_operators: str = "all"
    float_outputs: bool = False
    kept_in_float: int = 0
    slow_in_float: bool = False
    error_left: int = ALL_ERROR
    embeddings: str = AS_PRECISION
    smoothing: str = OFF

    @property
    def types(self) -> tuple[str, ...]:
        """Types of the nodes that are quantised; none means all that can be."""
        return OPERATOR_GROUPS[self.quantized_operators].types

    @property
    def weighted_types(self) -> tuple[str, ...]:
        """Those of them that have weights."""
        return self.types or sensitivity.QUANTISABLE

    @property
    def kernels(self) -> str:
        """The name of what decides on the kernels of ONNX Runtime, and so on times."""
        flags = ("unsigned_weights", "symmetric", "float_outputs")
        return "-".join([self.quantized_operators, *(f for f in flags if getattr(self, f))])


def static(
    source: Path,
    target: Path,
    samples: Sequence[Feed],
    *,
    shared: Intermediates | None = None,
    **options: Any,
) -> None:
    """Writes the model with activations and weights in eight bits (QDQ).

    Args:
        shared: What other sets of graph parameters of the model made.
        options: Fields of :class:`StaticOptions`.

    Raises:
        StepRefusedError: there is nothing to quantise, or the model cannot be made ready.
    """
    how = StaticOptions(**options)
    ready = FloatModel.ready(source, samples, shared or Intermediates())
    if not sensitivity.quantisable(ready.load()):
        raise UnfitModelError("there is no node with a constant weight to quantise")
    if not sensitivity.quantisable(ready.load(), how.weighted_types):
        raise StepRefusedError("there is no node of these types with a constant weight")
    adjusted = ready.smoothed(how.smoothing)
    model = adjusted.load()
    ranges = adjusted.ranges(how.calibration, target.with_name("calibrated.onnx"))
    in_float = _unfit(model, ranges, how)
    slow = _slow(ready, ranges, how) if how.slow_in_float else []
    in_float += slow
    in_float += adjusted.most_sensitive(how.weighted_types, how.kept_in_float, in_float)
    quantisable = set(sensitivity.quantisable(model, how.weighted_types))
    if quantisable <= set(in_float):
        raise StepRefusedError(_nothing_left(how, quantisable <= set(slow)))
    excluded = [*in_float, *_embeddings_apart(model, how.embeddings)]
    names = original_names(model)
    _quantise_statically(model, target, ranges, excluded, how)
    give_names(target, names)


def _nothing_left(how: StaticOptions, all_slow: bool) -> str:
    """Returns why no node is quantised."""
    if not all_slow:
        return "there is no node left that can be quantised"
    if how.error_left < ALL_ERROR:
        return "no node is faster in eight bits and leaves so little of the error"
    return "eight bits make every node slower here"


def _slow(ready: FloatModel, ranges: Ranges, how: StaticOptions) -> list[str]:
    """Returns which nodes eight bits make slower.

    Smoothing and scales for each channel change no kernel: one measurement serves all their values.
    It is made with one scale, because some weights cannot have several.
    """
    quantise = quantiser(ranges, replace(how, per_channel=False))
    return ready.slow(quantise, how.kernels, ranges, how.error_left)


def _unfit(model: onnx.ModelProto, ranges: Ranges, how: StaticOptions) -> list[str]:
    """Returns the names of the nodes that cannot be quantised so."""
    return [
        *foreign_nodes(model),
        *_nodes_without_range(model, ranges),
        *unequal_joins(model, ranges),
        *(_stacked_products(model) if how.per_channel else []),
    ]


def quantiser(ranges: Ranges, how: StaticOptions) -> Quantise:
    """Returns what writes a copy of a model with these ranges, all in eight bits."""

    def quantise(model: onnx.ModelProto, renamed: Mapping[str, str], path: Path) -> None:
        own = {renamed.get(name, name): values for name, values in ranges.items()}
        _quantise_statically(model, path, own, _unfit(model, own, how), how)

    return quantise


def _embeddings_apart(model: onnx.ModelProto, embeddings: str) -> list[str]:
    """Returns the names of the embeddings that are not quantised with the other nodes."""
    if embeddings == AS_PRECISION:
        return []
    return [node.name for node in embedding_nodes(model.graph)]


def _stacked_products(model: onnx.ModelProto) -> list[str]:
    """Returns the names of matrix products whose weight is a stack of matrices, or a vector.

    ONNX Runtime takes one scale for such a weight, and none for each channel.
    """
    return [
        target.node.name
        for target in sensitivity.targets(model, ("MatMul",))
        if target.weight.ndim != _MATRIX_RANK
    ]


def _nodes_without_range(model: onnx.ModelProto, ranges: Ranges) -> list[str]:
    """Returns the names of the nodes that take or make values which no scale holds.

    Such are the sums with a mask of minus infinity. And where a tensor had one value alone in all
    samples, its range says nothing of other samples: what a mask without padding adds is 0, and
    rounded to that range it hides no padding. What has one value for every input keeps it. Of the
    sum of numbers and a mask of -10,000 one scale would hold the mask alone.
    """
    proven = proven_constants(model.graph)
    endless = {
        name
        for name, (_, low, high) in ranges.items()
        if not _are_finite(low, high) or (np.array_equal(low, high) and name not in proven)
    }
    sizes = _sizes(ranges)
    for item in model.graph.initializer:
        if item.data_type == onnx.TensorProto.FLOAT:
            values = numpy_helper.to_array(item)
            if not _are_finite(values):
                endless.add(item.name)
            else:
                sizes[item.name] = float(np.abs(values).max(initial=0.0))
    for node in model.graph.node:
        given = [sizes[name] for name in node.input if sizes.get(name)]
        if operator_of(node) in _SUMS and len(given) > 1 and max(given) > _MASKING * min(given):
            endless.update(node.output)
    return [
        node.name
        for node in model.graph.node
        if not endless.isdisjoint((*node.input, *node.output))
    ]


def foreign_nodes(model: onnx.ModelProto) -> list[str]:
    """Returns the names of nodes whose type the tools take for another operator of that name."""
    known = (*ONNX_DOMAINS, RUNTIME_DOMAIN)
    return [
        node.name
        for node in all_nodes(model.graph)
        if node.domain not in known or operator_of(node) == "Attention"
    ]


def unequal_joins(model: onnx.ModelProto, ranges: Ranges) -> list[str]:
    """Returns the names of the nodes that give outputs parts of very unequal ranges.

    A detector joins boxes in pixels with scores up to 1, or multiplies some columns by the size of
    the picture: eight bits for both leave the scores no digit. What follows such a node up to the
    outputs takes floats as well. Where a product takes the tensor, it is one of features, whose
    parts a product weighs.
    """
    graph, sizes = model.graph, _sizes(ranges)
    takers: dict[str, list[onnx.NodeProto]] = {}
    for node in graph.node:
        for name in taken_by(node):
            takers.setdefault(name, []).append(node)
    apart: dict[str, None] = {}
    factors = {
        item.name: np.abs(numpy_helper.to_array(item))
        for item in graph.initializer
        if item.data_type == onnx.TensorProto.FLOAT and 1 < math.prod(item.dims) <= _MOST_COPIED
    }
    for node in graph.node:
        given: list[float] = []
        if operator_of(node) == "Concat":
            given = [sizes[name] for name in node.input if sizes.get(name)]
        elif operator_of(node) in ("Mul", "Div"):
            arrays = [factors[name] for name in node.input if name in factors]
            given = [float(value) for array in arrays for value in array[array > 0]]
        if max(given, default=0) < _UNEQUAL * min(given, default=1):
            continue
        tail = {node.name: node}
        pending = [node]
        while pending:
            for taker in (t for name in pending.pop().output for t in takers.get(name, ())):
                if taker.name not in tail:
                    tail[taker.name] = taker
                    pending.append(taker)
        if PRODUCTS.isdisjoint(map(operator_of, tail.values())):
            apart.update(dict.fromkeys(tail))
    return list(apart)


def _sizes(ranges: Ranges) -> dict[str, float]:
    """Returns the largest absolute value of each tensor with a finite range."""
    return {
        name: max(abs(float(np.min(low))), abs(float(np.max(high))))
        for name, (_, low, high) in ranges.items()
        if _are_finite(low, high)
    }


def _are_finite(*values: Any) -> bool:
    return all(np.isfinite(value).all() for value in values)


def _quantise_statically(
    model: onnx.ModelProto,
    target: Path,
    ranges: Ranges,
    excluded: Collection[str],
    how: StaticOptions,
) -> None:
    """Writes the model with quantised nodes, none of them in `excluded`."""
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization.calibrate import TensorData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer

    types = list(how.types) or quantisable_types()
    left = [n for n in model.graph.node if n.name in excluded or operator_of(n) not in types]
    _copy_shared_constants(model, {node.name for node in left})
    with silent_tools():
        quantizer = QDQQuantizer(
            model,
            how.per_channel,
            how.reduce_range,
            QuantType.QUInt8 if how.unsigned_weights else QuantType.QInt8,
            QuantType.QInt8 if how.symmetric else QuantType.QUInt8,
            {
                name: TensorData(lowest=np.array(low, kind), highest=np.array(high, kind))
                for name, (kind, low, high) in ranges.items()
                if _are_finite(low, high)
            },
            [],
            [*excluded, *added_products(model)],
            types,
            {
                "ActivationSymmetric": how.symmetric,
                # convolutions take one zero for all channels
                "WeightSymmetric": True,
                # it compares arrays as if they were numbers where a MatMul has scales per channel
                "QDQDisableWeightAdjustForInt32Bias": how.per_channel,
                "OpTypesToExcludeOutputQuantization": (
                    _MATRIX_PRODUCTS if how.float_outputs else ()
                ),
            },
        )
        quantizer.model.replace_input_of_all_nodes = partial(_replace_inputs, quantizer.model.model)
        quantizer.quantize_model()
        if added := added_products(model):
            _read_unrounded(quantizer.model.model, added)
        quantizer.model.save_model_to_file(str(target))


def _replace_inputs(model: onnx.ModelProto, old: str, new: str) -> None:
    """Does the same as the method of ONNX Runtime's tools, which takes a fifth of their time."""
    for node in model.graph.node:
        if old in node.input:
            node.input[:] = [new if name == old else name for name in node.input]


def _copy_shared_constants(model: onnx.ModelProto, in_float: Collection[str]) -> None:
    """Gives nodes in float copies of the small constants that they share with other nodes.

    ONNX Runtime's tools give the rounded constant to all that take it. A convolution in float whose
    bias is rounded, such as one of zeros that exporters share, loses its fast layout.
    """
    graph = model.graph
    constants = {
        item.name: item
        for item in graph.initializer
        if item.data_type == onnx.TensorProto.FLOAT and math.prod(item.dims) <= _MOST_COPIED
    }
    taken = {name for node in graph.node if node.name not in in_float for name in node.input}
    for name in constants.keys() & taken:
        takers = [n for n in graph.node if n.name in in_float and name in n.input]
        if not takers:
            continue
        copy = onnx.TensorProto()
        copy.CopyFrom(constants[name])
        copy.name = f"{name}_in_float"
        graph.initializer.append(copy)
        for node in takers:
            node.input[:] = [copy.name if item == name else item for item in node.input]


def _read_unrounded(model: onnx.ModelProto, names: Sequence[str]) -> None:
    """Makes these nodes take what is rounded for others as it was before.

    ONNX Runtime's tools give the rounded tensor to all that take it. What smoothing divides must
    not be rounded before, because that would undo it.
    """
    producers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.name not in names:
            continue
        back = producers.get(node.input[0])
        if back is not None and operator_of(back) == "DequantizeLinear":
            rounding_node = producers.get(back.input[0])
            if rounding_node is not None and operator_of(rounding_node) == "QuantizeLinear":
                node.input[0] = rounding_node.input[0]
    # what nobody takes rounded any more need not be rounded; ONNX Runtime would go on doing so
    remove_unneeded(model.graph)


def _bare(model: onnx.ModelProto) -> list[str]:
    """Returns the names of LSTM nodes whose weights are no constants of their own graph.

    The tool looks for them there alone.
    """
    names = []
    for graph in all_graphs(model.graph):
        constants = {item.name for item in graph.initializer}
        lstms = [node for node in graph.node if operator_of(node) == "LSTM"]
        names += [node.name for node in lstms if not constants.issuperset(node.input[1:3])]
    return names


def dynamic(
    source: Path,
    target: Path,
    samples: Sequence[Feed],
    *,
    shared: Intermediates | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    unsigned_weights: bool = False,
    kept_in_float: int = 0,
    embeddings: str = AS_PRECISION,
    smoothing: str = OFF,
) -> None:
    """Writes the model with eight-bit weights, and activations that are rounded at run time.

    Convolutions stay in float. Products in the branches and bodies of other nodes are quantised
    too. See :class:`StaticOptions` for the options.

    Raises:
        StepRefusedError: there is nothing to quantise, or the model cannot be made ready.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    adjusted = FloatModel.ready(source, samples, shared or Intermediates()).smoothed(smoothing)
    model = adjusted.load()
    excluded = _stacked_products(model) if per_channel else []
    excluded += adjusted.most_sensitive(_MATRIX_PRODUCTS, kept_in_float, excluded)
    excluded += [*_embeddings_apart(model, embeddings), *foreign_nodes(model), *_bare(model)]
    names = original_names(model)
    copy = target.with_name("float.onnx")
    onnx.save(model, copy)
    with silent_tools():
        quantize_dynamic(
            copy,
            target,
            op_types_to_quantize=list(_DYNAMIC_TYPES),
            per_channel=per_channel,
            reduce_range=reduce_range,
            weight_type=QuantType.QUInt8 if unsigned_weights else QuantType.QInt8,
            # a Gemm becomes a MatMul of this name first
            nodes_to_exclude=[*excluded, *(f"{name}_MatMul" for name in excluded)],
            extra_options={
                "MatMulConstBOnly": True,
                "EnableSubgraph": True,
                "WeightSymmetric": True,
            },
        )
    copy.unlink()
    give_names(target, names)
    written = onnx.load(target, load_external_data=False).graph
    if _DYNAMIC_RESULTS.isdisjoint(operator_of(node) for node in all_nodes(written)):
        error = StepRefusedError if excluded else UnfitModelError
        raise error("there is no matrix product or LSTM to quantise")
