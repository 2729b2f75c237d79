"""The values of generated inputs: plausible ones of each kind of input.

Where the graph does not tell the range of an input, the samples come from several distributions,
two samples from each, so that one is for calibration and one for validation: the error of a
configuration, which is that of the worst sample, is then the error on the worst of them.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.facts.feeds import Feed
from autotune.facts.model_facts import Span, Tensor
from autotune.facts.usual_sizes import Shapes, channels_axis, is_latent

Random = np.random.Generator

GENERATED_SAMPLES = 8
"""How many samples are generated."""

# Samples of one distribution follow each other: the first is for validation, the second one for
# calibration.
_OF_ONE_KIND = 2
_SHORTEST_SOUND = 256
# A row of so many numbers is a sound rather than features.
_LONGEST_FEATURES = 4000
_SMALLEST_PICTURE = 8
_RATES = re.compile(r"(^|_)(sr|fs|rate|sample_?rate|sampling_?rate)$")
_LENGTHS = re.compile(r"length|lens?($|_)|seq_?len|(^|_)(num|n)_(frames|tokens|phonemes)")
_PICTURE_SIZES = re.compile(r"(image|img|im)_(shape|size)|target_sizes|orig_size")
_STEPS = re.compile(r"time_?step|sigma_step")
_WORDS = tuple("the model takes some words of text here".split())
# The mean and the deviation of ImageNet's pixels, as most classifiers of pictures want them.
_MEAN, _DEVIATION = 0.45, 0.225
_UNKNOWN_INTEGERS = 256
# An input of so few numbers says how a model works.
_FEW = 8


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to choose the values that the graph does not tell; a model may refuse some.

    Attributes:
        mask: The share of ones at the start of each mask.
        integers: Integers of unknown use lie below it; 1 stands for ones, 0 for zeros.
        rate: The rate of sound, in samples a second.
    """

    mask: float = 0.75
    integers: int = _UNKNOWN_INTEGERS
    rate: int = 16_000

    def differs_for(self, tensor: Tensor, other: "Variant") -> bool:
        """Returns whether an input has other values by another variant."""
        kind = fill_of(tensor)
        return (
            (kind is _mask and self.mask != other.mask)
            or (kind is _integers and self.integers != other.integers)
            or (kind is _rate and self.rate != other.rate)
        )


VARIANTS = (
    Variant(),
    Variant(mask=1),
    Variant(mask=1, integers=2),
    Variant(mask=1, integers=1),
    Variant(mask=1, integers=1, rate=8_000),
    Variant(mask=1, integers=0),
    Variant(mask=0, integers=0),
)
"""The ways that are tried, the most telling first."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the values of one input of a sample depend on.

    Attributes:
        number: The sample's number.
        values: Values that the user gives to inputs by name.
    """

    shapes: Shapes
    inputs: Sequence[Tensor]
    number: int
    variant: Variant
    random: Random

    @property
    def distribution(self) -> int:
        """The number of the distribution from which the sample comes."""
        return self.number // _OF_ONE_KIND


_Fill = Callable[[Tensor, tuple[int, ...], Setting], NDArray[Any]]


def feed_of(
    inputs: Sequence[Tensor],
    shapes: Shapes,
    random: Random,
    number: int = 0,
    variant: Variant = VARIANTS[0],
    values: Mapping[str, float] | None = None,
) -> Feed:
    """Returns a sample, with a shape for each input.

    Args:
        number: Which of the samples it is.
        values: Values that the user gives to inputs by name.
    """
    setting = Setting(shapes=shapes, inputs=inputs, number=number, variant=variant, random=random)
    feed: dict[str, NDArray[np.generic]] = {}
    for tensor in inputs:
        shape = shapes[tensor.name]
        if values and tensor.name in values:
            feed[tensor.name] = np.full(shape, values[tensor.name]).astype(tensor.dtype)
            continue
        array = fill_of(tensor)(tensor, shape, setting)
        feed[tensor.name] = np.asarray(array if tensor.dtype == "str" else _cast(array, tensor))
    return feed


def how(tensor: Tensor, shape: tuple[int, ...], variant: Variant) -> str:
    """Returns how the input is filled, in words."""
    fill = fill_of(tensor)
    if fill is _floats:
        kind = _float_kind(tensor, shape)
        if kind == "features":
            return "normal and uniform numbers by turns"
        if tensor.span is not None:
            return f"a made-up {kind} from {tensor.span.low:g} to {tensor.span.high:g}"
        return f"made-up {kind}s of several usual ranges by turns"
    if fill is _indices and tensor.index_of is not None:
        return f"uniform below the size of '{tensor.index_of.input}'"
    if fill is _indices:
        return f"uniform below {tensor.index_bound} (it indexes a table of so many rows)"
    if fill is _mask:
        share = f"the first {100 * variant.mask:.0f} % ones" if 0 < variant.mask < 1 else ""
        return f"{share or ('ones' if variant.mask else 'zeros')} (a mask by its name)"
    if fill is _rate:
        return f"{variant.rate} (a sample rate by its name)"
    if fill is _integers:
        if variant.integers > 1 and shape and math.prod(shape) > 1:
            return f"uniform below {variant.integers}"
        return "zeros" if variant.integers == 0 else "ones"
    return _SENTENCES[fill]


