"""The inputs that a study runs the model on: the user's samples or generated ones."""

import hashlib
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import psutil
from numpy.typing import NDArray

from autotune.deploy.decoder import Plan
from autotune.deploy.files import is_file, is_folder
from autotune.errors import DataError, RequestError, did_you_mean, shortened, shown
from autotune.facts.arrays import LARGEST_BYTES, read_arrays
from autotune.facts.feeds import Feed, native
from autotune.facts.model import Model
from autotune.facts.model_facts import Tensor

T = TypeVar("T")

_GENERATED_SAMPLES = 8
_VALIDATION_SAMPLES = 16
_CALIBRATION_SAMPLES = 128
_OTHER_SHAPES = 32
# Samples are drawn as float64, whatever the type of the input.
_ITEM_BYTES = 8
# More of the user's samples only fill the memory.
_MOST_SAMPLES = 100_000

LABELS = "labels"
"""Name of the array with the right answers, which a metric sees among the inputs of a sample."""

# MLPerf asks for rotating inputs (no caching); more than a handful only fills the caches.
TIMING_SAMPLES = 8
"""Samples that are run in turn while timing."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The samples that a study works with.

    Attributes:
        source: ``"user"`` or ``"generated"``.
        notes: Where the samples come from, a sentence each, for the user to read.
        labels: The right answer to each sample; empty where the user gave none.
        plan: What is generated after the prompts, of which the samples are the first steps; None
            where a sample is run as it is.
        held: Windows of text whose perplexity rates a decoder's answers; empty where it writes the
            text itself.
    """

    feeds: tuple[Feed, ...]
    source: str
    notes: tuple[str, ...]
    labels: tuple[NDArray[np.generic], ...] = ()
    plan: Plan | None = None
    held: tuple[NDArray[np.int64], ...] = ()

    @property
    def calibration(self) -> tuple[Feed, ...]:
        """Samples for quantisation, from every second one, so that validation sees none of them."""
        return evenly(self.feeds[1::2], _CALIBRATION_SAMPLES) or self.feeds

    @property
    def validation(self) -> tuple[Feed, ...]:
        """Samples on which answers are compared."""
        return evenly(self.feeds[::2], _VALIDATION_SAMPLES)

    @property
    def judged(self) -> tuple[Feed, ...]:
        """The validation samples as a metric sees them: with their labels, where there are some."""
        labels = evenly(self.labels[::2], _VALIDATION_SAMPLES)
        if not labels:
            return self.validation
        return tuple(
            {**feed, LABELS: label} for feed, label in zip(self.validation, labels, strict=True)
        )

    @property
    def timing(self) -> tuple[Feed, ...]:
        """Samples that are run in turn while timing, taken evenly from all.

        Of samples that differ in shape each stands for its neighbours, so the largest, which may
        be rare, is no eighth of the time.
        """
        count = len(self.feeds)
        if count <= TIMING_SAMPLES or self.one_shape:
            return evenly(self.feeds, TIMING_SAMPLES)
        places = ((2 * i + 1) * count // (2 * TIMING_SAMPLES) for i in range(TIMING_SAMPLES))
        return tuple(self.feeds[place] for place in places)

    @property
    def other_shapes(self) -> tuple[Feed, ...]:
        """A sample of each shape that is not timed, the smallest first: memory depends on them."""
        timed = {_shapes_of(feed) for feed in self.timing}
        others = {_shapes_of(feed): feed for feed in self.feeds}
        untimed = [feed for shapes, feed in others.items() if shapes not in timed]
        untimed.sort(key=lambda feed: sum(array.nbytes for array in feed.values()))
        return evenly(untimed, _OTHER_SHAPES)

    @property
    def one_shape(self) -> bool:
        """Whether all samples have the same shapes."""
        return len({_shapes_of(feed) for feed in self.feeds}) == 1

    def signature(self) -> str:
        """Returns 16 hexadecimal digits that tell workloads apart, by every value in them."""
        digest = hashlib.sha256()
        for feed in (*self.feeds, *({LABELS: label} for label in self.labels)):
            for name in sorted(feed):
                array = np.ascontiguousarray(feed[name])
                digest.update(f"{name} {array.dtype} {array.shape}".encode())
                digest.update(array.tobytes())
        if self.plan is not None:
            digest.update(f"{self.plan.new_tokens} new tokens".encode())
            for window in self.held:
                digest.update(np.ascontiguousarray(window).tobytes())
        return digest.hexdigest()[:16]

    def dimensions(self, model: Model) -> dict[str, int]:
        """Returns the size of each named dimension that is the same in all samples.

        A name that stands for different sizes, as exporters' ``?`` does, is left out. Of a
        decoder's dimensions the batch alone is the same in all steps.
        """
        if self.plan is not None:
            tokens = [t for t in model.inputs if t.name == self.plan.decoder.tokens]
            return {t.shape[0]: 1 for t in tokens if isinstance(t.shape[0], str)}
        sizes: dict[str, set[int]] = {}
        for tensor in model.inputs:
            for axis, size in enumerate(tensor.shape):
                if isinstance(size, str):
                    seen = sizes.setdefault(size, set())
                    seen.update(feed[tensor.name].shape[axis] for feed in self.feeds)
        return {name: seen.pop() for name, seen in sizes.items() if len(seen) == 1}


def _shapes_of(feed: Feed) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, feed[name].shape) for name in sorted(feed))


