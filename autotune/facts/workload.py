"""The inputs that a study runs the model on: the user's samples or generated ones."""

import hashlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from autotune.deploy.decoder import Plan
from autotune.deploy.files import is_file, is_folder
from autotune.errors import DataError, did_you_mean, shown
from autotune.facts.arrays import LARGEST_BYTES, read_arrays
from autotune.facts.feeds import Feed, contents, native
from autotune.facts.model import Model

T = TypeVar("T")

_VALIDATION_SAMPLES = 16
_CALIBRATION_SAMPLES = 128
_OTHER_SHAPES = 32
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
        outputs: Names of the outputs that are compared; all of them if empty.
        warnings: What qualifies all numbers on these samples, a sentence each.
        chosen: Names of dimensions whose sizes autotune chose. Nothing fixes them.
    """

    feeds: tuple[Feed, ...]
    source: str
    notes: tuple[str, ...]
    labels: tuple[NDArray[np.generic], ...] = ()
    plan: Plan | None = None
    held: tuple[NDArray[np.int64], ...] = ()
    outputs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()

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
        for part in contents((*self.feeds, *({LABELS: label} for label in self.labels))):
            digest.update(part)
        if self.plan is not None:
            digest.update(f"{self.plan.new_tokens} new tokens".encode())
            for window in self.held:
                digest.update(np.ascontiguousarray(window).tobytes())
        digest.update("".join(f"output {name}" for name in self.outputs).encode())
        return digest.hexdigest()[:16]

    def dimensions(self, model: Model) -> dict[str, int]:
        """Returns the size of each named dimension that is the same in all samples.

        A dimension whose size autotune chose is left out, and a name that stands for different
        sizes, as exporters' ``?`` does. Of a decoder's dimensions the batch alone is the same in
        all steps.
        """
        if self.plan is not None:
            tokens = [t for t in model.inputs if t.name == self.plan.decoder.tokens]
            return {t.shape[0]: 1 for t in tokens if isinstance(t.shape[0], str)}
        sizes: dict[str, set[int]] = {}
        for tensor in model.inputs:
            for axis, size in enumerate(tensor.shape):
                if isinstance(size, str) and size not in self.chosen:
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
    _check_call(model, arrays, source)
    count = min(counts.values(), default=0)
    if not 0 < count <= _MOST_SAMPLES:
        raise DataError(f"{source}: it holds {count} samples; save from 1 to {_MOST_SAMPLES}")
    feeds = [
        {name: _fit(model, name, array[i], source) for name, array in arrays.items()}
        for i in range(count)
    ]
    return _user_workload(feeds, source, [np.asarray(label) for label in labels])


def read_constants(model: Model, names: Sequence[str], source: Path) -> Feed:
    """Returns the inputs of a decoder that are the same in all steps, such as an encoder's output.

    Args:
        names: Those inputs; the .npz file `source` has one array for each, as the decoder takes it.

    Raises:
        DataError: it cannot be read, lacks one of them, has another one, or does not fit.
    """
    if not is_file(source):
        raise DataError(
            f"--data: there is no file {source}; beside --generate it has the inputs that are the "
            f"same in all steps: {', '.join(names)}"
        )

    def check(held_names: Sequence[str]) -> None:
        if sorted(held_names) != sorted(names):
            raise DataError(
                f"{source}: beside --generate it has the inputs that are the same in all steps, "
                f"{', '.join(names)}; it holds {', '.join(map(shown, held_names)) or 'nothing'}"
            )

    arrays = read_arrays(source, check)
    return {name: _fit(model, name, arrays[name], source) for name in names}


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


def _check_call(model: Model, arrays: Mapping[str, NDArray[np.generic]], file: Path) -> None:
    """Refuses arrays that lack the axis that counts the samples, or the model's own first axis.

    Raises:
        DataError: that is so; the message says what to type.
    """
    inputs = {tensor.name: tensor for tensor in (*model.inputs, *model.optional)}
    for name, array in arrays.items():
        shape, tensor = array.shape, inputs[name]
        if not shape or tensor.misfit(shape[1:]) is None:
            continue
        several, one = f"for {shape[0]} samples", "for one sample"
        forms = (
            ("[:, None]", (1, *shape[1:]), several if shape[0] > 1 else ""),
            ("[None]", shape, one),
            ("[None, None]", (1, *shape), one),
        )
        typed = [
            f"numpy.savez(file, {', '.join(f'{each}={each}{index}' for each in arrays)}) {words}"
            for index, sample, words in forms
            if words and tensor.misfit(sample) is None
        ]
        if typed:
            raise DataError(
                f"{file}: '{name}' has shape {list(shape)}, and the first axis of a file counts "
                f"the samples. Type {', or '.join(typed)}"
            )


def _has_labels(model: Model, names: Container[str]) -> bool:
    """Returns whether an array is that of the labels; an input of the model may have its name."""
    inputs = (*model.inputs, *model.optional)
    return LABELS in names and LABELS not in [tensor.name for tensor in inputs]


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
    optional = [tensor.name for tensor in model.optional]
    if not wanted and not optional:
        raise DataError(f"--data: {model.path.name} has no inputs; leave --data out")
    for name in names:
        if name not in (*wanted, *optional, LABELS):
            known = [*wanted, *optional]
            others = f"; optional ones are {', '.join(optional)}" if optional else ""
            raise DataError(
                f"{file}: the model has no input {shown(name)}.{did_you_mean(name, known)} "
                f"Its inputs are {', '.join(wanted)}{others}."
            )
    if missing := [name for name in wanted if name not in names]:
        raise DataError(f"{file}: no array for the input {', '.join(map(repr, missing))}")


def _fit(model: Model, name: str, value: NDArray[np.generic], file: Path) -> NDArray[np.generic]:
    """Returns one sample's array, checked against the input `name`."""
    tensor = next(item for item in (*model.inputs, *model.optional) if item.name == name)
    array = np.asarray(value)
    given = "str" if array.dtype.kind in "US" else array.dtype.name
    if given != tensor.dtype:
        raise DataError(
            f"{file}: '{name}' holds {given}, and the model takes {tensor.dtype}; "
            f"convert it with .astype('{tensor.dtype}')"
        )
    if problem := tensor.misfit(array.shape):
        raise DataError(f"{file}: a sample of '{name}' has shape {list(array.shape)}; {problem}")
    return native(array)
