"""Generated inputs, for a model without samples of its user's."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.errors import DataError, RequestError, did_you_mean, shortened
from autotune.facts.feeds import Feed
from autotune.facts.model import Model
from autotune.facts.model_facts import Tensor
from autotune.facts.usual_sizes import completed
from autotune.facts.workload import Workload
from autotune.process import memory

_GENERATED_SAMPLES = 8
# Samples are drawn as float64, whatever the type of the input.
_ITEM_BYTES = 8


def generate(model: Model, shapes: Mapping[str, Sequence[int]], seed: int = 0) -> Workload:
    """Returns generated samples for `model`.

    Floats are normal, integers that index a table lie within its rows, masks and other integers
    are ones, booleans true, strings a word. Open dimensions have the sizes that `shapes` gives to
    dimensions of their name, else usual ones with which the model ran, else 1.

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
        if problem := inputs[name].misfit(shape):
            raise RequestError(f"--shape {name}={','.join(map(str, shape))}: {problem}")
    random = np.random.default_rng(seed)
    chosen = completed(model.inputs, shapes, model.usual_shapes)
    if problem := _too_large(chosen, _GENERATED_SAMPLES):
        largest = max(chosen, key=lambda name: math.prod(chosen[name]))
        raise RequestError(
            f"{problem}; set smaller sizes with --shape {shortened(largest)}=... "
            f"(now {list(chosen[largest])}), or bring samples with --data"
        )
    feeds = tuple(feed_of(model.inputs, chosen, random) for _ in range(_GENERATED_SAMPLES))
    notes = [
        f"input '{tensor.name}': {tensor.dtype} {list(chosen[tensor.name])}, {_how(tensor)}"
        for tensor in model.inputs
    ]
    if opened := [t.name for t in model.inputs if t.is_dynamic and t.name not in shapes]:
        first = opened[0]
        notes.append(
            f"the model leaves sizes of {', '.join(opened)} open, and autotune chose these; "
            f"--shape {first}={','.join(map(str, chosen[first]))} sets others"
        )
    return Workload(feeds=feeds, source="generated", notes=tuple(notes))


def one_sample(model: Model, shapes: Mapping[str, Sequence[int]], seed: int) -> Feed:
    """Returns a generated sample of shapes that were recorded; names of no input are passed over.

    Raises:
        DataError: a shape does not fit, or the sample does not fit into memory.
    """
    for tensor in model.inputs:
        if tensor.name in shapes and (problem := tensor.misfit(shapes[tensor.name])):
            raise DataError(f"input {tensor.name} {list(shapes[tensor.name])}: {problem}")
    chosen = completed(model.inputs, shapes, model.usual_shapes)
    if problem := _too_large(chosen, 1):
        raise DataError(f"{problem}; close other programs, or leave such inputs out")
    return feed_of(model.inputs, chosen, np.random.default_rng(seed))


def feed_of(
    inputs: Sequence[Tensor], shapes: Mapping[str, tuple[int, ...]], random: np.random.Generator
) -> Feed:
    """Returns one sample, with a shape for each input."""
    return {tensor.name: _generated(tensor, shapes[tensor.name], random) for tensor in inputs}


def _too_large(shapes: Mapping[str, tuple[int, ...]], count: int) -> str:
    """Returns how so many samples take more than half of the free memory; empty if they do not."""
    total_mib = count * _ITEM_BYTES * sum(map(math.prod, shapes.values())) >> 20
    free_mib = memory.free_mib()
    if total_mib <= free_mib // 2:
        return ""
    return f"generated inputs would take {total_mib:,} MiB, and {free_mib:,} MiB are free"


def _generated(
    tensor: Tensor, shape: tuple[int, ...], random: np.random.Generator
) -> NDArray[np.generic]:
    if tensor.dtype == "str":
        return np.full(shape, "word")
    dtype = np.dtype(tensor.dtype)
    if tensor.is_mask:
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
    if tensor.is_mask:
        return "ones (a mask by its name)"
    if tensor.dtype.startswith(("float", "complex")):
        return "standard normal"
    if tensor.index_bound:
        return f"uniform below {tensor.index_bound} (it indexes a table of so many rows)"
    if tensor.dtype == "uint8":
        return "uniform below 256"
    return "all true" if tensor.dtype == "bool" else "ones"
