"""Nodes that change nothing, or compute the same each time."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

from autotune.facts.graphs import attribute_of, operator_of
from autotune.graph.algebra.expressions import with_number
from autotune.graph.algebra.scope import READ_TYPES, SMALL, Array, Scope

COMPUTED = (
    "Add Cast Concat ConstantOfShape Div Equal Exp Expand Flatten Gather Identity Mul Neg Pow "
    "Reciprocal Reshape Slice Sqrt Squeeze Sub Transpose Unsqueeze Where"
)
"""Operators whose value on constants is computed once. Whole numbers are left alone where they
would be divided."""


def constant(scope: Scope, node: onnx.NodeProto) -> bool:
    """Computes a node whose inputs are all constants.

    The result may have as many elements as the inputs together, or a few thousand.
    """
    names = [name for name in node.input if name]
    values = {name: scope.array(name) for name in names}
    arrays = {name: array for name, array in values.items() if array is not None}
    output = node.output[0]
    if not names or len(arrays) < len(values) or scope.is_visible(output):
        return False
    if operator_of(node) == "Div" and arrays[node.input[0]].dtype.kind != "f":
        return False
    if _largest_size(node, arrays) > max(SMALL, sum(a.size for a in arrays.values())):
        return False
    result = _computed(scope, node, arrays)
    if result is None or result.dtype.name not in READ_TYPES.values():
        return False
    return scope.bypass(node, scope.constant(result, output))


def _largest_size(node: onnx.NodeProto, arrays: Mapping[str, Array]) -> float:
    """Returns at most how many elements a node computes, known before it is computed."""
    given = [arrays[name] for name in node.input if name]
    if operator_of(node) == "Expand":
        shapes = [given[0].shape, tuple(given[1].reshape(-1))]
    elif operator_of(node) == "ConstantOfShape":
        return float(np.prod(given[0], dtype=float))
    elif operator_of(node) == "Gather":
        return float(given[0].size) * given[1].size
    elif operator_of(node) in ("Add", "Sub", "Mul", "Div", "Pow", "Equal", "Where"):
        shapes = [array.shape for array in given]
    else:
        return sum(array.size for array in given)
    longest = max(map(len, shapes))
    padded = [(1,) * (longest - len(shape)) + tuple(shape) for shape in shapes]
    return float(np.prod([max(sizes) for sizes in zip(*padded, strict=True)], dtype=float))


def _computed(scope: Scope, node: onnx.NodeProto, arrays: Mapping[str, Array]) -> Array | None:
    """Returns what a node computes from constants; None where that fails."""
    from onnx.reference import ReferenceEvaluator

    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), None)
        for name, array in arrays.items()
    ]
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=node.output[0])])
    try:
        with np.errstate(all="ignore"):
            evaluator = ReferenceEvaluator(graph, opsets={"": scope.opset})
            result: Any = evaluator.run(None, dict(arrays))
    except Exception:  # noqa: BLE001  # a node that cannot be computed stays as it is
        return None
    return np.asarray(result[0])


def identity(scope: Scope, node: onnx.NodeProto) -> bool:
    """Removes a node whose output is its input.

    Identity, a Dropout that does not train, a Cast to the same type, a Transpose in the same order,
    a Concat, Sum, Max or Min of one tensor, a Reshape or Expand to the same known sizes, a Slice of
    everything, a Pad of nothing, ``x + 0``, ``x - 0``, ``1 x`` and ``x / 1``. Of these,
    a sum with zero alone changes a bit: minus zero becomes zero.
    """
    if not _is_identity(scope, node) or sum(map(bool, node.output)) != 1:
        return False
    takes_sizes = operator_of(node) in ("Reshape", "Expand", "Slice", "Pad")
    return scope.bypass(node, node.input[0] if takes_sizes else with_tensor(scope, node))


def with_tensor(scope: Scope, node: onnx.NodeProto) -> str:
    """Returns the input of a node that is no constant."""
    constants = [scope.array(name) is not None for name in node.input]
    name: str = node.input[constants.index(False)] if False in constants else node.input[0]
    return name


def _is_identity(scope: Scope, node: onnx.NodeProto) -> bool:
    kind = operator_of(node)
    if kind == "Identity":
        return True
    if kind == "Dropout":
        training = scope.array(node.input[2]) if len(node.input) > 2 and node.input[2] else False
        return training is not None and not np.any(training)
    if kind == "Cast":
        type_ = scope.kind(node.input[0])
        return type_ != 0 and type_ == attribute_of(node, "to")
    if kind == "Transpose":
        order = list(attribute_of(node, "perm", ()))
        return bool(order) and order == sorted(order)
    if kind in ("Concat", "Sum", "Max", "Min"):
        return len(node.input) == 1
    if kind in ("Reshape", "Expand"):
        shape = scope.shape(node.input[0])
        is_known = shape is not None and None not in shape and scope.integers(node.input[1])
        return bool(is_known) and shape == scope.shape(node.output[0])
    if kind == "Slice":
        cut = _cut(scope, node)
        return cut is not None and all(
            (c.start, c.step) == (0, 1) and c.end >= _EVERYTHING for c in cut.values()
        )
    if kind == "Pad":
        pads = attribute_of(node, "pads")
        if scope.opset >= 11:
            pads = scope.integers(node.input[1])
        return pads is not None and not any(pads)
    parts = with_number(scope, node)
    if parts is None or (kind in ("Sub", "Div") and parts[2] == 0):
        return False
    return parts[1] == (0 if kind in ("Add", "Sub") else 1)


def axes_of(scope: Scope, node: onnx.NodeProto) -> list[int] | None:
    """Returns the axes of a Squeeze, an Unsqueeze or a reduction; None where they are not known."""
    if len(node.input) > 1 and node.input[1]:
        return scope.integers(node.input[1])
    axes = attribute_of(node, "axes")
    return None if axes is None else list(axes)


# Exporters write this, or the largest integer of 64 bits, for an end that is open.
_EVERYTHING = 2**31 - 1


class _Cut(NamedTuple):
    """What a Slice takes of one axis."""

    start: int
    end: int
    step: int


def _cut(scope: Scope, node: onnx.NodeProto) -> dict[int, _Cut] | None:
    """Returns what a Slice takes of each axis that it names; None where that is not known."""
    if scope.opset < 10:
        lists = [attribute_of(node, name) for name in ("starts", "ends", "axes")]
        starts, ends, axes = (None if values is None else list(values) for values in lists)
        steps = None
    else:
        names = [*node.input[1:], "", ""][:4]
        starts, ends, axes, steps = (scope.integers(n) if n else None for n in names)
        if any(name and scope.integers(name) is None for name in names):
            return None
    if starts is None or ends is None:
        return None
    axes = list(range(len(starts))) if axes is None else axes
    rank = scope.rank(node.input[0])
    if any(axis < 0 for axis in axes):
        if rank is None:
            return None
        axes = [axis % rank for axis in axes]
    cuts = zip(starts, ends, steps or [1] * len(starts), strict=True)
    return {axis: _Cut(*cut) for axis, cut in zip(axes, cuts, strict=True)}


def known_shape(scope: Scope, node: onnx.NodeProto) -> bool:
    """Makes a Shape, or what a Gather or Slice takes of one, a constant where it is known.

    No number changes, and what follows is a constant too.
    """
    source = node if operator_of(node) == "Shape" else scope.producer(node.input[0], "Shape")
    if source is None or scope.is_visible(node.output[0]):
        return False
    part = slice(attribute_of(source, "start", 0), attribute_of(source, "end"))
    shape = scope.sizes(source.input[0])
    shape = None if shape is None else shape[part]
    taken = None if shape is None else _taken(scope, node, shape)
    sizes = [size for size in taken or () if isinstance(size, int)]
    if taken is None or len(sizes) < len(taken):
        return False
    values = np.array(sizes, np.int64)
    places = scope.array(node.input[1]) if operator_of(node) == "Gather" else None
    if places is not None:
        values = values.reshape(places.shape)
    return scope.bypass(node, scope.constant(values, node.output[0]))


_Sizes = Sequence[int | str | None]


def _taken(scope: Scope, node: onnx.NodeProto, shape: _Sizes) -> _Sizes | None:
    """Returns which sizes of a shape a node takes; None where that is not known."""
    if operator_of(node) == "Shape":
        return shape
    if operator_of(node) == "Gather":
        places = scope.integers(node.input[1])
        is_within = places is not None and all(-len(shape) <= i < len(shape) for i in places)
        return [shape[i] for i in places or ()] if is_within else None
    cut = (_cut(scope, node) or {}).get(0)
    return None if cut is None or cut.step < 1 else shape[cut.start : cut.end : cut.step]


def copied_sizes(scope: Scope, node: onnx.NodeProto) -> bool:
    """Makes the shape of a Reshape a constant where it is put together of sizes that are known.

    Exporters take the sizes of a tensor one by one and join them with new ones. An open size that
    the input has at the same place, because it was taken from there or has the same name, is copied
    where the shape has a zero: no number changes. What computed the sizes goes.
    """
    joined = scope.producer(node.input[1], "Concat")
    takes_zero = attribute_of(node, "allowzero", 0)
    if joined is None:
        return False
    own = scope.sizes(node.input[0]) or ()
    shape: list[int] = []
    for name in joined.input:
        given = scope.integers(name)
        taken = None if given else _one_size(scope, name)
        if given and takes_zero and 0 in given:
            return False
        if given:
            shape += given
        elif taken is None:
            return False
        elif isinstance(taken.size, int):
            shape.append(taken.size)
        elif (taken.tensor, taken.place) == (node.input[0], len(shape)) or (
            taken.size is not None and own[len(shape) : len(shape) + 1] == (taken.size,)
        ):
            shape.append(0)
        else:
            return False
    constant_shape = scope.constant(np.array(shape, np.int64), f"{node.output[0]}/shape")
    scope.replace(
        node, scope.make("Reshape", [node.input[0], constant_shape], output=node.output[0])
    )
    return True


def chosen_sizes(scope: Scope, node: onnx.NodeProto) -> bool:
    """Removes ``Where(shape == -1, 1, shape)``, which PyTorch writes before each Expand.

    A size that was taken of a tensor is never -1, and a constant -1 is 1 then: no number changes.
    """
    condition, chosen, name = node.input
    test, joined = scope.producer(condition, "Equal"), scope.producer(name, "Concat")
    if test is None or joined is None or name not in test.input or not node.input[1]:
        return False
    (compared,) = [item for item in test.input if item != name] or [""]
    known = [scope.integers(item) for item in joined.input]
    if any(
        v is None and _one_size(scope, n) is None for v, n in zip(known, joined.input, strict=True)
    ):
        return False
    length = sum(1 if values is None else len(values) for values in known)
    for item, value in ((chosen, 1), (compared, -1)):
        values = scope.integers(item)
        if not values or set(values) != {value} or len(values) not in (1, length):
            return False
    parts = [
        item if values is None else scope.constant(np.where(np.equal(values, -1), 1, values), item)
        for item, values in zip(joined.input, known, strict=True)
    ]
    scope.replace(node, scope.make("Concat", parts, node.output[0], axis=0))
    return True


class _OneSize(NamedTuple):
    """One size of a tensor.

    Attributes:
        tensor: The tensor.
        place: The axis, counted from the first one.
        size: The size, or its name; None where it has none.
    """

    tensor: str
    place: int
    size: int | str | None


def _one_size(scope: Scope, name: str) -> _OneSize | None:
    """Returns the size that a tensor of one number holds; None if it holds something else."""
    around = scope.producer(name, "Unsqueeze", "Reshape")
    taker = scope.producer(around.input[0] if around else name, "Gather", "Slice", "Shape")
    if taker is not None and operator_of(taker) == "Shape":
        start, end = attribute_of(taker, "start", 0), attribute_of(taker, "end", 0)
        return _size(scope, taker.input[0], start) if 0 <= start == end - 1 else None
    source = None if taker is None else scope.producer(taker.input[0], "Shape")
    if taker is None or source is None or attribute_of(source, "start", 0):
        return None
    if attribute_of(source, "end") is not None:
        return None
    if operator_of(taker) == "Gather":
        places = scope.integers(taker.input[1])
    else:
        cut = (_cut(scope, taker) or {}).get(0)
        is_one = cut is not None and (cut.end, cut.step) == (cut.start + 1, 1)
        places = [cut.start] if cut is not None and is_one else None
    if places is None or len(places) != 1 or places[0] < 0:
        return None
    return _size(scope, source.input[0], places[0])


def _size(scope: Scope, tensor: str, place: int) -> _OneSize:
    sizes = scope.sizes(tensor) or ()
    return _OneSize(tensor, place, sizes[place] if place < len(sizes) else None)
