"""Metrics by name: judges of outputs for common tasks, with the interface of the user's own.

Each judges the first output of the model. The right answers are the array ``labels`` among a
sample's inputs, where there is one, and the unoptimised model's output otherwise. A metric is
better the higher it is.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.errors import RequestError
from autotune.facts.feeds import Feed
from autotune.facts.workload import LABELS
from autotune.measure.answers import FORMS, Metric, Outputs

Array = NDArray[np.generic]


def top1(
    outputs: Sequence[Outputs], references: Sequence[Outputs], inputs: Sequence[Feed]
) -> float:
    """Returns the share of rows whose largest score has the right class.

    Labels are numbers of classes.
    """
    right = []
    for chosen, truth in _pairs("top1", outputs, references, inputs):
        if chosen.size != truth.size:
            raise RequestError(
                f"--metric top1: {truth.size} labels for a sample with {chosen.size} rows of scores"
            )
        right.append(float(np.mean(chosen.ravel() == truth.ravel())))
    return float(np.mean(right))


def cosine(
    outputs: Sequence[Outputs], references: Sequence[Outputs], inputs: Sequence[Feed]
) -> float:
    """Returns the mean cosine similarity with the unoptimised model's output, as of embeddings.

    It takes no labels. The smallest similarity is in every result, whatever the metric.
    """
    del inputs
    similarities = []
    for output, reference in zip(outputs, references, strict=True):
        both = [_first("cosine", one) for one in (output, reference)]
        if any(array.dtype.kind not in "fiub" for array in both):
            raise RequestError(f"--metric cosine: the first output holds {both[1].dtype}")
        a, b = (np.asarray(array, np.float64).ravel() for array in both)
        if a.size != b.size:
            raise RequestError("--metric cosine: an embedding has another size")
        counted = np.isfinite(b)
        if not counted.any() or not np.isfinite(a[counted]).all():
            raise RequestError("--metric cosine: an embedding has no finite numbers")
        a, b = a[counted], b[counted]
        sizes = float(np.linalg.norm(a)) * float(np.linalg.norm(b))
        similarities.append(float(a @ b) / sizes if sizes else float(not a.any() and not b.any()))
    return float(np.mean(similarities))


METRICS: Mapping[str, Metric] = {"top1": top1, "cosine": cosine}
"""The metrics that ``--metric`` knows by name."""

WITHOUT_LABELS = "--metric top1 has no labels: compared with the model's own decisions"
"""What a study says of top1 where the user gave no labels."""


def _pairs(
    name: str,
    outputs: Sequence[Outputs],
    references: Sequence[Outputs],
    inputs: Sequence[Feed],
) -> list[tuple[Array, Array]]:
    """Returns the classes in the first output of each sample, and the right ones.

    Args:
        inputs: The samples, with their labels where there are some.

    Raises:
        RequestError: the labels are no answers to such an output.
    """
    pairs = []
    for output, reference, feed in zip(outputs, references, inputs, strict=True):
        first = _first(name, output)
        if LABELS not in feed:
            pairs.append((_classes(first), _classes(_first(name, reference))))
            continue
        truth = np.asarray(feed[LABELS])
        is_text = truth.dtype.kind in "SU"
        if truth.dtype.kind not in "SUiub" or is_text != (first.dtype.kind in "SU"):
            raise RequestError(
                f"--metric {name}: the labels hold {truth.dtype}, and the first output "
                f"{first.dtype}; labels are texts for an output of texts, and whole numbers for "
                "any other"
            )
        pairs.append((_classes(first), _classes(truth)))
    return pairs


def _first(name: str, output: Outputs) -> Array:
    """Returns the first array of answers; how long a sequence is, and a map's keys, are none."""
    first = next((array for key, array in output.items() if not key.endswith(FORMS)), None)
    if first is None:
        raise RequestError(f"--metric {name}: the model has no output with numbers")
    return first


def _classes(scores: Array) -> Array:
    """Returns the class of each row; whole numbers are classes already.

    Raises:
        RequestError: a row has NaN, which numpy takes for the largest score.
    """
    if scores.dtype.kind == "f" and np.isnan(scores).any():
        raise RequestError("--metric top1: the scores hold NaN")
    return scores.argmax(-1) if scores.dtype.kind == "f" and scores.ndim else scores
