"""How far the outputs of two models are apart."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from autotune.facts.feeds import Feed
from autotune.facts.output_parts import UNKNOWN, parts_of


def open_exactly(model: str | bytes) -> onnxruntime.InferenceSession:
    """Returns a session on the file or the serialised model that computes it as it stands."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model, settings, providers=["CPUExecutionProvider"], enable_fallback=0
    )


def exact_outputs(path: Path, samples: Sequence[Feed]) -> list[list[Any]]:
    """Returns the outputs of the unoptimised model for each sample."""
    session = open_exactly(str(path))
    return [session.run(None, dict(feed)) for feed in samples]


def largest_distance(
    expected: Sequence[Sequence[Any]], path: Path, samples: Sequence[Feed]
) -> float:
    """Returns the largest distance of an output; infinite if the model does not run.

    It is infinite as well where no sample gives an output that can be compared.

    Args:
        expected: The outputs for each sample, from :func:`exact_outputs`.
    """
    try:
        actual = exact_outputs(path, samples)
    except Exception:  # noqa: BLE001  # some mixtures of precisions are no valid model
        return np.inf
    distances = list(map(output_distance, expected, actual))
    return max((d for d in distances if d is not None), default=np.inf)


def output_distance(expected: Sequence[Any], actual: Sequence[Any]) -> float | None:
    """Returns the largest distance of an output of one run: of floats the relative L2 distance.

    Columns of another scale count apart, as where answers are judged: the scores of a detector
    beside its boxes. Of other types it is the share of elements that differ. NaN and the same
    infinity count as equal, and an output of another shape is as far off as one without any
    relation (1). None where there is nothing to compare, because no output has an element.
    """
    pairs = list(zip(_arrays(expected), _arrays(actual), strict=False))
    if len(list(_arrays(expected))) != len(list(_arrays(actual))):
        return np.inf
    return max((_distance(x, y) for x, y in pairs if x.size or y.size), default=None)


def _arrays(output: Any) -> Iterator[NDArray[Any]]:
    """Yields the arrays of outputs, those in sequences and maps too."""
    if isinstance(output, Mapping):
        output = [item for pair in sorted(output.items()) for item in pair]
    if isinstance(output, Sequence) and not isinstance(output, str):
        for item in output:
            yield from _arrays(item)
    elif output is not None:
        yield np.asarray(output)


def _distance(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    if expected.dtype != actual.dtype:
        return np.inf
    if expected.shape != actual.shape:
        return 1.0
    if expected.dtype.kind != "f":
        return float(np.mean(expected != actual))
    endless = ~np.isfinite(expected)
    if not np.array_equal(endless, ~np.isfinite(actual)) or not np.array_equal(
        expected[endless], actual[endless], equal_nan=True
    ):
        return np.inf
    parts = parts_of("", [expected], UNKNOWN)
    return max(_relative_distance(part.of(expected), part.of(actual)) for part in parts)


def _relative_distance(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    finite = np.isfinite(expected)
    values = expected[finite].astype(np.float64)  # the norm of large halves is none
    size = float(np.linalg.norm(values))
    gap = float(np.linalg.norm(values - actual[finite]))
    return gap / size if size else float(gap > 0)
