"""How far one set of outputs is from another.

The error of an output on a sample is the relative L2 distance of the unoptimised model's; of
integers, booleans and strings it is the share that differs. The error of an output is its mean over
the samples, but at least an eighth of the worst sample's: a limit of 0.05 holds for the samples
together, and no sample may be further off than 0.4. The error of a configuration is that of its
worst output.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

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


WORST_SAMPLE_FACTOR = 8.0
"""No sample may have an error of more than so many times the limit."""

# A transformer with its past as outputs has hundreds; a trial keeps the errors of the worst.
_MOST_OUTPUTS = 16
# What Hugging Face's exporters call scores of classes: of a text, a token, or a detector's query.
_LOGITS = "logits"
# Probabilities in half precision add up to 1 within this.
_SUM_TOLERANCE = 1e-2
# Names of arrays that say how an output is built: they hardly ever vary.
_FORMS = (".length", ".keys")
# A sample that is nearly zero beside the others is compared with this share of their size: its own
# says nothing of what matters.
_SMALLEST_SHARE = 0.1


class Judge(Protocol):
    """What compares a configuration's outputs with the unoptimised model's.

    Attributes:
        first_look: How many samples may show already that outputs are wrong; 0 means that all are
            compared at once.
        is_costly: Whether comparing takes seconds, so that sessions which differ in threads, memory
            and storage alone are compared once.
    """

    first_look: int
    is_costly: bool

    def compare(self, outputs: Sequence[Outputs]) -> Fidelity:
        """Returns how far they are from them.

        Raises:
            OutputMismatchError: they differ in a way that no number measures.
        """

    def surely_above(self, outputs: Sequence[Outputs], max_error: float, /) -> float | None:
        """Returns the error of the first samples if that of all is surely above `max_error`.

        Args:
            outputs: Those of the first `first_look` samples.
            max_error: The limit.

        Raises:
            OutputMismatchError: see :meth:`compare`.
        """


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
    """

    first_look = 0  # an outlier may be among the last samples
    is_costly = False

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

    def surely_above(self, _: Sequence[Outputs], __: float) -> float | None:
        """Returns None: all samples are compared at once."""
        return None


def compare(references: Sequence[Outputs], outputs: Sequence[Outputs]) -> Fidelity:
    """Returns how far `outputs` are from `references`, sample by sample, worst output.

    Raises:
        OutputMismatchError: an output is missing, or one too many; its shape or its kind of values
            differs; or it has NaN or infinite values where the reference has none, or others.
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
        worst_error=max(item.worst_error or 0.0 for item in each),
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
        pairs: Reference and output of each sample; None in one that lacks the output.
    """
    both = [(r, o) for r, o in pairs if r is not None and o is not None]
    if any(reference.dtype.kind not in "fc" for reference, _ in both):
        return _compare_discrete(name, pairs, both)
    cosines, differences, agreements = [], [], []
    finite = [_finite_values(name, reference, output) for reference, output in both]
    errors = _relative_errors(finite)
    for (reference, output), (r, o) in zip(both, finite, strict=True):
        cosines.append(_cosine(r, o))
        differences.append(float(np.abs(o - r).max(initial=0.0)))
        if _holds_classes(name, reference):
            agreements += _agreement(reference, output)
    return Fidelity(
        error=_with_worst(errors, max(errors)),
        worst_error=max(errors),
        cosine=float(np.min(cosines)),
        max_difference=max(differences),
        agreement=float(np.mean(agreements)) if agreements else None,
        errors={name: _by_sample(pairs, errors)},
    )


def _compare_discrete(
    name: str,
    pairs: Sequence[tuple[Array | None, Array | None]],
    both: Sequence[tuple[Array, Array]],
) -> Fidelity:
    """Returns the same for an output of integers, booleans or strings.

    A class is right or wrong, and one wrong class makes no sample an outlier: one differing element
    of each sample counts in the mean alone.
    """
    differing = [int(np.count_nonzero(r != o)) for r, o in both]
    sizes = [max(1, r.size) for r, _ in both]
    shares = [count / size for count, size in zip(differing, sizes, strict=True)]
    outlier = max((count - 1) / size for count, size in zip(differing, sizes, strict=True))
    mean = float(np.mean(shares))
    return Fidelity(
        error=_with_worst(shares, outlier),
        worst_error=max(shares),
        cosine=1 - mean,
        max_difference=mean,
        agreement=None,
        errors={name: _by_sample(pairs, shares)},
    )


def _with_worst(errors: Sequence[float], outlier: float) -> float:
    """Returns the mean error, or the part of the worst sample's that counts if that is more."""
    return max(float(np.mean(errors)), outlier / WORST_SAMPLE_FACTOR)


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


