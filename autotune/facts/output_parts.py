"""The parts of a model's outputs: elements that are judged together.

Nodes of different scale may share an output: boxes in pixels and scores in 0 to 1. One distance
over all of it would hide the scores. So an output falls apart by the nodes that make its elements
(:mod:`autotune.measure.producers`), and, where one node makes columns of different scale, by the
sizes of the reference's own numbers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.deploy.records import Text, Whole
from autotune.facts.feeds import Feed

Array = NDArray[np.generic]

MOST_PLACES = 4096
"""An axis with more places than this counts positions, not columns."""

# Columns are apart if their size is another by this factor, with a gap between that no position in
# a picture or a text makes, and in each sample, which no object that comes and goes does.
_APART = 10.0
_GAP = 5.0
_APART_IN_EACH = 3.0
# What is smaller beside the largest column may be rounding of it.
_LEAST = 1e-6
_DEEPEST = 4
_FEWEST_IN_COLUMN = 8  # fewer values show no scale
# Probabilities in half precision add up to 1 within this.
_SUM_TOLERANCE = 1e-2
# They say themselves in which unit they are, so that small numbers are no other unit.
_OF_ONE_SCALE = ("Sigmoid", "Softmax", "Tanh", "Hardmax")


@dataclass(frozen=True, kw_only=True)
class Producer:
    """A node that makes elements of an output.

    Attributes:
        number: Its number among those of all outputs, from 1.
        tensor: The name of what it makes.
        operator: Its type; ``Sigmoid`` for products of sigmoids too. Empty for an input of the
            model and a weight.
    """

    number: Whole
    tensor: Text
    operator: str


@dataclass(frozen=True, kw_only=True)
class OutputPart:
    """Some elements of an output.

    Attributes:
        output: Name of the array, as :func:`autotune.measure.flatten.flatten` names it.
        producer: The node that makes them; None where it is not known.
        places: By axis, the places of the elements; all where an axis is left out.
        number: The number of its producer among the elements, where they lie in no such order.
    """

    output: str
    producer: Producer | None = None
    places: Mapping[int, tuple[int, ...]]
    number: int | None = None

    @property
    def operator(self) -> str:
        """The type of the node that makes it; empty where it is not known."""
        return "" if self.producer is None else self.producer.operator

    def of(self, array: Array) -> Array:
        """Returns the elements of an array that lie at these places."""
        for axis, places in self.places.items():
            array = array.take(places, axis) if places else array
        return array

    @property
    def words(self) -> str:
        """Its name, in the notation of NumPy, such as ``output0[:, 4:84] (scores)``."""
        made = f" ({self.producer.tensor})" if self.producer and self.is_a_part else ""
        last = max(self.places, default=-1)
        places = [_slice(self.places.get(axis)) for axis in range(last + 1)]
        where = f"[{', '.join(places)}]" if places else ""
        return f"{self.output}{where}{made}"

    @property
    def is_a_part(self) -> bool:
        """Whether there are other parts of the output."""
        return bool(self.places) or self.number is not None


def _slice(places: tuple[int, ...] | None) -> str:
    """Returns places as a slice, or how many there are where they lie apart."""
    if places is None:
        return ":"
    first, last = places[0], places[-1]
    if last - first + 1 != len(places):
        return f"{len(places)} places"
    return f"{first}:{last + 1}" if len(places) > 1 else f"{first}"


@dataclass(frozen=True)
class Origins:
    """The producers of a model's outputs, as far as they are known.

    Attributes:
        producers: Those of each output.
        elements: By output and shape, the number of the producer of each element.
    """

    producers: Mapping[str, Sequence[Producer]]
    elements: Mapping[tuple[str, tuple[int, ...]], NDArray[np.int32]]

    @classmethod
    def of(cls, producers: Mapping[str, Sequence[Producer]], samples: Sequence[Feed]) -> "Origins":
        """Returns them by the numbers of samples."""
        elements = {
            (name, array.shape): np.asarray(array, np.int32)
            for sample in samples
            for name, array in sample.items()
        }
        return cls(producers, elements)


UNKNOWN = Origins({}, {})
"""Nothing is known of the producers."""


def parts_of(name: str, arrays: Sequence[Array], origins: Origins) -> list[OutputPart]:
    """Returns the parts of an output.

    Args:
        arrays: The reference's, of all samples that have the output.
    """
    return [
        part
        for joined in _by_producer(name, arrays, origins)
        for part in _by_scale(joined, arrays, _DEEPEST)
    ]


def elements_of(part: OutputPart, array: Array, origins: Origins) -> NDArray[np.bool_] | None:
    """Returns where the elements of a part are its own; None where all are."""
    numbers = origins.elements.get((part.output, array.shape))
    if part.number is None or numbers is None:
        return None
    return np.asarray(part.of(numbers) == part.number, np.bool_)


def _by_producer(name: str, arrays: Sequence[Array], origins: Origins) -> Iterator[OutputPart]:
    """Yields the part of each producer of an output."""
    producers = origins.producers.get(name, ())
    numbered = [n for a in arrays if (n := origins.elements.get((name, a.shape))) is not None]
    if len(producers) < 2 or not numbered:
        yield OutputPart(
            output=name, producer=producers[0] if len(producers) == 1 else None, places={}
        )
        return
    for producer in producers:
        masks = [numbers == producer.number for numbers in numbered]
        if not any(mask.any() for mask in masks):
            continue
        axis = _axis_of(masks)
        if axis is None:
            yield OutputPart(output=name, producer=producer, places={}, number=producer.number)
        else:
            places = np.flatnonzero(_over_others(np.any, masks[0], axis))
            yield OutputPart(output=name, producer=producer, places={axis: tuple(places.tolist())})


def _axis_of(masks: Sequence[NDArray[np.bool_]]) -> int | None:
    """Returns the axis whose places alone say which elements are in all masks; None without one."""
    for axis in range(masks[0].ndim):
        rows = [_over_others(np.any, mask, axis) for mask in masks]
        if all(np.array_equal(row, rows[0]) for row in rows) and all(
            np.array_equal(_over_others(np.all, mask, axis), row)
            for mask, row in zip(masks, rows, strict=True)
        ):
            return axis
    return None


def _over_others(reduce_: Any, array: Array, axis: int) -> NDArray[Any]:
    """Returns an array reduced over all axes but one."""
    return np.asarray(reduce_(array, axis=tuple(i for i in range(array.ndim) if i != axis)))


def columns(arrays: Sequence[Array]) -> list[int]:
    """Returns the axes whose places may be columns: the same few in all samples, two at least."""
    if len({array.ndim for array in arrays}) != 1:
        return []
    sizes = [{*own} for own in zip(*(array.shape for array in arrays), strict=True)]
    return [a for a, own in enumerate(sizes) if len(own) == 1 and 2 <= max(own) <= MOST_PLACES]


def _channels(arrays: Sequence[Array]) -> list[int]:
    """Returns the axes whose places may differ in scale: not those of a picture.

    Where a picture is dark in all samples there is no other unit.
    """
    axes, shape = columns(arrays), arrays[0].shape
    values = sum(array.size for array in arrays)
    axes = [axis for axis in axes if values >= _FEWEST_IN_COLUMN * shape[axis]]
    return [axis for axis in axes if axis not in _picture_axes(shape)]


def _picture_axes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the axes of height and width: neighbours of the most equal sizes, the last of such.

    An array of three axes or fewer has none.
    """
    if len(shape) < 4:
        return ()
    ratios = {
        (first, first + 1): max(a, b) / max(1, min(a, b))
        for first, (a, b) in enumerate(pairwise(shape))
        if first
    }
    return min(reversed(ratios), key=ratios.__getitem__)


