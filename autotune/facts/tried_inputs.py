"""Which generated inputs a model runs on: sizes and values are tried in a limited child process.

A model may run only with certain sizes, with masks of ones, or with one sample rate. The usual ones
come first; a size that takes too long or too much memory rules out all larger ones.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.errors import RequestError
from autotune.facts.feeds import save_samples
from autotune.facts.model import Model
from autotune.facts.model_facts import TriedRun
from autotune.facts.runtime import without_places
from autotune.facts.usual_sizes import Shapes, size_of, usual_shapes
from autotune.facts.values import VARIANTS, Variant, feed_of
from autotune.process import memory
from autotune.process.child import Child, ChildFailure, memory_limit

_CHILD = "autotune.facts.tried_inputs_child"
_OPEN_LIMIT_S = 300.0
_RUN_LIMIT_S = 20.0
_LIMIT_S = 120.0
_SAMPLE = "sample.npz"
# Samples are drawn as float64, whatever the type of the input.
_ITEM_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Sizes and values of generated inputs."""

    shapes: Shapes
    variant: Variant = VARIANTS[0]


def choices(
    model: Model, given: Mapping[str, Sequence[int]], values: Mapping[str, float]
) -> Iterator[Choice]:
    """Yields the sizes and values to try, the most usual first; at least one."""
    variants = [VARIANTS[0]]
    tensors = [tensor for tensor in model.inputs if tensor.name not in values]
    for variant in VARIANTS[1:]:
        if all(any(variant.differs_for(t, other) for t in tensors) for other in variants):
            variants.append(variant)
    for shapes in usual_shapes(model.inputs, given):
        for variant in variants:
            yield Choice(shapes=shapes, variant=variant)


def first_that_runs(
    model: Model,
    given: Mapping[str, Sequence[int]],
    values: Mapping[str, float] | None = None,
) -> Choice:
    """Returns the first choice of inputs with which the model runs, one without NaN before others.

    Where there is only one choice, it is not tried: the measurement of the default shows it.

    Args:
        given: Shapes that the user gives to inputs by name.
        values: Values that the user gives to inputs by name.

    Raises:
        RequestError: the model runs with none.
    """
    offered = list(choices(model, given, values or {}))
    if len(offered) == 1:
        return offered[0]
    tries = _Tries(model, values or {})
    try:
        return tries.first(offered)
    finally:
        tries.stop()


def too_large_for_memory(shapes: Shapes, count: int) -> str:
    """Returns how so many samples take more than half of the free memory; empty if they do not."""
    total_mib = count * _ITEM_BYTES * size_of(shapes) >> 20
    free_mib = memory.free_mib()
    if total_mib <= free_mib // 2:
        return ""
    return f"generated inputs would take {total_mib:,} MiB, and {free_mib:,} MiB are free"


class _Tries:
    """Runs of one model with generated inputs."""

    def __init__(self, model: Model, values: Mapping[str, float]) -> None:
        self._model = model
        self._values = values
        self._child: Child | None = None

    def first(self, offered: Sequence[Choice]) -> Choice:
        end_s = time.monotonic() + _LIMIT_S
        with_nan: Choice | None = None
        reason, too_large = "", None
        for choice in offered:
            size = size_of(choice.shapes)
            if too_large is not None and size >= too_large:
                continue
            if problem := too_large_for_memory(choice.shapes, 1):
                reason, too_large = reason or problem, size
                continue
            try:
                trial = self._run(choice)
            except ChildFailure as failure:
                reason = reason or _words(failure)
                if failure.kind != "refused":
                    self.stop()
                if failure.kind in ("timeout", "out_of_memory"):
                    too_large = size
            else:
                if not trial.nan:
                    return choice
                with_nan = with_nan or choice
            if time.monotonic() > end_s:
                break
        if with_nan is not None:
            return with_nan
        raise RequestError(self._refusal(offered[0], reason))

    def stop(self) -> None:
        """Ends the child."""
        if self._child is not None:
            self._child.stop()
            self._child = None

    def _run(self, choice: Choice) -> TriedRun:
        if self._child is None:
            self._child = Child(_CHILD, memory_limit())
            # not resolved: the data of a link lie beside the link
            request = {"do": "open", "path": str(self._model.path.absolute())}
            self._child.request(request, _OPEN_LIMIT_S, TriedRun)
        random = np.random.default_rng(0)
        feed = feed_of(
            self._model.inputs, choice.shapes, random, variant=choice.variant, values=self._values
        )
        path = self._child.folder / _SAMPLE
        save_samples([feed], path)
        return self._child.request({"do": "run", "sample": str(path)}, _RUN_LIMIT_S, TriedRun)

    def _refusal(self, choice: Choice, reason: str) -> str:
        """Returns one sentence that says what was tried, and what to type."""
        opened = [tensor for tensor in self._model.inputs if tensor.is_dynamic]
        tensors = opened or self._model.inputs[:1]
        typed = " ".join(
            f"--shape {tensor.name}={','.join(map(str, choice.shapes[tensor.name]))}"
            for tensor in tensors
            if choice.shapes[tensor.name]
        )
        known = [
            f"{tensor.name} has {tensor.known[axis]} in dimension {axis + 1}"
            for tensor in opened
            for axis in range(len(tensor.known))
            if tensor.known[axis]
        ]
        facts = f" (its weights say: {', '.join(known)})" if known else ""
        return (
            f"{self._model.path.name} runs on no inputs that autotune can make up{facts}: "
            f"{reason.rstrip('.')}. Bring samples with --data, or sizes: {typed}"
        )


def _words(failure: ChildFailure) -> str:
    if failure.kind == "timeout":
        return f"a run of the smallest usual size took over {_RUN_LIMIT_S:.0f} s"
    if failure.kind == "out_of_memory":
        return f"it needs more memory than is free: {failure.message}"
    return without_places(failure.message)
