"""Sizes of the dimensions that a model leaves open, for inputs that are generated.

A text of one token and a picture of one pixel say little of a model's speed, and many models do not
run on them. So an open dimension gets the size that the weights demand, else the usual sizes of its
kind in :data:`_KINDS`, by the names of the dimension and of its input. Which of them the model
runs with is tried (:mod:`autotune.facts.tried_inputs`).
"""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.facts.model_facts import Tensor

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of inputs by their names."""

_CHANNELS = (1, 3, 4)
_LATENT_CHANNELS = (4, 16)
# A batch of graphs, their nodes and the features of these; a decoder's caches have more.
_MOST_NODE_AXES = 3
# A picture has four dimensions, a video or a volume five; where their channels are.
_CHANNEL_AXES = {4: (1, 3), 5: (2, 1, 4)}
# Names of dimensions of pictures that are given together and are no video.
_STACKED = ("image", "img", "crop", "patch", "tile", "view")
# More combinations of sizes than these are not tried.
_MOST_TRIES = 24


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """A kind of dimension.

    Attributes:
        words: Parts of names of such dimensions.
        sizes: Its usual sizes, the most usual first: the sizes that are tried.
    """

    words: tuple[str, ...] = ()
    sizes: tuple[int, ...]


# The first kind with a word in the name of the dimension decides, then in the name of the input.
_KINDS: Mapping[str, _Kind] = {
    "batch": _Kind(words=("batch", "bsz"), sizes=(1,)),
    "past": _Kind(words=("past", "cache"), sizes=(1,)),
    "channels": _Kind(words=("channel", "colors"), sizes=(3, 1, 4)),
    "height": _Kind(words=("height",), sizes=(224, 256, 384, 512, 640, 48, 64)),
    "width": _Kind(words=("width",), sizes=(224, 256, 384, 512, 640, 320, 64)),
    # a picture in the space in which a diffusion model works
    "latent height": _Kind(sizes=(64, 32, 128)),
    "latent width": _Kind(sizes=(64, 32, 128)),
    # how many pictures a video or a volume has, and how many are given together
    "stack": _Kind(sizes=(16, 8, 32, 1, 64)),
    "images": _Kind(sizes=(1, 2, 5)),
    "edges": _Kind(words=("edge",), sizes=(64, 1)),
    "nodes": _Kind(words=("node", "track", "point", "particle", "vert"), sizes=(32, 1)),
    "samples": _Kind(
        words=("sample", "audio", "wave", "sound", "pcm", "speech", "input_values"),
        sizes=(16_000, 512, 256, 1536, 1024, 480, 1280, 48_000, 160_000),
    ),
    "frames": _Kind(
        words=("frame", "time", "input_features", "mel", "spec", "feats", "fbank"),
        sizes=(100, 128, 300, 3000, 76, 16),
    ),
    "tokens": _Kind(
        words=("sequence", "token", "seq", "length", "text", "phoneme", "word", "len"),
        sizes=(128, 77, 32, 16, 8, 512),
    ),
    "features": _Kind(words=("feature", "dim", "embed"), sizes=(64, 1)),
    "states": _Kind(words=("state", "hidden", "memory"), sizes=(1, 64, 128)),
    "other": _Kind(sizes=(1,)),
}


def usual_shapes(
    inputs: Sequence[Tensor], given: Mapping[str, Sequence[int]] | None = None
) -> Iterator[Shapes]:
    """Yields shapes of the inputs to try, the most usual first; at least one.

    Dimensions of one name have one size.

    Args:
        given: Shapes that the user gives to inputs by name.
    """
    given = given or {}
    # where inputs share the name of a dimension, tokens tell its kind best, and masks least
    tensors = sorted(inputs, key=lambda t: (not _is_text(t), t.is_mask, -len(t.shape)))
    named = _named_sizes(tensors, given)
    kinds = {kind for tensor in tensors for kind in _open_kinds(tensor, given, named)}
    # height and width go together
    leading = sorted(kinds - {"width", "latent width"})
    counts = [len(_KINDS[kind].sizes) for kind in leading]
    choices = sorted(itertools.product(*map(range, counts)), key=sum)[:_MOST_TRIES]
    tried: list[Shapes] = []
    for choice in choices:
        places = dict(zip(leading, choice, strict=True))
        places["width"] = places.get("height", 0)
        places["latent width"] = places.get("latent height", 0)
        shapes = _shapes(tensors, given, named, places)
        ordered = {tensor.name: shapes[tensor.name] for tensor in inputs}
        if ordered not in tried:
            tried.append(ordered)
            yield ordered


def size_of(shapes: Shapes) -> int:
    """Returns how many numbers inputs of these shapes have."""
    return sum(map(math.prod, shapes.values()))


def is_name(dimension: str) -> bool:
    """Returns whether a dimension's name tells it from others; exporters' ``?`` does not."""
    return any(character.isalnum() for character in dimension)


def _named_sizes(inputs: Sequence[Tensor], given: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Returns the sizes of named dimensions that the user or the weights give."""
    named: dict[str, int] = {}
    for tensor in inputs:
        for size, dimension in zip(given.get(tensor.name, ()), tensor.shape, strict=False):
            if isinstance(dimension, str) and is_name(dimension):
                named.setdefault(dimension, size)
    for tensor in inputs:
        for known, dimension in zip(tensor.known, tensor.shape, strict=False):
            if known and isinstance(dimension, str) and is_name(dimension):
                named.setdefault(dimension, known)
    return named