def _holds_classes(name: str, reference: Array) -> bool:
    """Returns whether the last axis of an output is one of classes.

    It is where an output is a row for each sample. With positions between, as of tokens, it is
    where the rows are probabilities, or the exporter named them logits. The last axis of a detector
    is one of boxes or of coordinates.
    """
    if not reference.size or reference.shape[-1:] in ((), (1,)):
        return False
    if reference.ndim == 2 or (reference.ndim == 3 and name == _LOGITS):
        return True
    if reference.ndim != 3 or reference.dtype.kind != "f" or np.any(np.signbit(reference)):
        return False
    return bool(np.allclose(reference.sum(-1, dtype=np.float64), 1, atol=_SUM_TOLERANCE))


def _agreement(reference: Array, output: Array) -> list[float]:
    """Returns the share of rows with the same arg-max; empty where no row has a finite largest."""
    # NaN is the largest number to numpy, and the same place of NaN is no agreement
    rows = np.isfinite(np.atleast_1d(reference.max(-1)))
    equal = np.atleast_1d(reference.argmax(-1) == output.argmax(-1))
    return [float(np.mean(equal[rows]))] if rows.any() else []


def _relative_errors(
    pairs: Sequence[tuple[NDArray[np.inexact], NDArray[np.inexact]]],
) -> list[float]:
    """Returns the relative L2 distance of each sample, where references may be zero.

    A reference counts as a tenth of the root mean square of all samples at least. Where the output
    is zero in all of them there is no scale, and a difference counts as it is.

    Args:
        pairs: The finite numbers of reference and output of each sample.
    """
    numbers = sum(r.size for r, _ in pairs)
    norm = math.hypot(*(float(np.linalg.norm(r)) for r, _ in pairs))
    scale = norm / math.sqrt(numbers) if numbers else 0.0
    smallest = _SMALLEST_SHARE * scale if scale else 1.0
    return [
        float(np.linalg.norm(o - r))
        / max(float(np.linalg.norm(r)), smallest * math.sqrt(max(1, r.size)))
        for r, o in pairs
    ]


def _cosine(r: NDArray[np.inexact], o: NDArray[np.inexact]) -> float:
    sizes = float(np.linalg.norm(r)) * float(np.linalg.norm(o))
    if sizes == 0:
        return 1.0 if not r.any() and not o.any() else 0.0
    return float(np.real(np.vdot(r, o))) / sizes


def coverage_of(references: Sequence[Outputs], repeat_error: float) -> Coverage:
    """Returns what a comparison with these outputs covers.

    Args:
        references: The unoptimised model's outputs, sample by sample.
        repeat_error: Relative L2 error between two runs of it on the same samples.
    """
    arrays = [array for outputs in references for array in outputs.values()]
    numbers = sum(array.size for array in arrays)
    finite = sum(int(_finite(array).sum()) for array in arrays)
    return Coverage(
        samples=len(references),
        share=finite / numbers if numbers else 1.0,
        constant_outputs=tuple(
            name
            for name in _names(references)
            if not name.endswith(_FORMS) and _is_constant(_arrays_of(references, name))
        ),
        repeat_error=repeat_error,
    )


def incomparable(references: Sequence[Outputs]) -> str | None:
    """Returns why no answers can be compared with these outputs; None where they can."""
    if not _names(references):
        return "it has no outputs"
    for name in _names(references):
        arrays = _arrays_of(references, name)
        if any(array.size for array in arrays) and not any(_finite(a).any() for a in arrays):
            return f"all numbers of the output '{name}' are NaN or infinite"
    return None


def _names(references: Sequence[Outputs]) -> list[str]:
    return list(dict.fromkeys(name for outputs in references for name in outputs))


def _arrays_of(references: Sequence[Outputs], name: str) -> list[NDArray[np.generic]]:
    """Returns the arrays of one output; a sequence may lack some of its elements."""
    return [outputs[name] for outputs in references if name in outputs]


def _finite(array: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Returns where the array has values that can be compared."""
    if array.dtype.kind not in "fc":
        return np.ones(array.shape, np.bool_)
    finite: NDArray[np.bool_] = np.isfinite(array)
    return finite


def _is_constant(arrays: Sequence[NDArray[np.generic]]) -> bool:
    """Returns whether an output is empty, or the same for all of several samples."""
    first, *others = arrays
    if not any(array.size for array in arrays):
        return True
    equal_nan = first.dtype.kind in "fc"
    return bool(others) and all(np.array_equal(first, a, equal_nan=equal_nan) for a in others)
