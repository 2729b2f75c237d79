"""How far one set of outputs is from another."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.facts.workload import Feed
from autotune.measure.outcome import Fidelity

Outputs = Mapping[str, NDArray[np.generic]]
"""One sample's outputs, flat: an array for each name."""

Metric = Callable[[Sequence[Outputs], Sequence[Outputs], Sequence[Feed]], float]
"""Outputs, the unoptimised model's outputs and the inputs, sample by sample, to a number that is
better the higher it is."""


def flatten(names: Sequence[str], values: Sequence[object]) -> dict[str, NDArray[np.generic]]:
    """Returns a run's outputs as arrays that can be saved without pickling.

    Sequences become one array for each element, maps one for their keys and one for their values,
    missing optional outputs are left out.
    """
    flat: dict[str, NDArray[np.generic]] = {}
    for name, value in zip(names, values, strict=True):
        if isinstance(value, list):
            inner = [f"{name}[{i}]" for i in range(len(value))]
            flat[f"{name}.length"] = np.asarray(len(value))
            flat.update(flatten(inner, value))
        elif isinstance(value, dict):
            keys = sorted(value)
            flat[f"{name}.keys"] = np.asarray(keys)
            flat[f"{name}.values"] = np.asarray([value[key] for key in keys])
        elif value is not None:
            array = np.asarray(value)
            flat[name] = array.astype(str) if array.dtype == object else array
    return flat


def compare(references: Sequence[Outputs], outputs: Sequence[Outputs]) -> Fidelity:
    """Returns how far `outputs` are from `references`, sample by sample, worst output.

    Other names, shapes or kinds of values than the reference's are an infinite error. NaN and Inf
    are wrong answers unless the reference has the same ones at the same places.
    """
    worst = Fidelity(error=np.inf, cosine=-1.0, max_difference=np.inf, agreement=None)
    if len(references) != len(outputs):
        return worst
    names = list(references[0])
    for reference, output in zip(references, outputs, strict=True):
        same = output.keys() == reference.keys()
        if not same or any(_form(output[n]) != _form(reference[n]) for n in reference):
            return worst
    # a sequence may be longer in one sample than in another
    names = list(dict.fromkeys(name for reference in references for name in reference))
    each = [
        _compare_output(
            [(r[name], o[name]) for r, o in zip(references, outputs, strict=True) if name in r]
        )
        for name in names
    ]
    agreements = [item.agreement for item in each if item.agreement is not None]
    return Fidelity(
        error=max(item.error for item in each),
        cosine=min(item.cosine for item in each),
        max_difference=max(item.max_difference for item in each),
        agreement=min(agreements) if agreements else None,
    )


def _form(array: NDArray[np.generic]) -> tuple[tuple[int, ...], str]:
    return array.shape, array.dtype.kind


def _compare_output(
    pairs: Sequence[tuple[NDArray[np.generic], NDArray[np.generic]]],
) -> Fidelity:
    """Returns the same for one output; `pairs` holds (reference, output) of each sample."""
    if any(reference.dtype.kind not in "fc" for reference, _ in pairs):
        differing = float(np.mean([np.mean(r != o) if r.size else 0.0 for r, o in pairs]))
        return Fidelity(
            error=differing, cosine=1 - differing, max_difference=differing, agreement=None
        )
    errors, cosines, differences, agreements = [], [], [], []
    for reference, output in pairs:
        r, o = (
            np.asarray(a, np.float64 if a.dtype.kind == "f" else np.complex128)
            for a in (reference, output)
        )
        usual = np.isfinite(r)
        if not np.array_equal(r[~usual], o[~usual], equal_nan=True):
            return Fidelity(error=np.inf, cosine=-1.0, max_difference=np.inf, agreement=None)
        r, o = r[usual], o[usual]
        if not np.isfinite(o).all():
            return Fidelity(error=np.inf, cosine=-1.0, max_difference=np.inf, agreement=None)
        gap = np.abs(o - r)
        errors.append(_relative(float(np.linalg.norm(gap)), float(np.linalg.norm(r))))
        cosines.append(_cosine(r, o))
        differences.append(float(gap.max(initial=0.0)))
        if reference.size and reference.ndim and reference.shape[-1] > 1:
            agreements.append(float(np.mean(reference.argmax(-1) == output.argmax(-1))))
    return Fidelity(
        error=float(np.mean(errors)),
        cosine=float(np.min(cosines)),
        max_difference=max(differences),
        agreement=float(np.mean(agreements)) if agreements else None,
    )


def _relative(gap: float, size: float) -> float:
    if gap == 0:
        return 0.0
    return gap / size if size > 0 else np.inf


def _cosine(r: NDArray[np.inexact], o: NDArray[np.inexact]) -> float:
    sizes = float(np.linalg.norm(r)) * float(np.linalg.norm(o))
    if sizes == 0:
        return 1.0 if not r.any() and not o.any() else 0.0
    return float(np.real(np.vdot(r, o))) / sizes