def _open_kinds(
    tensor: Tensor, given: Mapping[str, Sequence[int]], named: Mapping[str, int]
) -> Iterator[str]:
    """Yields the kinds of an input's dimensions of which nothing gives the size."""
    for axis, dimension in enumerate(tensor.shape):
        is_known = isinstance(dimension, int) or tensor.name in given or dimension in named
        if not is_known and not (tensor.known and tensor.known[axis]):
            yield _kind(tensor, axis)


def _shapes(
    inputs: Sequence[Tensor],
    given: Mapping[str, Sequence[int]],
    named: Mapping[str, int],
    places: Mapping[str, int],
) -> dict[str, tuple[int, ...]]:
    """Returns a shape for each input.

    Args:
        places: Which of its sizes each kind of dimension has.
    """
    sizes = dict(named)
    shapes: dict[str, list[int]] = {}
    sums: list[tuple[str, int, str]] = []
    for tensor in inputs:
        shapes[tensor.name] = list(given.get(tensor.name, ()))
        if tensor.name in given:
            continue
        for axis, dimension in enumerate(tensor.shape):
            kind = _KINDS[_kind(tensor, axis)].sizes
            usual = kind[min(places.get(_kind(tensor, axis), 0), len(kind) - 1)]
            size = (tensor.known[axis] if tensor.known else None) or usual
            if isinstance(dimension, int):
                size = dimension
            elif dimension and is_name(dimension):
                if _terms(dimension):
                    sums.append((tensor.name, axis, dimension))
                size = sizes.setdefault(dimension, size)
            shapes[tensor.name].append(size)
    for name, axis, dimension in sums:
        terms = [int(t) if t.isdigit() else sizes.get(t) for t in _terms(dimension)]
        if dimension not in named and all(term is not None for term in terms):
            shapes[name][axis] = sum(term or 0 for term in terms)
    return {name: tuple(shape) for name, shape in shapes.items()}


def _terms(dimension: str) -> list[str]:
    """Returns the summands of a name such as ``past_sequence_length + 1``; empty for another."""
    if re.fullmatch(r"total_(sequence|seq)_len(gth)?", dimension):
        return [dimension.replace("total_", "past_"), dimension.removeprefix("total_")]
    terms = [term.strip() for term in dimension.split("+")]
    return terms if len(terms) > 1 and all(re.fullmatch(r"\w+", t, re.ASCII) for t in terms) else []


