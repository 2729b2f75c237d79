"""The ranges of activations, from the calibration samples.

ONNX Runtime's calibrators look at the tensors. One histogram of absolute values serves all
percentiles and the least squares; entropy has bins of its own.
"""

import contextlib
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from autotune.facts.feeds import Feed
from autotune.graph.quantisation import quantisable_types, silent_tools

Ranges = dict[str, list[Any]]
"""The type, the lowest and the highest value of each tensor, by its name."""

_HISTOGRAM = "histogram"
_PERCENTILES: Mapping[str, float] = {
    "percentile_99.9": 99.9,
    "percentile_99.99": 99.99,
    "percentile": 99.999,
}
_LEAST_SQUARES = "least_squares"
SOURCES: Mapping[str, str] = {
    "minmax": "minmax",
    "entropy": "entropy",
    **dict.fromkeys((*_PERCENTILES, _LEAST_SQUARES), _HISTOGRAM),
}
"""What each value of ``calibration`` is taken from; values of one source are measured together."""

# By the names of ONNX Runtime's enumeration.
_METHODS = {"minmax": "MinMax", "entropy": "Entropy", _HISTOGRAM: "Percentile"}
# Histograms of more samples take minutes.
_HISTOGRAM_SAMPLES = 16
# Shares of the largest absolute value that are tried as the limit.
_LIMITS = np.linspace(0.02, 1.0, 99)
_STEPS = 255


class CalibrationReader:
    """Calibration samples as ONNX Runtime's quantisation reads them."""

    def __init__(self, samples: Sequence[Feed]) -> None:
        self._next = iter(samples)

    def get_next(self) -> dict[str, Any] | None:
        """Returns the next sample, or None at the end."""
        feed = next(self._next, None)
        return None if feed is None else dict(feed)


def activation_ranges(path: Path, samples: Sequence[Feed], source: str) -> dict[str, Ranges]:
    """Returns the ranges of all tensors that can be quantised, by the values of ``calibration``.

    Args:
        path: The model; a file of the same name is written beside it for a while.
        samples: Calibration samples.
        source: One of :data:`SOURCES`; the values of ``calibration`` that it serves are returned.

    Returns:
        The ranges for each value of ``calibration``. That of a tensor with values that are not
        finite is not finite either.
    """
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import create_calibrator

    if source != "minmax":
        samples = samples[:_HISTOGRAM_SAMPLES]
    not_finite: set[str] = set()
    with (
        silent_tools(),
        _finite_values(not_finite),
        tempfile.TemporaryDirectory() as folder,
    ):
        calibrator = create_calibrator(
            path,
            quantisable_types(),
            augmented_model_path=str(Path(folder) / "augmented.onnx"),
            calibrate_method=CalibrationMethod[_METHODS[source]],
        )
        for group in _groups(samples, source):
            calibrator.collect_data(CalibrationReader(group))
        if source != _HISTOGRAM:
            return {source: _marked(not_finite, _as_records(calibrator.compute_data()))}
        ranges: dict[str, Ranges] = {}
        for name, percentile in _PERCENTILES.items():
            calibrator.collector.percentile = percentile
            ranges[name] = _as_records(calibrator.compute_data())
        histograms = calibrator.collector.get_histogram_dict()
    ranges[_LEAST_SQUARES] = {name: _least_squares(*item) for name, item in histograms.items()}
    return {method: _marked(not_finite, own) for method, own in ranges.items()}


@contextlib.contextmanager
def _finite_values(not_finite: set[str]) -> Iterator[None]:
    """Lets the tools make histograms of tensors with infinite values, and of changing shapes.

    A mask adds minus infinity to what attention must not see, and the shape of a tensor may depend
    on the values of the inputs. The tools fail with both.

    Args:
        not_finite: The names of tensors with values that are not finite are added to it.
    """
    from onnxruntime.quantization.calibrate import HistogramCollector

    original = HistogramCollector.collect

    def collect(self: Any, arrays_by_name: Mapping[str, Sequence[NDArray[Any]]]) -> None:
        # one tensor after the other: all of them, copied, would take as much memory again
        for name, arrays in arrays_by_name.items():
            values = np.concatenate([np.ravel(array) for array in arrays])
            finite = values[np.isfinite(values)]
            if len(finite) < len(values):
                not_finite.add(name)
            original(self, {name: finite if len(finite) else np.zeros(1, values.dtype)})

    with patch.object(HistogramCollector, "collect", collect):
        yield


def _marked(not_finite: Collection[str], ranges: Ranges) -> Ranges:
    """Returns the ranges, from minus infinity on for tensors with values that are not finite."""
    endless = _record(np.float32(-np.inf), np.float32(np.inf))
    return {name: endless if name in not_finite else item for name, item in ranges.items()}


def _groups(samples: Sequence[Feed], source: str) -> list[list[Feed]]:
    """Returns the samples that a calibrator gets together.

    One at a time needs the least memory, and is the only way for samples that differ in shape. But
    the first group gives a histogram its bins: a tensor that is all but constant in one sample, and
    not in the next, ends in "Too many bins for data range", or in bins without number.
    """
    groups = [[feed] for feed in samples]
    if source == "minmax":
        return groups
    shapes = {tuple((name, array.shape) for name, array in group[0].items()) for group in groups}
    return groups if len(shapes) > 1 else [[feed for group in groups for feed in group]]


def _as_records(tensors: Any) -> Ranges:
    """Returns what a calibrator computed."""
    return {name: _record(*tensors[name].range_value) for name in tensors}


def _record(low: Any, high: Any) -> list[Any]:
    low, high = np.asarray(low), np.asarray(high)
    return [str(low.dtype), low.tolist(), high.tolist()]


def _least_squares(
    counts: NDArray[Any], edges: NDArray[Any], lowest: Any, highest: Any
) -> list[Any]:
    """Returns the range that rounds the values of a histogram with the least squared error.

    Values within the range lose a twelfth of the squared step on average, values beyond it what
    they lie beyond.

    Args:
        counts: How many absolute values are in each bin.
        edges: The edges of the bins.
        lowest: The lowest value.
        highest: The highest value.
    """
    low, high = float(min(lowest, 0)), float(max(highest, 0))
    values = (edges[:-1].astype(np.float64) + edges[1:]) / 2
    limits = max(-low, high) * _LIMITS
    steps = (np.minimum(high, limits) - np.maximum(low, -limits)) / _STEPS
    beyond = np.maximum(values - limits[:, None], 0.0)
    within = (beyond == 0) @ counts
    errors = (beyond**2) @ counts + within * steps**2 / 12
    limit = limits[np.argmin(errors)]
    kind = np.asarray(highest).dtype
    return _record(
        np.asarray(max(low, -limit), dtype=kind), np.asarray(min(high, limit), dtype=kind)
    )
