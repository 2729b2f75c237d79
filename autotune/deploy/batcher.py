"""Groups inputs of many lengths into batches, as ``batches.json`` beside a config says.

    batcher = autotune.batcher("model.autotune/best.json")
    embeddings = [rows[0] for rows in batcher.run(session, samples)]

Batching is the application's, so nothing here is part of a session. It needs NumPy alone.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.deploy.files import read_json
from autotune.deploy.records import PositiveWhole, Several, Text, Whole, body, from_plain, to_plain
from autotune.errors import ConfigError, FormatError, RequestError

BATCHES = "batches.json"
"""The file, beside the config."""

FORMAT = "autotune-batches/1"

Sample = Mapping[str, NDArray[np.generic]]
"""The inputs of one sample by name, without the dimension of the batch."""

_LARGEST_BYTES = 1 << 20
# Four sizes between a length and its double: at most a fifth of a batch is padding.
_RATIO = 2**0.25
_STEP = 8
# Products of so many rows keep a few cores busy, and their activations stay small.
_OF_LONGEST = 2


@dataclass(frozen=True, kw_only=True)
class Batches:
    """How samples become batches.

    Attributes:
        axes: By input, the axis in a batch along which it is padded; the first axis is the batch.
        sizes: The sizes that are padded to, the smallest first.
        tokens: Positions of a batch at most, padding included; one sample may have more.
    """

    axes: Mapping[Text, Whole]
    sizes: Several[PositiveWhole]
    tokens: PositiveWhole

    @classmethod
    def for_longest(cls, axes: Mapping[str, int], longest: int) -> "Batches":
        """Returns the batches for samples of up to so many positions, by a rule of thumb."""
        sizes, size = {longest}, longest / _RATIO
        while size > _STEP / 2:
            sizes.add(min(longest, -(-int(size) // _STEP) * _STEP))
            size /= _RATIO
        return cls(axes=dict(axes), sizes=tuple(sorted(sizes)), tokens=_OF_LONGEST * longest)

    def to_json(self) -> dict[str, Any]:
        """Returns the record as JSON values."""
        return {"format": FORMAT, **to_plain(self)}

    @classmethod
    def read(cls, path: Path) -> "Batches":
        """Returns the record in a file.

        Raises:
            ConfigError: there is none, or it breaks its schema.
        """
        try:
            batches = from_plain(cls, body(read_json(path, _LARGEST_BYTES), FORMAT))
            if not batches.axes or min(batches.axes.values()) < 1:
                raise FormatError("axes must name an input, and no axis may be that of the batch")
        except FormatError as error:
            raise ConfigError(
                f"cannot read {path}: {error}; `autotune study MODEL --traffic FILE` writes it for "
                "a model with an attention mask"
            ) from None
        return batches


class Batcher:
    """Groups samples by their lengths."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def batches(
        self, samples: Sequence[Sample]
    ) -> Iterator[tuple[list[int], dict[str, NDArray[np.generic]]]]:
        """Yields the numbers of the samples in each batch, and its inputs, the shortest first.

        Inputs are padded with zeros behind their positions, masks too. Samples that are longer than
        all sizes are not padded.

        Raises:
            RequestError: a sample lacks an input, or its inputs differ in length.
        """
        lengths = [self._length(number, sample) for number, sample in enumerate(samples)]
        numbers: list[int] = []
        size = 0
        for number in sorted(range(len(samples)), key=lengths.__getitem__):
            wider = self._size(lengths[number])
            if numbers and (wider != size or (len(numbers) + 1) * wider > self._batches.tokens):
                yield numbers, self._stacked([samples[n] for n in numbers], size)
                numbers = []
            numbers.append(number)
            size = wider
        if numbers:
            yield numbers, self._stacked([samples[n] for n in numbers], size)

    def run(self, session: Any, samples: Sequence[Sample]) -> list[list[NDArray[np.generic]]]:
        """Returns the outputs of each sample, in the order of the samples.

        Outputs that have a row for each position have rows for the padding too.
        """
        found: dict[int, list[NDArray[np.generic]]] = {}
        for numbers, feed in self.batches(samples):
            outputs = session.run(None, feed)
            for row, number in enumerate(numbers):
                found[number] = [output[row] for output in outputs]
        return [found[number] for number in range(len(samples))]

    def _length(self, number: int, sample: Sample) -> int:
        try:
            sizes = {sample[name].shape[axis - 1] for name, axis in self._batches.axes.items()}
        except (KeyError, IndexError) as error:
            raise RequestError(
                f"sample {number} does not fit the model's inputs: {error}"
            ) from None
        if len(sizes) > 1:
            raise RequestError(f"sample {number}: its inputs have the lengths {sorted(sizes)}")
        return int(sizes.pop())

    def _size(self, length: int) -> int:
        return next((size for size in self._batches.sizes if size >= length), length)

    def _stacked(self, samples: Sequence[Sample], size: int) -> dict[str, NDArray[np.generic]]:
        """Returns the inputs of a batch, padded to a size."""
        feed = {}
        for name, first in samples[0].items():
            shape = [len(samples), *first.shape]
            axis = self._batches.axes.get(name)
            if axis is not None:
                shape[axis] = size
            array = np.zeros(shape, first.dtype)
            for row, sample in enumerate(samples):
                values = sample[name]
                array[row][tuple(slice(count) for count in values.shape)] = values
            feed[name] = array
        return feed


def batcher(path: str | os.PathLike[str]) -> Batcher:
    """Returns what groups samples into batches as the file beside a tuned config says.

    Args:
        path: The config, such as ``model.autotune/best.json``.

    Raises:
        ConfigError: there is no ``batches.json`` beside it, or it breaks its schema.
    """
    return Batcher(Batches.read(Path(path).parent / BATCHES))
