"""Batches: samples stacked along the first dimension, for models that leave it open."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.deploy.records import PositiveWhole, Several, Text
from autotune.errors import RequestError
from autotune.facts.feeds import Feed
from autotune.facts.model import Model
from autotune.facts.model_facts import Tensor, in_brackets
from autotune.facts.workload import TIMING_SAMPLES, Workload, evenly
from autotune.process import memory

# This process, the baseline's and the configuration's hold the inputs at once.
_COPIES = 3


@dataclass(frozen=True, kw_only=True)
class Batching:
    """The batch sizes that may be chosen, and where the batch is in a model's inputs.

    Attributes:
        sizes: The sizes, the smallest first: that is the baseline's.
        inputs: Names of the inputs whose first dimension counts the samples of a batch. All samples
            share the others.
        dimension: Name of that dimension; None where the model gives it no name.
    """

    sizes: Several[PositiveWhole]
    inputs: tuple[Text, ...]
    dimension: Text | None

    @classmethod
    def of(cls, model: Model, workload: Workload, sizes: Sequence[int]) -> "Batching":
        """Returns how samples of `workload` become batches of `sizes` for `model`.

        Raises:
            RequestError: the model has no batch dimension, or the samples cannot be stacked; the
                message says which input has which shape.
        """
        stacked = [tensor for tensor in model.inputs if tensor.shape and _is_open(tensor.shape[0])]
        problem = _problem(model, stacked) or _samples_problem(model, workload, stacked)
        if problem:
            raise RequestError(problem)
        name = stacked[0].shape[0]
        batching = cls(
            sizes=tuple(sorted(sizes)),
            inputs=tuple(tensor.name for tensor in stacked),
            dimension=name if isinstance(name, str) else None,
        )
        batching.check_memory(workload)
        return batching

    @property
    def smallest(self) -> int:
        """The baseline's size, and that of a configuration that names none."""
        return self.sizes[0]

    def dimensions(self, sizes: Mapping[str, int], batch: int) -> dict[str, int]:
        """Returns the sizes of a model's named dimensions in batches.

        Args:
            sizes: The same in single samples.
        """
        if self.dimension is None:
            return dict(sizes)
        return {**sizes, self.dimension: batch}

    def validation(self, workload: Workload, batch: int) -> tuple[Feed, ...]:
        """Returns batches of the samples on which answers are compared."""
        return stack(workload.validation, self.inputs, batch)

    def timing(self, workload: Workload, batch: int) -> tuple[Feed, ...]:
        """Returns batches that are run in turn while timing, of samples taken evenly from all."""
        return stack(evenly(workload.feeds, max(TIMING_SAMPLES, batch)), self.inputs, batch)

    def workload(self, workload: Workload, batch: int) -> Workload:
        """Returns a workload whose samples are batches, for what looks at single runs."""
        note = f"each run has a batch of {batch}"
        return replace(workload, feeds=self.timing(workload, batch), notes=(*workload.notes, note))

    def check_memory(self, workload: Workload) -> None:
        """Refuses sizes whose inputs do not fit into memory.

        Raises:
            RequestError: the largest one takes more than half of the memory that is free.
        """
        largest = self.sizes[-1]
        sample_bytes = sum(workload.feeds[0][name].nbytes for name in self.inputs)
        needed_mib = _COPIES * sample_bytes * max(TIMING_SAMPLES, largest) >> 20
        free_mib = memory.free_mib()
        if needed_mib > free_mib // 2:
            raise RequestError(
                f"the inputs of batches of {largest} would take {needed_mib:,} MiB in all "
                f"processes, and {free_mib:,} MiB are free; name smaller sizes"
            )


def stack(samples: Sequence[Feed], inputs: Sequence[str], size: int) -> tuple[Feed, ...]:
    """Returns all samples in batches, in their order; the last batch is filled up from the start.

    Args:
        samples: Samples of one shape, at least one.
        inputs: Names of the inputs that are stacked; the others are the first sample's.
    """
    if size == 1:
        return tuple(samples)
    batches = []
    for start in range(0, len(samples), size):
        members = [samples[(start + i) % len(samples)] for i in range(size)]
        batches.append(
            {
                name: np.concatenate([member[name] for member in members])
                if name in inputs
                else array
                for name, array in members[0].items()
            }
        )
    return tuple(batches)


def _is_open(size: int | str | None) -> bool:
    return not isinstance(size, int)


def _problem(model: Model, stacked: Sequence[Tensor]) -> str | None:
    """Returns why a model has no batch dimension; None if it has one.

    Args:
        stacked: Its inputs whose first dimension is open.
    """
    if not stacked:
        shapes = " and ".join(
            f"'{t.name}' has the shape {in_brackets(t.shape)}" for t in model.inputs
        )
        return (
            f"no input of {model.path.name} has an open first dimension"
            f"{f' ({shapes})' if shapes else ''}; export the model with a batch dimension"
        )
    first = stacked[0]
    name = first.shape[0]
    for tensor in stacked:
        if tensor.shape[0] != name:
            return (
                f"the inputs '{first.name}' {in_brackets(first.shape)} and '{tensor.name}' "
                f"{in_brackets(tensor.shape)} begin with different dimensions, so neither is "
                "surely the batch"
            )
    for tensor in model.inputs:
        if name is not None and name in tensor.shape[1 if tensor in stacked else 0 :]:
            return (
                f"the input '{tensor.name}' has the shape {in_brackets(tensor.shape)}, with the "
                f"batch dimension '{name}' in another place than the first"
            )
    return None


def _samples_problem(model: Model, workload: Workload, stacked: Sequence[Tensor]) -> str | None:
    """Returns why samples cannot be stacked; None if they can."""
    for tensor in model.inputs:
        arrays = [feed[tensor.name] for feed in workload.feeds]
        if tensor not in stacked:
            if not all(np.array_equal(arrays[0], array) for array in arrays):
                return (
                    f"the input '{tensor.name}' has the shape {in_brackets(tensor.shape)}, without "
                    "the batch dimension, and differs from sample to sample"
                )
            continue
        for array in arrays:
            if array.shape[0] != 1:
                return (
                    f"a sample of '{tensor.name}' has the shape {list(array.shape)}; batches are "
                    "made of samples whose first dimension is 1"
                )
            if array.shape != arrays[0].shape:
                return (
                    f"samples of '{tensor.name}' have the shapes {list(arrays[0].shape)} and "
                    f"{list(array.shape)}, and only samples of one shape can be stacked"
                )
    return None


def masked_dimension(model: Model) -> str | None:
    """Returns the dimension whose positions an attention mask can hide: the mask's second, by name.

    None where the model has no such mask, or the dimension has one size.
    """
    lengths = {
        tensor.shape[1] for tensor in model.inputs if tensor.is_mask and len(tensor.shape) == 2
    }
    return next((length for length in lengths if isinstance(length, str)), None)
