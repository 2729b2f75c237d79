"""Whether answers are right: how far the outputs of a configuration are from the model's own.

The right answers are those of the unoptimised model, on the validation samples. The rules:

1.  An output is judged by its parts (:mod:`autotune.facts.output_parts`): what different nodes
    made, or columns of another scale. The error of a configuration is that of its worst part.
2.  The error of numbers on a sample is the relative L2 distance. A sample that is nearly zero
    counts by a tenth of the size of all samples. Of sigmoids, which say how likely something is,
    elements below 0.02 in both count as equal, and the others as at least 0.1 large: what is absent
    has no scale.
3.  The error over the samples is their mean, but at least an eighth of the worst sample's.
4.  A part, or a column of it, that varies in the reference and is the same everywhere in the
    answers is lost. Its error is at least 1, whatever its share of the output.
5.  Whole numbers are classes where the graph, their name, or few small values say so; their error
    is the share that differs, as that of texts and booleans. All other whole numbers are numbers.
6.  NaN and infinite values are right where the reference has the same ones, and wrong elsewhere.
7.  Where nothing can be compared in an output, because it is empty in all samples or has no finite
    number, only an unchanged graph is right.
8.  Names, shapes and types are those of the reference. With a metric, the metric decides about
    outputs of another shape, and their error is not comparable: it counts as 1.

``docs/measuring.md`` has the reasons, and what each rule finds and lets pass.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from autotune.deploy.config import Coverage
from autotune.errors import RequestError
from autotune.facts.feeds import Feed
from autotune.facts.output_parts import (
    UNKNOWN,
    Array,
    Origins,
    OutputPart,
    columns,
    elements_of,
    parts_of,
)
from autotune.measure.flatten import output_of
from autotune.measure.outcome import Fidelity

Outputs = Mapping[str, Array]
"""One sample's outputs, flat: an array for each name."""

Metric = Callable[[Sequence[Outputs], Sequence[Outputs], Sequence[Feed]], float]
"""The user's own judge of outputs: a number that is better the higher it is.

It is called with the outputs, the unoptimised model's outputs and the inputs, a list of samples
each.
"""

WORST_SAMPLE_FACTOR = 8.0
"""No sample may have an error of more than so many times the limit."""

LOST = 1.0
"""The least error of what is the same everywhere and should not be."""

# A sample that is nearly zero beside the others is compared with this share of their size: its own
# says nothing of what matters.
_SMALLEST_SHARE = 0.1
# No detector counts a score below the first number as an object, and few one below the second.
_ABSENT_SCORE = 0.02
_LEAST_SCORE = 0.1
# A part varies by more than rounding; a column by enough to be seen beside the others. What has
# hardly a hundredth of that left is the same everywhere.
_VARIES = 1e-3
_COLUMN_VARIES = 0.1
_LEFT = 0.01
_FEWEST_IN_COLUMN = 4
# Below this no column can be lost.
_SURELY_RIGHT = 1e-4
# Nodes that number classes, places or tokens, and words by which outputs of such are called.
_OF_CLASSES = frozenset(
    "ArgMax ArgMin TopK NonMaxSuppression NonZero Unique LabelEncoder Multinomial "
    "TreeEnsembleClassifier SVMClassifier LinearClassifier".split()
)
_CLASS_WORDS = frozenset(
    "label labels class classes cls id ids token tokens index indices category length keys".split()
)
_COUNT_WORDS = frozenset("num number count counts".split())
_MOST_CLASSES = 16
_LARGEST_CLASS = 64
# Other kernels round elsewhere: an error of 0.0100 may become one of 0.0104.
_AGAIN = 1.2
_ROUNDING = 1e-5
# A transformer with its past as outputs has hundreds; a trial keeps the errors of the worst.
_MOST_PARTS = 16
# What Hugging Face's exporters call scores of classes: of a text, a token, or a detector's query.
_LOGITS = "logits"
# Probabilities in half precision add up to 1 within this.
_SUM_TOLERANCE = 1e-2
_NOTHING_COMPARED = (
    "nothing can be compared in the output '{}', which is empty or has no finite number in all "
    "samples, so that only an unchanged graph is known to be right"
)
FORMS = (".length", ".keys")
"""Ends of the names of arrays that say how an output is built."""


