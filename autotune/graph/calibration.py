"""The ranges of activations, from the calibration samples.

ONNX Runtime's calibrators look at the tensors. One histogram of absolute values serves all methods
but the extremes.
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
from autotune.graph.eight_bit_kernels import without_kernel
from autotune.graph.silence import silent_tools

Array = NDArray[Any]

Ranges = dict[str, list[Any]]
"""The type, the lowest and the highest value of each tensor, by its name."""

_MINMAX, _HISTOGRAM = "minmax", "histogram"
_PERCENTILE, _LEAST_SQUARES = "percentile", "least_squares"
# Histograms of more samples take minutes.
_HISTOGRAM_SAMPLES = 16
# Shares of the largest absolute value that are tried as the limit.
_LIMITS = np.linspace(0.02, 1.0, 99)
_STEPS = 255


def source_of(method: str) -> str:
    """Returns what a value of ``calibration`` is taken from; one source serves several values."""
    return _MINMAX if method == _MINMAX else _HISTOGRAM


def quantisable_types() -> list[str]:
    """Returns all types of nodes that ONNX Runtime computes with activations in eight bits."""
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    types = {*QLinearOpsRegistry, *QDQRegistry}
    return sorted(types - without_kernel(types))


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
        source: What :func:`source_of` returns; all values of ``calibration`` that it serves are
            returned.

    Returns:
        The ranges for each value of ``calibration``. That of a tensor with values that are not
        finite is not finite either.
    """
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import create_calibrator

    is_minmax = source == _MINMAX
    seen = _Seen()
    with silent_tools(), seen.noted(), tempfile.TemporaryDirectory() as folder:
        calibrator = create_calibrator(
            path,
            quantisable_types(),
            augmented_model_path=str(Path(folder) / "augmented.onnx"),
            calibrate_method=(
                CalibrationMethod.MinMax if is_minmax else CalibrationMethod.Percentile
            ),
        )
        for group in _groups(samples, source):
            calibrator.collect_data(CalibrationReader(group))
        if is_minmax:
            return {_MINMAX: _as_records(calibrator.compute_data())}
        ranges = {_PERCENTILE: _as_records(calibrator.compute_data())}  # ONNX Runtime's own: 99.999
        histograms = calibrator.collector.get_histogram_dict()
    ranges[_LEAST_SQUARES] = {
        name: _least_squares(counts, edges, low, high, seen.zeros.get(name, 0))
        for name, (counts, edges, low, high) in histograms.items()
    }
    return {method: _marked(seen.not_finite, own) for method, own in ranges.items()}


class _Seen:
    """What a histogram does not say of its tensors.

    Attributes:
        not_finite: Names of the tensors with values that are not finite.
    """

    def __init__(self) -> None:
        self.not_finite: set[str] = set()
        self.zeros: dict[str, int] = {}

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Lets the tools make histograms of tensors with infinite values, and of changing shapes.

        A mask adds minus infinity to what attention must not see, and the shape of a tensor may
        depend on the values of the inputs. The tools fail with both.
        """
        from onnxruntime.quantization.calibrate import HistogramCollector

        original = HistogramCollector.collect

        def collect(collector: Any, arrays_by_name: Mapping[str, Sequence[Array]]) -> None:
            # one tensor after the other: all of them, copied, would take as much memory again
            for name, arrays in arrays_by_name.items():
                values = np.concatenate([np.ravel(array) for array in arrays])
                finite = values[np.isfinite(values)]
                if len(finite) < len(values):
                    self.not_finite.add(name)
                self.zeros[name] = self.zeros.get(name, 0) + int((finite == 0).sum())
                kept = finite if len(finite) else np.zeros(1, values.dtype)
                original(collector, {name: kept})

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
    if source == _MINMAX:
        return groups
    groups = groups[:_HISTOGRAM_SAMPLES]
    shapes = {tuple((name, array.shape) for name, array in group[0].items()) for group in groups}
    return groups if len(shapes) > 1 else [[feed for group in groups for feed in group]]


def _as_records(tensors: Any) -> Ranges:
    """Returns what a calibrator computed."""
    return {name: _record(*tensors[name].range_value) for name in tensors}


def _record(low: Any, high: Any) -> list[Any]:
    low, high = np.asarray(low), np.asarray(high)
    return [str(low.dtype), low.tolist(), high.tolist()]


def _least_squares(counts: Array, edges: Array, lowest: Any, highest: Any, zeros: int) -> list[Any]:
    """Returns the range that rounds the values of a histogram with the least squared error.

    Values within the range lose a twelfth of the squared step on average, values beyond it what
    they lie beyond. Exact zeros lose nothing: every range holds zero.
    """
    if lowest == highest:  # one value in all samples, as with the other methods
        return _record(lowest, highest)
    low, high = float(min(lowest, 0)), float(max(highest, 0))
    inexact = counts.astype(np.float64)
    inexact[0] = max(inexact[0] - zeros, 0.0)
    values = (edges[:-1].astype(np.float64) + edges[1:]) / 2
    limits = max(-low, high) * _LIMITS
    steps = (np.minimum(high, limits) - np.maximum(low, -limits)) / _STEPS
    beyond = np.maximum(values - limits[:, None], 0.0)
    within = (beyond == 0) @ inexact
    errors = (beyond**2) @ inexact + within * steps**2 / 12
    limit = limits[np.argmin(errors)] if inexact.any() else limits[-1]
    kind = np.asarray(highest).dtype
    return _record(
        np.asarray(max(low, -limit), dtype=kind), np.asarray(min(high, limit), dtype=kind)
    )
