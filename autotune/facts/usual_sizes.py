"""Usual sizes of the dimensions that a model leaves open, for inputs that are generated.

A text of one token and an image of one pixel say little of a model's speed, and many models do not
run on them. So open dimensions get sizes that their kind of input usually has, where the model runs
with them (:mod:`autotune.facts.model_child` tries), and 1 elsewhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.facts.model_facts import Tensor

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of inputs by their names."""

_CHANNELS = (1, 3, 4)
# Caches and states grow with the sequence, by rules of each model's own.
_STATE_WORDS = ("past", "cache", "state", "hidden", "memory")


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """Sizes by kind of input.

    Attributes:
        height: Pixels of an image from top to bottom.
        width: Pixels of an image from left to right.
        tokens: Length of a text, or of a sequence of vectors.
        samples: Length of a sound.
    """

    height: int
    width: int
    tokens: int
    samples: int


# The input of ImageNet's models, a paragraph, and a second at 16 kHz; then what detectors and voice
# activity detectors take, with a short text for models whose table of positions is small; then the
# line of text that a recogniser takes.
_TRIES = (
    _Sizes(height=224, width=224, tokens=128, samples=16_000),
    _Sizes(height=640, width=640, tokens=16, samples=512),
    _Sizes(height=48, width=320, tokens=16, samples=512),
)


def usual_shapes(inputs: Sequence[Tensor]) -> Iterator[Shapes]:
    """Yields shapes of the inputs to try, the most usual first.

    Dimensions of one name have one size. The first dimension is the batch, with size 1. Nothing is
    yielded where no other dimension is open.
    """
    tried: list[Shapes] = [completed(inputs, {}, {})]  # all open dimensions are 1
    for sizes in _TRIES:
        named = {
            tensor.shape[0]: 1
            for tensor in inputs
            if tensor.shape and isinstance(tensor.shape[0], str) and is_name(tensor.shape[0])
        }
        shapes = {
            tensor.name: tuple(
                _size(tensor, axis, sizes, named) for axis in range(len(tensor.shape))
            )
            # tokens first: a mask of floats has the names of their dimensions
            for tensor in sorted(inputs, key=lambda tensor: not _is_text(tensor))
        }
        if shapes not in tried:
            tried.append(shapes)
            yield shapes


def completed(
    inputs: Sequence[Tensor], given: Mapping[str, Sequence[int]], usual: Shapes
) -> dict[str, tuple[int, ...]]:
    """Returns a shape for each input.

    Args:
        usual: Shapes with which the model ran; empty if none is known.
    """
    named = {
        dimension: size
        for tensor in inputs
        for size, dimension in zip(given.get(tensor.name, ()), tensor.shape, strict=False)
        if isinstance(dimension, str) and is_name(dimension)
    }

    def shape_of(tensor: Tensor) -> tuple[int, ...]:
        if tensor.name in given:
            return tuple(given[tensor.name])
        sizes = usual.get(tensor.name, (1,) * len(tensor.shape))
        return tuple(
            dimension if isinstance(dimension, int) else named.get(dimension or "", size)
            for dimension, size in zip(tensor.shape, sizes, strict=True)
        )

    return {tensor.name: shape_of(tensor) for tensor in inputs}


def _size(tensor: Tensor, axis: int, sizes: _Sizes, named: dict[str, int]) -> int:
    """Returns the size of a dimension; puts it into `named` where the dimension has a name."""
    dimension = tensor.shape[axis]
    if isinstance(dimension, int):
        return dimension
    size = 1 if axis == 0 else _usual_size(tensor, axis, sizes)
    return named.setdefault(dimension, size) if dimension and is_name(dimension) else size


def _usual_size(tensor: Tensor, axis: int, sizes: _Sizes) -> int:
    """Returns the size of an open dimension behind the first."""
    dimension = str(tensor.shape[axis]).lower()
    words = f"{tensor.name.lower()} {dimension}"
    if "batch" in dimension or any(word in words for word in _STATE_WORDS):
        return 1
    rank, is_float = len(tensor.shape), tensor.dtype.startswith("float")
    if rank == 4 and tensor.shape[1] in _CHANNELS:
        return sizes.height if axis == 2 else sizes.width
    if rank == 4 and tensor.shape[3] in _CHANNELS:
        return sizes.height if axis == 1 else sizes.width
    if _is_text(tensor):
        return sizes.tokens
    if is_float and (rank == 2 or (rank == 3 and tensor.shape[1] == 1)):
        return sizes.samples
    return sizes.tokens if is_float and rank == 3 else 1


def _is_text(tensor: Tensor) -> bool:
    """Returns whether the input is the tokens of a text, or their mask."""
    return len(tensor.shape) == 2 and (tensor.is_mask or tensor.dtype.startswith(("int", "bool")))


def is_name(dimension: str) -> bool:
    """Returns whether a dimension's name tells it from others; exporters' ``?`` does not."""
    return any(character.isalnum() for character in dimension)