class Judge(Protocol):
    """What compares a configuration's outputs with the unoptimised model's.

    Attributes:
        first_look: How many samples may show already that outputs are wrong; 0 means that all are
            compared at once.
        is_costly: Whether comparing takes seconds, so that sessions which differ in threads, memory
            and storage alone are compared once.
        only_unchanged: Why only an unchanged graph is known to be right; empty where answers can be
            compared.
    """

    first_look: int
    is_costly: bool
    only_unchanged: str

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
        origins: The producers of the outputs.

    Raises:
        RequestError: the metric cannot rate the unoptimised model's own outputs.
    """

    first_look = 0  # an outlier may be among the last samples
    is_costly = False

    def __init__(
        self,
        references: Sequence[Outputs],
        inputs: Sequence[Feed],
        metric: Metric | None,
        coverage: Coverage | None = None,
        origins: Origins = UNKNOWN,
    ) -> None:
        self._references = references
        self._coverage = coverage
        self._inputs = inputs
        self._metric = metric
        self._origins = origins
        names = () if metric else uncompared(references)
        self.only_unchanged = _NOTHING_COMPARED.format(names[0]) if names else ""
        self._reference_metric = None if metric is None else self._rate(references)

    def compare(self, outputs: Sequence[Outputs]) -> Fidelity:
        """Returns how far `outputs` are from the unoptimised model's.

        Raises:
            OutputMismatchError: see :func:`compare`; or the metric cannot rate them.
        """
        with_metric = self._metric is not None
        fidelity = compare(self._references, outputs, self._origins, sized_by_values=with_metric)
        fidelity = replace(fidelity, coverage=self._coverage)
        if self._metric is None or self._reference_metric is None:
            return fidelity
        try:
            value = self._rate(outputs)
        except RequestError as fault:
            raise OutputMismatchError(str(fault)) from None
        return replace(fidelity, metric=value, drop=self._reference_metric - value)

    def _rate(self, outputs: Sequence[Outputs]) -> float:
        assert self._metric is not None
        value = self._metric(outputs, self._references, self._inputs)
        if not math.isfinite(value):
            raise RequestError(f"the metric is {value}, and it must be a finite number")
        return value

    def surely_above(self, _: Sequence[Outputs], __: float) -> float | None:
        """Returns None: all samples are compared at once."""
        return None


@dataclass(frozen=True)
class _Pair:
    """An output of one sample in both sets, or a part of it."""

    reference: Array
    output: Array


def compare(
    references: Sequence[Outputs],
    outputs: Sequence[Outputs],
    origins: Origins = UNKNOWN,
    *,
    sized_by_values: bool = False,
) -> Fidelity:
    """Returns how far `outputs` are from `references`, by the worst part of an output.

    Args:
        origins: The producers of the outputs.
        sized_by_values: Whether outputs may have other sizes; their error is 1 then.

    Raises:
        OutputMismatchError: an output is missing, or one too many; their order, the shape or the
            type of one differs; or it has NaN or infinite values where the reference has none, or
            others.
    """
    if len(references) != len(outputs):
        raise OutputMismatchError(f"{len(outputs)} samples have outputs, and not {len(references)}")
    resized = {
        name
        for reference, output in zip(references, outputs, strict=True)
        for name in _check_form(reference, output, sized_by_values=sized_by_values)
    }
    each: list[Fidelity] = []
    for name in _names(references):
        if name in resized:
            each.append(_not_comparable(name))
            continue
        pairs = [
            _Pair(r[name], o[name]) if name in r else None
            for r, o in zip(references, outputs, strict=True)
        ]
        each += _compare_output(name, pairs, origins)
    agreements = [item.agreement for item in each if item.agreement is not None]
    ranked = sorted(each, key=lambda item: -item.error)[:_MOST_PARTS]
    return Fidelity(
        error=max((item.error for item in each), default=0.0),
        worst_error=max((item.worst_error or 0.0 for item in each), default=0.0),
        worst_part=ranked[0].worst_part
        if len(each) > 1 or (each and each[0].error >= LOST)
        else "",
        cosine=min((item.cosine for item in each), default=1.0),
        max_difference=max((item.max_difference for item in each), default=0.0),
        agreement=min(agreements) if agreements else None,
        errors={name: errors for item in ranked for name, errors in item.errors.items()},
    )


def _check_form(reference: Outputs, output: Outputs, *, sized_by_values: bool) -> set[str]:
    """Returns the outputs of one sample that have other sizes.

    Raises:
        OutputMismatchError: they have other names, another order or other types; or other sizes,
            and they may not.
    """
    for name in reference.keys() - output.keys() if not sized_by_values else ():
        raise OutputMismatchError(f"the output '{name}' is missing")
    for name in output.keys() - reference.keys() if not sized_by_values else ():
        raise OutputMismatchError(f"the unoptimised model has no output '{name}'")
    if list(output) != list(reference) and output.keys() == reference.keys():
        raise OutputMismatchError("the outputs come in another order than the unoptimised model's")
    resized = set(reference.keys() ^ output.keys())
    for name in output.keys() & reference.keys():
        array, right = output[name], reference[name]
        if array.shape != right.shape:
            resized.add(name)
            if not sized_by_values:
                sized = array.ndim == right.ndim
                hint = "; if its size follows the values, bring --metric" if sized else ""
                raise OutputMismatchError(
                    f"the output '{name}' has the shape {list(array.shape)}, and the unoptimised "
                    f"model's has {list(right.shape)}{hint}"
                )
        is_text = array.dtype.kind == right.dtype.kind == "U"
        if array.dtype != right.dtype and not is_text:
            raise OutputMismatchError(
                f"the output '{name}' has the type {array.dtype}, and the unoptimised model's has "
                f"{right.dtype}"
            )
    return resized


def _not_comparable(name: str) -> Fidelity:
    return Fidelity(
        error=LOST,
        worst_error=LOST,
        worst_part=f"{name}: not comparable, its size differs",
        cosine=0.0,
        max_difference=0.0,
        agreement=None,
    )


def _compare_output(name: str, pairs: Sequence[_Pair | None], origins: Origins) -> list[Fidelity]:
    """Returns the same for each part of one output; None among the pairs lacks the output."""
    both = [pair for pair in pairs if pair is not None]
    references = [pair.reference for pair in both]
    if _are_classes(name, references, origins):
        return [_compare_classes(name, pairs, both)]
    numbers = [_finite_numbers(name, pair) for pair in both]
    cosine = min(_cosine(pair) for pair in numbers)
    difference = max(_gap(pair) for pair in numbers)
    fidelities = []
    for part in parts_of(name, references, origins):
        own = [_of_part(part, pair, origins) for pair in numbers]
        errors = _relative_errors(part, own)
        error, words = _with_worst(errors, max(errors)), part.words
        is_suspect = error > _SURELY_RIGHT or part.operator == "Sigmoid"
        if is_suspect and (lost := _lost(part, own)):
            error, words = max(error, LOST), lost
        fidelities.append(
            Fidelity(
                error=error,
                worst_error=max(*errors, error if error >= LOST else 0.0),
                worst_part=words,
                cosine=cosine,
                max_difference=difference,
                agreement=_agreement(name, both),
                errors={part.words: _by_sample(pairs, errors)},
            )
        )
    return fidelities


def _are_classes(name: str, references: Sequence[Array], origins: Origins) -> bool:
    """Returns whether an output holds names of something, which are right or wrong."""
    if references[0].dtype.kind not in "iufc":
        return True
    if references[0].dtype.kind in "fc":
        return False
    words = set(re.split(r"[^a-z]+", name.lower()))
    if words & _COUNT_WORDS:
        return False
    operators = {producer.operator for producer in origins.producers.get(output_of(name), ())}
    if operators & _OF_CLASSES or words & _CLASS_WORDS:
        return True
    values = np.unique(np.concatenate([np.unique(array) for array in references]))
    return len(values) <= _MOST_CLASSES and bool(
        (values >= 0).all() and (values < _LARGEST_CLASS).all()
    )


def _compare_classes(name: str, pairs: Sequence[_Pair | None], both: Sequence[_Pair]) -> Fidelity:
    """Returns the fidelity of an output of classes, booleans or texts.

    A class is right or wrong, and one wrong class makes no sample an outlier: one differing element
    of each sample counts in the mean alone.
    """
    differing = [int(np.count_nonzero(pair.reference != pair.output)) for pair in both]
    sizes = [max(1, pair.reference.size) for pair in both]
    shares = [count / size for count, size in zip(differing, sizes, strict=True)]
    outlier = max((count - 1) / size for count, size in zip(differing, sizes, strict=True))
    if both[0].reference.dtype.kind in "iu":
        gaps = [_gap(_Pair(p.reference.astype(float), p.output.astype(float))) for p in both]
    else:
        gaps = [float(count > 0) for count in differing]
    return Fidelity(
        error=_with_worst(shares, outlier),
        worst_error=max(shares),
        worst_part=name,
        cosine=1 - float(np.mean(shares)),
        max_difference=max(gaps),
        agreement=None,
        errors={name: _by_sample(pairs, shares)},
    )


def _gap(pair: _Pair) -> float:
    """Returns the largest absolute difference."""
    difference = np.abs(np.subtract(pair.output, pair.reference))
    return float(np.fmax.reduce(difference, axis=None, initial=0.0))


def _with_worst(errors: Sequence[float], outlier: float) -> float:
    """Returns the mean error, or the part of the worst sample's that counts if that is more."""
    return max(float(np.mean(errors)), outlier / WORST_SAMPLE_FACTOR)


