"""How far one set of outputs is from another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autotune.deploy.config import Coverage
from autotune.facts.feeds import Feed
from autotune.measure.outcome import Fidelity

Array = NDArray[np.generic]

Outputs = Mapping[str, Array]
"""One sample's outputs, flat: an array for each name."""

Metric = Callable[[Sequence[Outputs], Sequence[Outputs], Sequence[Feed]], float]
"""The user's own judge of outputs: a number that is better the higher it is.

It is called with the outputs, the unoptimised model's outputs and the inputs, a list of samples
each.
"""


# A transformer with its past as outputs has hundreds; a trial keeps the errors of the worst.
_MOST_OUTPUTS = 16


class OutputMismatchError(Exception):
    """Outputs differ from the unoptimised model's in a way that no number measures.

    The message says which output, and how.
    """


class OutputJudge:
    """Compares outputs with the unoptimised model's.

    Args:
        references: The unoptimised model's outputs, sample by sample.
        inputs: The samples that they were computed from.
        metric: The user's own judge of outputs; None without one.
        coverage: How much a comparison with these outputs proves.
    """

    def __init__(
        self,
        references: Sequence[Outputs],
        inputs: Sequence[Feed],
        metric: Metric | None,
        coverage: Coverage | None = None,
    ) -> None:
        self._references = references
        self._coverage = coverage
        self._inputs = inputs
        self._metric = metric
        self._reference_metric = None if metric is None else metric(references, references, inputs)

    def compare(self, outputs: Sequence[Outputs]) -> Fidelity:
        """Returns how far `outputs` are from the unoptimised model's.

        Raises:
            OutputMismatchError: see :func:`compare`.
        """
        fidelity = replace(compare(self._references, outputs), coverage=self._coverage)
        if self._metric is None or self._reference_metric is None:
            return fidelity
        value = self._metric(outputs, self._references, self._inputs)
        return replace(fidelity, metric=value, drop=self._reference_metric - value)


def compare(references: Sequence[Outputs], outputs: Sequence[Outputs]) -> Fidelity:
    """Returns how far `outputs` are from `references`, sample by sample, worst output.

    Raises:
        OutputMismatchError: an output is missing, or one too many; its shape or its kind of values
            differs; it has NaN or infinite values where the reference has none, or others; or the
            reference is zero and it is not.
    """
    if len(references) != len(outputs):
        raise OutputMismatchError(f"{len(outputs)} samples have outputs, and not {len(references)}")
    for reference, output in zip(references, outputs, strict=True):
        _check_form(reference, output)
    # a sequence may be longer in one sample than in another
    names = list(dict.fromkeys(name for reference in references for name in reference))
    each = [
        _compare_output(
            name,
            [(r.get(name), o.get(name)) for r, o in zip(references, outputs, strict=True)],
        )
        for name in names
    ]
    agreements = [item.agreement for item in each if item.agreement is not None]
    worst = sorted(each, key=lambda item: -item.error)[:_MOST_OUTPUTS]
    return Fidelity(
        error=max(item.error for item in each),
        cosine=min(item.cosine for item in each),
        max_difference=max(item.max_difference for item in each),
        agreement=min(agreements) if agreements else None,
        errors={name: errors for item in worst for name, errors in item.errors.items()},
    )


def _check_form(reference: Outputs, output: Outputs) -> None:
    """Refuses outputs of one sample with other names, shapes or kinds of values."""
    for name in reference:
        if name not in output:
            raise OutputMismatchError(f"the output '{name}' is missing")
    for name in output:
        if name not in reference:
            raise OutputMismatchError(f"the unoptimised model has no output '{name}'")
    for name, array in output.items():
        shape, expected = list(array.shape), list(reference[name].shape)
        if shape != expected:
            raise OutputMismatchError(
                f"the output '{name}' has the shape {shape}, and the unoptimised model's has "
                f"{expected}"
            )
        if array.dtype.kind != reference[name].dtype.kind:
            raise OutputMismatchError(
                f"the output '{name}' has the type {array.dtype}, and the unoptimised model's has "
                f"{reference[name].dtype}"
            )