def evenly(samples: Sequence[T], count: int) -> tuple[T, ...]:
    """Returns at most `count` samples, spread over all from the first to the last.

    Samples may be sorted, for example by length or by class.
    """
    if len(samples) <= count:
        return tuple(samples)
    last = len(samples) - 1
    return tuple(samples[round(i * last / max(1, count - 1))] for i in range(count))


def generate(model: Model, shapes: Mapping[str, Sequence[int]], seed: int = 0) -> Workload:
    """Returns generated samples for `model`.

    Floats are normal, integers that index a table lie within its rows, masks and other integers
    are ones, booleans true, strings a word. Open dimensions are 1 unless `shapes` names the input.

    Raises:
        RequestError: `shapes` names an unknown input or does not fit it.
    """
    inputs = {tensor.name: tensor for tensor in model.inputs}
    for name, shape in shapes.items():
        if name not in inputs:
            raise RequestError(
                f"--shape: {model.path.name} has no input '{name}'.{did_you_mean(name, inputs)} "
                f"Its inputs are {', '.join(inputs)}."
            )
        if problem := _shape_problem(inputs[name], shape):
            raise RequestError(f"--shape {name}={','.join(map(str, shape))}: {problem}")
    random = np.random.default_rng(seed)
    chosen = {
        tensor.name: tuple(
            shapes.get(tensor.name, [s if isinstance(s, int) else 1 for s in tensor.shape])
        )
        for tensor in model.inputs
    }
    _check_size(model.inputs, chosen)
    feeds = tuple(
        {tensor.name: _generated(tensor, chosen[tensor.name], random) for tensor in model.inputs}
        for _ in range(_GENERATED_SAMPLES)
    )
    notes = [
        f"input '{tensor.name}': {tensor.dtype} {list(chosen[tensor.name])}, {_how(tensor)}"
        for tensor in model.inputs
    ]
    if opened := [t.name for t in model.inputs if t.is_dynamic and t.name not in shapes]:
        first = opened[0]
        notes.append(
            f"open dimensions of {', '.join(opened)} are 1; "
            f"--shape {first}={','.join(map(str, chosen[first]))} sets others"
        )
    return Workload(feeds=feeds, source="generated", notes=tuple(notes))