def _by_sample(pairs: Sequence[_Pair | None], errors: Sequence[float]) -> tuple[float | None, ...]:
    """Returns three digits of the error on each sample; None in one that lacks the output."""
    remaining = iter(errors)
    return tuple(None if pair is None else float(f"{next(remaining):.3g}") for pair in pairs)


def _finite_numbers(name: str, pair: _Pair) -> _Pair:
    """Returns both arrays in double precision, with NaN where nothing is left to compare.

    Raises:
        OutputMismatchError: NaN and infinite values are not the same ones.
    """
    kind = np.complex128 if pair.reference.dtype.kind == "c" else np.float64
    r, o = (np.asarray(array, kind) for array in (pair.reference, pair.output))
    finite = np.asarray(np.isfinite(r), np.bool_)
    if not np.isfinite(o[finite]).all():
        raise OutputMismatchError(
            f"the output '{name}' has NaN or infinite values where the unoptimised model has "
            "numbers"
        )
    if not np.array_equal(r[~finite], o[~finite], equal_nan=True):
        raise OutputMismatchError(
            f"the output '{name}' lacks NaN or infinite values that the unoptimised model has"
        )
    return _only(finite, _Pair(r, o))


def _only(own: NDArray[np.bool_], pair: _Pair) -> _Pair:
    """Returns both arrays with NaN in all other places."""
    if own.all():
        return pair
    return _Pair(np.where(own, pair.reference, np.nan), np.where(own, pair.output, np.nan))