def _compare_output(name: str, pairs: Sequence[tuple[Array | None, Array | None]]) -> Fidelity:
    """Returns the same for one output.

    Args:
        name: The output.
        pairs: Reference and output of each sample; None in one that lacks the output.
    """
    both = [(r, o) for r, o in pairs if r is not None and o is not None]
    if any(reference.dtype.kind not in "fc" for reference, _ in both):
        shares = [float(np.mean(r != o)) if r.size else 0.0 for r, o in both]
        differing = float(np.mean(shares))
        return Fidelity(
            error=differing,
            cosine=1 - differing,
            max_difference=differing,
            agreement=None,
            errors={name: _by_sample(pairs, shares)},
        )
    errors, cosines, differences, agreements = [], [], [], []
    for reference, output in both:
        r, o = _finite_values(name, reference, output)
        gap = np.abs(o - r)
        errors.append(_relative(name, float(np.linalg.norm(gap)), float(np.linalg.norm(r))))
        cosines.append(_cosine(r, o))
        differences.append(float(gap.max(initial=0.0)))
        if reference.size and reference.ndim and reference.shape[-1] > 1:
            agreements += _agreement(reference, output)
    return Fidelity(
        error=float(np.mean(errors)),
        cosine=float(np.min(cosines)),
        max_difference=max(differences),
        agreement=float(np.mean(agreements)) if agreements else None,
        errors={name: _by_sample(pairs, errors)},
    )


def _by_sample(
    pairs: Sequence[tuple[Array | None, Array | None]], errors: Sequence[float]
) -> tuple[float | None, ...]:
    """Returns three digits of the error on each sample; None in one that lacks the output."""
    remaining = iter(errors)
    return tuple(None if r is None else float(f"{next(remaining):.3g}") for r, _ in pairs)


def _finite_values(
    name: str, reference: Array, output: Array
) -> tuple[NDArray[np.inexact], NDArray[np.inexact]]:
    """Returns both arrays in double precision where the reference is finite.

    NaN and infinite values are right only where the reference has the same ones.
    """
    r, o = (
        np.asarray(a, np.float64 if a.dtype.kind == "f" else np.complex128)
        for a in (reference, output)
    )
    finite = np.isfinite(r)
    if not np.isfinite(o[finite]).all():
        raise OutputMismatchError(
            f"the output '{name}' has NaN or infinite values where the unoptimised model has "
            "numbers"
        )
    if not np.array_equal(r[~finite], o[~finite], equal_nan=True):
        raise OutputMismatchError(
            f"the output '{name}' lacks NaN or infinite values that the unoptimised model has"
        )
    return r[finite], o[finite]


def _agreement(reference: Array, output: Array) -> list[float]:
    """Returns the share of rows with the same arg-max; empty where no row has a finite largest."""
    # NaN is the largest number to numpy, and the same place of NaN is no agreement
    rows = np.isfinite(np.atleast_1d(reference.max(-1)))
    equal = np.atleast_1d(reference.argmax(-1) == output.argmax(-1))
    return [float(np.mean(equal[rows]))] if rows.any() else []


def _relative(name: str, gap: float, size: float) -> float:
    if gap == 0:
        return 0.0
    if size == 0:
        raise OutputMismatchError(
            f"the output '{name}' is not zero, and the unoptimised model's is zero everywhere"
        )
    return gap / size


def _cosine(r: NDArray[np.inexact], o: NDArray[np.inexact]) -> float:
    sizes = float(np.linalg.norm(r)) * float(np.linalg.norm(o))
    if sizes == 0:
        return 1.0 if not r.any() and not o.any() else 0.0
    return float(np.real(np.vdot(r, o))) / sizes