def _kind(tensor: Tensor, axis: int) -> str:
    """Returns the kind of an open dimension: by its name, its place, or the input's name."""
    dimension, name = str(tensor.shape[axis] or "").lower(), tensor.name.lower()
    rank = len(tensor.shape)
    named = _named_kind(dimension, tuple(_KINDS))
    picked = _picked_kind(tensor, axis)
    if named == "batch" or (axis == 0 and dimension in ("n", "b") and picked is None):
        return "batch"
    if (picture := _picture_kind(tensor, axis)) is not None:
        return picture
    if named == "tokens":  # the sequence of a model of sounds is as long as they are
        is_sound = rank == 2 and axis == 1 and not _is_text(tensor)
        return _named_kind(name, ("samples", "frames")) or ("samples" if is_sound else named)
    if named is not None and not (named == "samples" and axis == 0 and rank > 1):
        return named
    if picked is not None or rank == 1:
        by_input = picked or _named_kind(name, ("samples",))
        return by_input or ("tokens" if "ids" in name else "batch")
    if axis == 0:
        return "batch"
    if _is_text(tensor):
        return _named_kind(name, ("past",)) or "tokens"
    if "hidden_states" not in name:
        by_input = _named_kind(name, ("past", "states", "samples", "frames"))
        if by_input is not None:
            return by_input
    if not tensor.dtype.startswith(("float", "int16", "uint8")):
        return "other"
    if rank == 2 or (rank == 3 and tensor.shape[1] == 1):
        return "samples"
    return "tokens" if rank == 3 else "other"


def _named_kind(name: str, kinds: Sequence[str]) -> str | None:
    """Returns the first of these kinds with a word in the name; None where there is none."""
    return next((kind for kind in kinds if any(w in name for w in _KINDS[kind].words)), None)


def _picked_kind(tensor: Tensor, axis: int) -> str | None:
    """Returns the kind of a dimension by what the graph does with it; None where it does not tell.

    It may be one of the nodes of a graph network, of its edges, or of the steps of a recurrent one.
    """
    rank = len(tensor.shape)
    if axis in tensor.walked:
        return "tokens"
    if 0 in tensor.walked and axis == 1:
        return "batch"
    if axis in tensor.indexed and rank <= _MOST_NODE_AXES and not _is_text(tensor):
        return "nodes"
    return "edges" if rank == 1 and tensor.index_of is not None else None


def _picture_kind(tensor: Tensor, axis: int) -> str | None:
    """Returns the kind of a picture's dimension; None for another input."""
    if (where := channels_axis(tensor)) is None:
        return None
    if axis == 0:
        return "batch"
    if axis == where:
        return "channels"
    *stack, height, _ = [number for number in range(1, len(tensor.shape)) if number != where]
    if axis in stack:
        dimension = str(tensor.shape[axis] or "").lower()
        return "images" if any(word in dimension for word in _STACKED) else "stack"
    kind = "height" if axis == height else "width"
    return f"latent {kind}" if is_latent(tensor) else kind


def is_latent(tensor: Tensor) -> bool:
    """Returns whether a picture is one in the space of a diffusion model, by its channels."""
    where = channels_axis(tensor)
    if where is None:
        return False
    channels = (tensor.known[where] if tensor.known else None) or tensor.shape[where]
    return channels in _LATENT_CHANNELS or "latent" in tensor.name.lower()


def channels_axis(tensor: Tensor) -> int | None:
    """Returns which dimension of a picture are its channels; None where the input is no picture."""
    name = tensor.name.lower()
    is_state = _named_kind(name, ("past", "states")) is not None
    axes = _CHANNEL_AXES.get(len(tensor.shape), ())
    if not axes or is_state or tensor.is_mask:
        return None
    channels = [
        (tensor.known[axis] if tensor.known else None) or size
        for axis, size in enumerate(tensor.shape)
    ]
    words = [str(size or "").lower() for size in tensor.shape]
    text = " ".join((name, *words))
    for axis in axes:
        if channels[axis] in _CHANNELS or "channel" in words[axis]:
            return axis
    is_named = "height" in text or "pixel" in text or "image" in text or words[-2:] == ["h", "w"]
    if tensor.known and tensor.known[1]:
        return 1
    return axes[0] if is_named else None


def _is_text(tensor: Tensor) -> bool:
    """Returns whether the input is the tokens of a text, or their mask."""
    is_whole = tensor.dtype.startswith(("int32", "int64", "bool"))
    is_text = tensor.is_mask or is_whole or tensor.index_bound is not None
    return len(tensor.shape) == 2 and is_text