def _of_part(part: OutputPart, pair: _Pair, origins: Origins) -> _Pair:
    """Returns the elements of a part, with NaN where others lie among them."""
    chosen = _Pair(part.of(pair.reference), part.of(pair.output))
    own = elements_of(part, pair.reference, origins)
    return chosen if own is None else _only(own, chosen)


def _relative_errors(part: OutputPart, pairs: Sequence[_Pair]) -> list[float]:
    """Returns the relative L2 distance of a part in each sample.

    A reference counts as a tenth of the root mean square of all samples at least. Where the part is
    zero in all of them there is no scale, and a difference counts as it is.
    """
    is_score = part.operator == "Sigmoid"
    distances, norms, counts = [], [], []
    for pair in pairs:
        r, o = pair.reference, pair.output
        counted = ~np.isnan(r)
        if is_score:
            with np.errstate(invalid="ignore"):
                counted &= (np.abs(r) >= _ABSENT_SCORE) | (np.abs(o) >= _ABSENT_SCORE)
        r, o = r[counted], o[counted]
        distances.append(float(np.linalg.norm(np.subtract(o, r))))
        norms.append(float(np.linalg.norm(r)))
        counts.append(r.size)
    scale = math.hypot(*norms) / math.sqrt(max(1, sum(counts)))
    least = _SMALLEST_SHARE * scale if scale else 1.0
    if is_score:
        least = max(least, _LEAST_SCORE)
    return [
        distance / max(norm, least * math.sqrt(max(1, count)))
        for distance, norm, count in zip(distances, norms, counts, strict=True)
    ]