def _check_size(inputs: Sequence[Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuses samples that do not fit into memory.

    Raises:
        RequestError: the samples take more than half of the memory that is free.
    """
    sizes = {tensor.name: _ITEM_BYTES * math.prod(shapes[tensor.name]) for tensor in inputs}
    total_mib = _GENERATED_SAMPLES * sum(sizes.values()) >> 20
    free_mib = psutil.virtual_memory().available >> 20
    if total_mib > free_mib // 2:
        largest = max(sizes, key=lambda name: sizes[name])
        raise RequestError(
            f"generated inputs would take {total_mib:,} MiB, and {free_mib:,} MiB are free; "
            f"set smaller sizes with --shape {shortened(largest)}=... "
            f"(now {list(shapes[largest])}), or bring samples with --data"
        )


def read(model: Model, source: Path) -> Workload:
    """Returns the user's samples.

    `source` is an .npz file whose arrays are named after the inputs and whose first axis counts the
    samples (sample i of every array is one feed; a rank-0 input has a rank-1 array), or a folder of
    .npz files that hold one feed each. An array ``labels`` that is no input has the right answers.

    Raises:
        DataError: it cannot be read, or does not fit the model.
    """
    if is_folder(source):
        return _user_workload(*_read_folder(model, source))
    if not is_file(source):
        raise DataError(f"--data: there is no file or folder {source}")
    arrays = read_arrays(source, partial(_check_names, model, file=source))
    counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(counts.values())) > 1 or 0 in counts.values():
        listed = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise DataError(
            f"{source}: the first axis of every array counts the samples and must be the same "
            f"for all, at least 1; here it is {listed}"
        )
    labels = arrays.pop(LABELS) if _has_labels(model, arrays) else np.empty(0)
    count = min(counts.values(), default=0)
    if not 0 < count <= _MOST_SAMPLES:
        raise DataError(f"{source}: it holds {count} samples; save from 1 to {_MOST_SAMPLES}")
    feeds = [
        {name: _fit(model, name, array[i], source) for name, array in arrays.items()}
        for i in range(count)
    ]
    return _user_workload(feeds, source, [np.asarray(label) for label in labels])


def _read_folder(model: Model, folder: Path) -> tuple[list[Feed], Path, list[NDArray[np.generic]]]:
    """Returns the feeds in a folder of .npz files, the folder, and the labels of the feeds.

    Together the files keep the limit of one.
    """
    feeds: list[Feed] = []
    labels: list[NDArray[np.generic]] = []
    left_bytes = LARGEST_BYTES
    for file in sorted(folder.glob("*.npz")):
        arrays = read_arrays(file, partial(_check_names, model, file=file), left_bytes)
        left_bytes -= sum(array.nbytes for array in arrays.values())
        if _has_labels(model, arrays):
            labels.append(arrays.pop(LABELS))
        feeds.append({name: _fit(model, name, arrays[name], file) for name in arrays})
    if not feeds:
        raise DataError(f"--data: the folder {folder} holds no .npz file")
    if 0 < len(labels) < len(feeds):
        raise DataError(f"--data: {len(labels)} of the {len(feeds)} files in {folder} have labels")
    return feeds, folder, labels


def _has_labels(model: Model, names: Container[str]) -> bool:
    """Returns whether an array is that of the labels; an input of the model may have its name."""
    return LABELS in names and LABELS not in [tensor.name for tensor in model.inputs]


def _user_workload(
    feeds: Sequence[Feed], source: Path, labels: Sequence[NDArray[np.generic]]
) -> Workload:
    count = f"{len(feeds)} sample{'s' if len(feeds) > 1 else ''}"
    notes = [f"inputs: {count} from {source}"]
    if len(feeds) < 2:
        notes.append("with one sample only, answers are compared on the very input that is timed")
    return Workload(feeds=tuple(feeds), source="user", notes=tuple(notes), labels=tuple(labels))


def _check_names(model: Model, names: Sequence[str], file: Path) -> None:
    wanted = [tensor.name for tensor in model.inputs]
    if not wanted:
        raise DataError(f"--data: {model.path.name} has no inputs; leave --data out")
    for name in names:
        if name not in (*wanted, LABELS):
            raise DataError(
                f"{file}: the model has no input {shown(name)}.{did_you_mean(name, wanted)} "
                f"Its inputs are {', '.join(wanted)}."
            )
    if missing := [name for name in wanted if name not in names]:
        raise DataError(f"{file}: no array for the input {', '.join(map(repr, missing))}")


def _fit(model: Model, name: str, value: NDArray[np.generic], file: Path) -> NDArray[np.generic]:
    """Returns one sample's array, checked against the input `name`."""
    tensor = next(item for item in model.inputs if item.name == name)
    array = np.asarray(value)
    given = "str" if array.dtype.kind in "US" else array.dtype.name
    if given != tensor.dtype:
        raise DataError(
            f"{file}: '{name}' holds {given}, and the model takes {tensor.dtype}; "
            f"convert it with .astype('{tensor.dtype}')"
        )
    if problem := _shape_problem(tensor, array.shape):
        raise DataError(f"{file}: a sample of '{name}' has shape {list(array.shape)}; {problem}")
    if array.dtype.kind in "fc" and not np.isfinite(array).all():
        raise DataError(
            f"{file}: '{name}' holds NaN or infinite values, which make answers that cannot be "
            "compared; give samples of finite numbers"
        )
    return native(array)


def _shape_problem(tensor: Tensor, shape: Sequence[int]) -> str | None:
    """Returns why `shape` does not fit the input; None if it does."""
    model_shape = "[" + ", ".join("?" if s is None else str(s) for s in tensor.shape) + "]"
    if len(shape) != len(tensor.shape):
        return f"the model takes rank {len(tensor.shape)}: {model_shape}"
    for given, wanted in zip(shape, tensor.shape, strict=True):
        if isinstance(wanted, int) and given != wanted:
            return f"the model takes {model_shape}"
    return None


def _is_mask(tensor: Tensor) -> bool:
    return "mask" in tensor.name.lower()


def _generated(
    tensor: Tensor, shape: tuple[int, ...], random: np.random.Generator
) -> NDArray[np.generic]:
    if tensor.dtype == "str":
        return np.full(shape, "word")
    dtype = np.dtype(tensor.dtype)
    if _is_mask(tensor):
        return np.ones(shape, dtype)
    if dtype.kind == "f":
        return np.asarray(random.standard_normal(shape)).astype(dtype)
    if dtype.kind == "c":
        pair = random.standard_normal((2, *shape))
        return np.asarray(pair[0] + 1j * pair[1]).astype(dtype)
    if dtype == np.uint8:  # pixels, in practice
        return np.asarray(random.integers(0, tensor.index_bound or 256, shape)).astype(dtype)
    if dtype.kind in "iu" and tensor.index_bound:
        return np.asarray(random.integers(0, tensor.index_bound, shape)).astype(dtype)
    return np.ones(shape, dtype)


def _how(tensor: Tensor) -> str:
    """Returns how :func:`_generated` fills the input, in words."""
    if tensor.dtype == "str":
        return "the word 'word'"
    if _is_mask(tensor):
        return "ones (a mask by its name)"
    if tensor.dtype.startswith(("float", "complex")):
        return "standard normal"
    if tensor.index_bound:
        return f"uniform below {tensor.index_bound} (it indexes a table of so many rows)"
    if tensor.dtype == "uint8":
        return "uniform below 256"
    return "all true" if tensor.dtype == "bool" else "ones"
