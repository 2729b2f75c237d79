"""Generated inputs, for a model without samples of its user's."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from autotune.errors import DataError, RequestError, did_you_mean, shortened
from autotune.facts.feeds import Feed, contents
from autotune.facts.model import Model
from autotune.facts.tried_inputs import Choice, choices, too_large_for_memory
from autotune.facts.usual_sizes import is_name
from autotune.facts.values import GENERATED_SAMPLES, feed_of, how
from autotune.facts.workload import Workload

_NO_VALUES: Mapping[str, float] = {}


def check_given(
    model: Model, shapes: Mapping[str, Sequence[int]], values: Mapping[str, float]
) -> None:
    """Refuses shapes and values that do not fit the model.

    Raises:
        RequestError: one names an unknown input or does not fit it.
    """
    inputs = {tensor.name: tensor for tensor in model.inputs}
    for option, names in (("--shape", shapes), ("--value", values)):
        for name in names:
            if name not in inputs:
                raise RequestError(
                    f"{option}: {model.path.name} has no input '{name}'."
                    f"{did_you_mean(name, inputs)} Its inputs are {', '.join(inputs)}."
                )
    for name, shape in shapes.items():
        if problem := inputs[name].misfit(shape):
            raise RequestError(f"--shape {name}={','.join(map(str, shape))}: {problem}")
    for name, value in values.items():
        dtype = inputs[name].dtype
        is_whole = dtype.startswith(("int", "uint", "bool"))
        if dtype == "str" or (is_whole and value != int(value)):
            raise RequestError(f"--value {name}={value:g}: the model takes {dtype}")


def generate(
    model: Model,
    shapes: Mapping[str, Sequence[int]],
    seed: int = 0,
    *,
    values: Mapping[str, float] = _NO_VALUES,
    choice: Choice | None = None,
) -> Workload:
    """Returns generated samples for `model`.

    Args:
        shapes: Shapes of inputs by name, as the user gives them.
        values: Values of inputs by name, as the user gives them.
        choice: Sizes and values with which the model ran; the most usual ones if None.

    Raises:
        RequestError: `shapes` or `values` name an unknown input or do not fit it.
    """
    check_given(model, shapes, values)
    choice = choice or next(choices(model, shapes, values))
    chosen = choice.shapes
    if problem := too_large_for_memory(chosen, GENERATED_SAMPLES):
        largest = max(chosen, key=lambda name: math.prod(chosen[name]))
        raise RequestError(
            f"{problem}; set smaller sizes with --shape {shortened(largest)}=... "
            f"(now {list(chosen[largest])}), or bring samples with --data"
        )
    random = np.random.default_rng(seed)
    feeds = tuple(
        feed_of(model.inputs, chosen, random, number, choice.variant, values)
        for number in range(GENERATED_SAMPLES)
    )
    notes = [
        f"input '{tensor.name}': {tensor.dtype} {list(chosen[tensor.name])}, "
        + (
            f"{values[tensor.name]:g} as given"
            if tensor.name in values
            else how(tensor, chosen[tensor.name], choice.variant)
        )
        for tensor in model.inputs
    ]
    if opened := [t.name for t in model.inputs if t.is_dynamic and t.name not in shapes]:
        first = opened[0]
        notes.append(
            f"the model leaves sizes of {', '.join(opened)} open, and autotune chose these; "
            f"--shape {first}={','.join(map(str, chosen[first]))} sets others"
        )
    given = {
        dimension
        for tensor in model.inputs
        if tensor.name in shapes
        for dimension in tensor.shape
        if isinstance(dimension, str) and is_name(dimension)
    }
    dimensions = {d for t in model.inputs for d in t.shape if isinstance(d, str)}
    return Workload(
        feeds=feeds,
        source="generated",
        notes=tuple(notes),
        warnings=_warnings(model, feeds),
        chosen=tuple(sorted(dimensions - given)),
    )


def _warnings(model: Model, feeds: Sequence[Feed]) -> tuple[str, ...]:
    """Returns what qualifies all numbers on these samples."""
    if len({b"".join(contents([feed])) for feed in feeds}) == len(feeds):
        return ()
    takes = ", ".join(tensor.name for tensor in model.inputs) or "no input"
    sentence = (
        f"some of the {len(feeds)} generated samples are equal, because the model takes nothing "
        f"that autotune knows to vary ({takes}); bring samples with --data"
    )
    return (sentence,)


def one_sample(model: Model, shapes: Mapping[str, Sequence[int]], seed: int) -> Feed:
    """Returns a generated sample of shapes that were recorded; names of no input are passed over.

    Raises:
        DataError: a shape does not fit, or the sample does not fit into memory.
    """
    for tensor in model.inputs:
        if tensor.name in shapes and (problem := tensor.misfit(shapes[tensor.name])):
            raise DataError(f"input {tensor.name} {list(shapes[tensor.name])}: {problem}")
    choice = next(choices(model, shapes, {}))
    if problem := too_large_for_memory(choice.shapes, 1):
        raise DataError(f"{problem}; close other programs, or leave such inputs out")
    number = seed % GENERATED_SAMPLES
    return feed_of(model.inputs, choice.shapes, np.random.default_rng(seed), number)