def _lost(part: OutputPart, pairs: Sequence[_Pair]) -> str:
    """Returns which elements vary in the reference and are the same everywhere in the answers.

    It is the part, or one of its columns; empty where nothing was lost.
    """
    if pairs[0].reference.dtype.kind == "c":
        return ""
    references, outputs = (
        [getattr(pair, side) for pair in pairs] for side in ("reference", "output")
    )
    right, given = _range(references, None), _range(outputs, None)
    size = max(float(np.fmax.reduce(np.abs(r), axis=None, initial=0.0)) for r in references)
    least = _VARIES * max(size, 1.0 if part.operator == "Sigmoid" else 0.0)
    if right >= least > 0 and given <= _LEFT * right:
        return f"{part.words}: the same everywhere"
    for axis in columns(references):
        right, given = _range(references, axis), _range(outputs, axis)
        lost = np.flatnonzero((right >= _COLUMN_VARIES * size) & (given <= _LEFT * right))
        values = sum(r.size // r.shape[axis] for r in references)
        if size and lost.size and values >= _FEWEST_IN_COLUMN:
            place = f"place {lost[0]}" if lost.size == 1 else f"{lost.size} places"
            return f"{part.words}: the same everywhere at {place} of axis {axis}"
    return ""


def _range(arrays: Sequence[Array], axis: int | None) -> NDArray[np.float64]:
    """Returns the largest less the smallest value of all samples, by place of an axis or of all."""
    over = None if axis is None else tuple(i for i in range(arrays[0].ndim) if i != axis)
    if not sum(array.size for array in arrays):
        return np.zeros(1)
    high, low = (
        reduce_.reduce(
            [reduce_.reduce(array, axis=over, initial=start) for array in arrays], axis=0
        )
        for reduce_, start in ((np.fmax, -np.inf), (np.fmin, np.inf))
    )
    return np.asarray(np.maximum(high - low, 0.0))


def _agreement(name: str, pairs: Sequence[_Pair]) -> float | None:
    """Returns the share of rows with the same arg-max; None where there is no choice that varies.

    Where the reference chooses one class for all samples, every constant would agree.
    """
    rows = [pair for pair in pairs if _holds_classes(name, pair.reference)]
    choices = [_choices(pair) for pair in rows]
    right = np.concatenate([r for r, _ in choices]) if choices else np.empty(0)
    if len(np.unique(right)) < 2 and len(right) != 1:
        return None
    return float(np.mean([np.mean(r == o) for r, o in choices if r.size]))


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


def _choices(pair: _Pair) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Returns the arg-max of the rows in both arrays, of rows whose largest number is finite."""
    # NaN is the largest number to numpy, and the same place of NaN is no agreement
    rows = np.isfinite(np.atleast_1d(pair.reference.max(-1)))
    right, given = (np.atleast_1d(a.argmax(-1))[rows] for a in (pair.reference, pair.output))
    return right, given


def _cosine(pair: _Pair) -> float:
    counted = ~np.isnan(pair.reference)
    r, o = (np.asarray(array[counted], complex) for array in (pair.reference, pair.output))
    sizes = float(np.linalg.norm(r)) * float(np.linalg.norm(o))
    if sizes == 0:
        return 1.0 if not r.any() and not o.any() else 0.0
    return float(np.real(np.vdot(r, o))) / sizes


def largest_again(error: float, coverage: Coverage | None) -> float:
    """Returns the largest error that the same file may show when it is measured again.

    Args:
        error: What was measured first.
        coverage: How much of it is the model's own change from run to run; None if not known.
    """
    repeat_error = 0.0 if coverage is None else coverage.repeat_error
    return max(_AGAIN * error, error + _ROUNDING) + 2 * repeat_error


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
        share=finite / numbers if numbers else 0.0,
        constant_outputs=tuple(
            name
            for name in _names(references)
            if not name.endswith(FORMS) and _is_constant(_arrays_of(references, name))
        ),
        repeat_error=repeat_error,
        uncompared_outputs=uncompared(references),
    )


def uncompared(references: Sequence[Outputs]) -> tuple[str, ...]:
    """Returns the outputs in which no answers can be compared, in any sample."""
    compared: dict[str, bool] = {}
    for name in _names(references):
        has_numbers = any(_finite(array).any() for array in _arrays_of(references, name))
        own = output_of(name)
        compared[own] = compared.get(own, False) or (has_numbers and not name.endswith(FORMS))
    return tuple(name for name, is_compared in compared.items() if not is_compared)


def _names(references: Sequence[Outputs]) -> list[str]:
    """Returns the names of all arrays; a sequence may be longer in one sample than in another."""
    return list(dict.fromkeys(name for outputs in references for name in outputs))


def _arrays_of(references: Sequence[Outputs], name: str) -> list[Array]:
    """Returns the arrays of one output; a sequence may lack some of its elements."""
    return [outputs[name] for outputs in references if name in outputs]


def _finite(array: Array) -> NDArray[np.bool_]:
    """Returns where the array has values that can be compared."""
    if array.dtype.kind not in "fc":
        return np.ones(array.shape, np.bool_)
    finite: NDArray[np.bool_] = np.isfinite(array)
    return finite


def _is_constant(arrays: Sequence[Array]) -> bool:
    """Returns whether an output is empty, or the same for all of several samples."""
    first, *others = arrays
    if not any(array.size for array in arrays):
        return True
    equal_nan = first.dtype.kind in "fc"
    return bool(others) and all(np.array_equal(first, a, equal_nan=equal_nan) for a in others)