def fill_of(tensor: Tensor) -> _Fill:
    """Returns the function that makes an input's values, by its type, its name and its use."""
    name = tensor.name.lower()
    if tensor.dtype == "str":
        return _texts
    if tensor.is_mask:
        return _mask
    if tensor.index_bound or tensor.index_of is not None:
        return _indices
    if _PICTURE_SIZES.search(name):
        return _picture_sizes
    if tensor.length_of is not None:
        return _lengths
    if len(tensor.shape) <= 1:
        for pattern, fill in ((_RATES, _rate), (_STEPS, _steps), (_LENGTHS, _lengths)):
            if pattern.search(name):
                return fill
    if tensor.dtype == "bool":
        return _booleans
    if tensor.dtype.startswith(("float", "complex")):
        is_few = all(isinstance(size, int) and size <= _FEW for size in tensor.shape)
        return _settings if len(tensor.shape) <= 1 and is_few else _floats
    is_level = tensor.dtype in ("int8", "uint8", "int16", "uint16")
    is_picture = tensor.dtype == "int32" and channels_axis(tensor) is not None
    return _levels if is_level or is_picture else _integers


def _cast(array: NDArray[np.generic], tensor: Tensor) -> NDArray[Any]:
    dtype = np.dtype(tensor.dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        array = np.clip(np.rint(array.real), max(limits.min, -(2**62)), min(limits.max, 2**62))
    return np.asarray(array).astype(dtype)


def _texts(tensor: Tensor, shape: tuple[int, ...], setting: Setting) -> NDArray[Any]:
    words = tensor.categories or _WORDS
    return np.asarray(words)[setting.random.integers(0, len(words), shape)]


def _mask(_: Tensor, shape: tuple[int, ...], setting: Setting) -> NDArray[Any]:
    """Ones at the start of the last axis, of a picture at the start of the last two."""
    mask = np.ones(shape)
    for axis in range(len(shape))[-1 if len(shape) < 3 else -2 :]:
        # some more in each sample, so that no two are equal where there is room
        share = min(1.0, setting.variant.mask + 0.02 * setting.number)
        count = math.ceil(shape[axis] * (share if 0 < setting.variant.mask < 1 else 1))
        mask[(slice(None),) * axis + (slice(count, None),)] = 0
    return mask * (setting.variant.mask > 0)


def _indices(tensor: Tensor, shape: tuple[int, ...], setting: Setting) -> NDArray[Any]:
    bound = tensor.index_bound or 2**31
    if tensor.index_of is not None:
        bound = min(bound, setting.shapes[tensor.index_of.input][tensor.index_of.number])
    if "position" in tensor.name.lower() and shape and shape[-1] <= bound:
        return np.broadcast_to(np.arange(shape[-1]), shape)
    return setting.random.integers(0, max(1, bound), shape)


def _rate(_: Tensor, shape: tuple[int, ...], setting: Setting) -> NDArray[Any]:
    return np.full(shape, setting.variant.rate)


def _lengths(tensor: Tensor, shape: tuple[int, ...], setting: Setting) -> NDArray[Any]:
    """The length of the sequence: the longest open dimension behind the batch, else the longest."""
    if tensor.length_of is not None:
        return np.full(shape, setting.shapes[tensor.length_of.input][tensor.length_of.number])
    others = [item for item in setting.inputs if len(item.shape) > 1 and not item.is_mask]
    related = [item for item in others if item.name.split("_")[0] == tensor.name.split("_")[0]]
    for inputs in (related, others):
        for is_open in (True, False):
            sizes = [
                setting.shapes[item.name][axis]
                for item in inputs
                for axis in range(1, len(item.shape))
                if not is_open or not isinstance(item.shape[axis], int)
            ]
            if sizes:
                return np.full(shape, max(sizes))
    return np.ones(shape)


def _picture_sizes(_: Tensor, shape: tuple[int, ...], setting: Setting) -> NDArray[Any]:
    """Height and width of the picture beside it."""
    for tensor in setting.inputs:
        where = channels_axis(tensor)
        if where is not None and shape and shape[-1] >= 2:
            axes = [axis for axis in range(1, len(tensor.shape)) if axis != where]
            values = np.ones(shape)
            values[..., :2] = [setting.shapes[tensor.name][axis] for axis in axes[-2:]]
            return values
    return np.full(shape, 224)


def _steps(_: Tensor, shape: tuple[int, ...], setting: Setting) -> NDArray[Any]:
    return setting.random.integers(0, 1000, shape)


def _booleans(_: Tensor, shape: tuple[int, ...], setting: Setting) -> NDArray[Any]:
    if math.prod(shape) == 1:  # a switch
        return np.ones(shape, bool)
    return setting.random.random(shape) < 0.75


def _settings(_: Tensor, shape: tuple[int, ...], setting: Setting) -> NDArray[Any]:
    """A few numbers that say how a model works, such as a scale or a threshold."""
    return setting.random.uniform(0.25, 1.0, shape)


def _integers(_: Tensor, shape: tuple[int, ...], setting: Setting) -> NDArray[Any]:
    below = setting.variant.integers
    if below > 1 and math.prod(shape) > 1:
        return setting.random.integers(0, below, shape)
    return np.full(shape, min(1, below))


def _levels(tensor: Tensor, shape: tuple[int, ...], setting: Setting) -> NDArray[Any]:
    """A picture or a sound in whole numbers, over the range of its type."""
    dtype = np.dtype(tensor.dtype)
    limits = np.iinfo(np.uint8 if dtype == np.int32 else dtype)
    span = tensor.span or Span(low=limits.min, high=limits.max)
    kind = _float_kind(tensor, shape)
    return _signal(kind, shape, span, setting)


def _floats(tensor: Tensor, shape: tuple[int, ...], setting: Setting) -> NDArray[Any]:
    if tensor.dtype.startswith("complex"):
        pair = setting.random.standard_normal((2, *shape))
        return np.asarray(pair[0] + 1j * pair[1])
    kind = _float_kind(tensor, shape)
    if tensor.span is not None and kind != "features":
        return _signal(kind, shape, tensor.span, setting)
    choice = setting.distribution % 4
    if choice == 0 or (kind == "features" and choice == 3):
        return setting.random.standard_normal(shape)
    if kind == "features":
        span = tensor.span or Span(low=-1 if choice == 1 else 0, high=1)
        return setting.random.uniform(span.low, span.high, shape)
    if kind == "sound":
        loud = (1.0, 0.3, 0.03)[choice - 1]
        return _signal(kind, shape, Span(low=-loud, high=loud), setting)
    picture = _signal(kind, shape, Span(low=0, high=1), setting)
    return (picture, 2 * picture - 1, (picture - _MEAN) / _DEVIATION)[choice - 1]


def _float_kind(tensor: Tensor, shape: tuple[int, ...]) -> str:
    """Returns whether numbers are a ``picture``, a ``sound`` or ``features``."""
    where = channels_axis(tensor)
    if where is not None:
        sides = [size for axis, size in enumerate(shape) if axis not in (0, where)][-2:]
        is_large = min(sides) >= _SMALLEST_PICTURE and not is_latent(tensor)
        return "picture" if is_large else "features"
    is_flat = math.prod(shape[:-1]) <= 2 and len(shape) <= 3
    words = ("audio", "wave", "sound", "pcm", "speech", "signal", "input_values")
    if not is_flat or not shape or shape[-1] < _SHORTEST_SOUND:
        return "features"
    is_long = not isinstance(tensor.shape[-1], int) or shape[-1] >= _LONGEST_FEATURES
    is_sound = is_long or any(word in tensor.name.lower() for word in words)
    return "sound" if is_sound else "features"


def _signal(kind: str, shape: tuple[int, ...], span: Span, setting: Setting) -> NDArray[Any]:
    """Returns a picture, a sound, or uniform numbers over the span."""
    random = setting.random
    if kind == "picture":
        # patches of several sizes, as pictures have them, and grain
        values = 0.4 * _patches(shape, 16, random) + 0.4 * _patches(shape, 4, random)
        values = np.clip(1.25 * values + 0.1 * random.random(shape) - 0.05, 0, 1)
    elif kind == "sound":
        # tones that swell and fade, and noise; some samples are louder
        time = np.arange(shape[-1])
        tones = sum(
            np.sin(time * random.uniform(0.01, 0.8) + random.uniform(0, 6)) for _ in range(4)
        )
        swell = 0.5 + 0.5 * np.sin(time * random.uniform(0.0005, 0.005) + random.uniform(0, 6))
        wave = swell * tones / 4 + 0.05 * random.standard_normal(shape)
        values = np.clip(0.5 + 0.5 * wave * random.uniform(0.3, 1.0), 0, 1)
    else:
        values = random.random(shape)
    return np.asarray(span.low + (span.high - span.low) * values)


def _patches(shape: tuple[int, ...], count: int, random: Random) -> NDArray[np.float64]:
    """Returns numbers from 0 to 1 that are equal in patches, so many along each longer axis."""
    coarse = random.random(tuple(min(size, count) for size in shape))
    for axis, size in enumerate(shape):
        places = np.arange(size) * coarse.shape[axis] // max(1, size)
        coarse = coarse.take(places, axis)
    return coarse


_SENTENCES: Mapping[_Fill, str] = {
    _texts: "words by turns",
    _lengths: "the length of the sequence (a length by its name)",
    _picture_sizes: "height and width of the picture",
    _steps: "uniform below 1000 (a step by its name)",
    _booleans: "true and false by turns; true where it is one value",
    _settings: "uniform from 0.25 to 1",
    _levels: "a made-up picture or sound over the range of its type",
}
