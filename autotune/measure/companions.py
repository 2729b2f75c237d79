"""The ways to call a model: samples alone, in a batch with others, and with padding behind them.

Dynamic int8 takes one scale for all numbers of a tensor. So its answer to a sample changes with the
samples beside it, and with padding.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autotune.deploy.records import Amount, PositiveWhole, Whole
from autotune.errors import RequestError
from autotune.facts.batches import Batching, masked_dimension, stack
from autotune.facts.feeds import Feed
from autotune.facts.model import Model
from autotune.facts.workload import Workload, evenly
from autotune.measure.answers import OutputMismatchError, Outputs, compare
from autotune.measure.child_session import ChildSession
from autotune.measure.requests import samples_of
from autotune.measure.sample_sets import SAME_ANSWERS
from autotune.process.child import ChildFailure

_SAMPLES = 4
_PADDING = 8


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to call a model."""

    batch: int = 1
    padding: int = 0
    feeds: Sequence[Feed]


@dataclass(frozen=True, kw_only=True)
class Companions:
    """How far the answers of a configuration depend on what else is in a run.

    Attributes:
        padding: Positions that were added behind each sample, with the attention mask at 0.
        error: Error against the unoptimised model, which was called in the same way.
        difference: Error against its own answers to the same samples alone; None where the
            unoptimised model's own answers depend on it.
    """

    batch: PositiveWhole
    padding: Whole
    error: Amount
    difference: Amount | None

    @property
    def limited(self) -> float:
        """What the limit of the error holds for."""
        return self.error if self.difference is None else self.difference


def cases_of(
    model: Model, workload: Workload, fixed: Mapping[str, int], batch: int | None = None
) -> list[Case]:
    """Returns the ways to call a model: samples alone, and in batches and padded where it can be.

    Args:
        batch: Samples of a run; if None, as many as there are.
    """
    samples = evenly(workload.validation, _SAMPLES)
    cases = [Case(feeds=samples)]
    batch = batch or _SAMPLES
    try:
        batching = Batching.of(model, replace(workload, feeds=samples), [1, batch])
    except RequestError:  # it has no batch dimension
        batching = None
    if batching and batching.dimension not in fixed and batch > 1:
        cases.append(Case(batch=batch, feeds=stack(samples, batching.inputs, batch)))
    if padded := _padded(model, samples, fixed):
        cases.append(Case(padding=_PADDING, feeds=padded))
    return cases


def _padded(model: Model, samples: Sequence[Feed], fixed: Mapping[str, int]) -> list[Feed]:
    """Returns samples with zeros behind their positions; empty without an attention mask."""
    name = masked_dimension(model)
    if name is None or name in fixed:
        return []
    places = {tensor.name: [size == name for size in tensor.shape] for tensor in model.inputs}
    return [
        {
            key: np.pad(array, [(0, _PADDING if grows else 0) for grows in places[key]])
            for key, array in feed.items()
        }
        for feed in samples
    ]


def by_sample(
    runs: Sequence[Outputs], batch: int, forms: Sequence[Outputs]
) -> list[dict[str, NDArray[np.generic]]]:
    """Returns the outputs of single samples, cut to the positions that the sample's form has.

    Raises:
        OutputMismatchError: an output has no batch dimension.
    """
    return [
        {
            name: array[tuple(map(slice, form[name].shape))]
            if name in form and array.ndim == form[name].ndim
            else array
            for name, array in outputs.items()
        }
        for outputs, form in zip(samples_of(runs, batch, len(forms)), forms, strict=True)
    ]


def compare_companions(
    exact: ChildSession, session: ChildSession, cases: Sequence[Case]
) -> list[Companions]:
    """Returns how far answers depend on each way to call a model but the first, samples alone.

    A way in which the unoptimised model itself does not run is left out.

    Args:
        exact: The unoptimised model.

    Raises:
        ChildFailure: the configuration does not run.
        OutputMismatchError: its outputs cannot be compared.
    """
    alone, *others = cases
    right, own = (each.outputs(alone.feeds) for each in (exact, session))
    companions = []
    for case in others:
        try:
            same = by_sample(exact.outputs(case.feeds, case.batch), case.batch, right)
        except (ChildFailure, OutputMismatchError):  # the dimension is no batch
            continue
        answers = by_sample(session.outputs(case.feeds, case.batch), case.batch, right)
        error, difference = compare(same, answers).error, compare(own, answers).error
        if not math.isfinite(error) or not math.isfinite(difference):
            raise OutputMismatchError("an output is too far off for a finite error")
        depends = compare(right, same).error > SAME_ANSWERS
        companions.append(
            Companions(
                batch=case.batch,
                padding=case.padding,
                error=error,
                difference=None if depends else difference,
            )
        )
    return companions