def _by_scale(part: OutputPart, arrays: Sequence[Array], depth: int) -> Iterator[OutputPart]:
    """Yields the parts of a part whose columns are of other scales."""
    has_columns = part.number is None and arrays[0].dtype.kind in "fiu"
    if not has_columns or part.operator in _OF_ONE_SCALE or _are_shares(arrays):
        yield part
        return
    own = [part.of(array) for array in arrays]
    for axis in _channels(own) if depth else []:
        groups = _groups(own, axis)
        if len(groups) > 1:
            before = part.places.get(axis, range(own[0].shape[axis]))
            for group in groups:
                places = tuple(sorted(before[place] for place in group))
                inner = replace(part, places={**part.places, axis: places})
                yield from _by_scale(inner, arrays, depth - 1)
            return
    yield part


def _are_shares(arrays: Sequence[Array]) -> bool:
    """Returns whether the numbers are probabilities that add up to 1, however they were made.

    Those of absent classes are small, and no other unit.
    """
    if arrays[0].dtype.kind != "f" or not arrays[0].ndim or not all(a.size for a in arrays):
        return False
    return all(bool((a >= 0).all()) for a in arrays) and all(  # type: ignore[operator]
        np.allclose(np.sum(a, -1, dtype=np.float64), 1, atol=_SUM_TOLERANCE) for a in arrays
    )


def _groups(arrays: Sequence[Array], axis: int) -> list[list[int]]:
    """Returns the places of an axis, those of one scale together, the smallest first."""
    sizes = np.array([_sizes(array, axis) for array in arrays])
    scale = np.sqrt((sizes**2).mean(0))
    order = scale.argsort(kind="stable")
    ordered = scale[order]
    rounding = ordered <= _LEAST * ordered[-1]
    cuts = 1 + np.flatnonzero((ordered[1:] >= _GAP * ordered[:-1]) & ~rounding[:-1])
    first, *others = (group.tolist() for group in np.split(order, cuts))
    groups = [first]
    for upper in others:
        if _is_apart(sizes, groups[-1], upper) and _varies(arrays, axis, groups[-1]):
            groups.append(upper)
        else:
            groups[-1] += upper
    return groups


def _sizes(array: Array, axis: int) -> NDArray[np.float64]:
    """Returns the root mean square of the finite values at each place of an axis."""
    values = np.asarray(array, np.float64)
    values = np.where(np.isfinite(values), values, 0.0)
    count = max(1, values.size // values.shape[axis])
    return np.asarray(np.sqrt(_over_others(np.sum, values**2, axis) / count))


def _is_apart(sizes: NDArray[np.float64], lower: list[int], upper: list[int]) -> bool:
    """Returns whether columns are larger than others, on the whole and in each sample.

    Args:
        sizes: By sample and place.
    """
    small, large = (np.sqrt((sizes[:, group] ** 2).mean(1)) for group in (lower, upper))
    ratio = float(np.linalg.norm(large)) / float(np.linalg.norm(small))
    return ratio >= _APART and bool((large >= _APART_IN_EACH * small).all())


def _varies(arrays: Sequence[Array], axis: int, places: list[int]) -> bool:
    """Returns whether columns differ from sample to sample."""
    first, *others = (array.take(places, axis) for array in arrays)
    return not others or not all(np.array_equal(first, array) for array in others)
