"""The ranges of activations, from the calibration samples, by ONNX Runtime's calibrators."""

import contextlib
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from autotune.facts.feeds import Feed
from autotune.graph.silence import silent_tools

Array = NDArray[Any]

Ranges = dict[str, list[Any]]
"""The type, the lowest and the highest value of each tensor, by its name."""

_MINMAX = "minmax"
# ONNX Runtime's tool wraps these types too, and the CPU provider has no kernel of eight bits for
# them: they would be dequantised, computed in float and quantised again. So it is from ONNX Runtime
# 1.28 to 1.32, by the optimised graph of one wrapped node of each type.
_WITHOUT_KERNEL = frozenset(
    {
        *("BatchNormalization", "InstanceNormalization", "LayerNormalization"),
        *("EmbedLayerNormalization", "ConvTranspose", "CumSum", "Pad", "TopK"),
    }
)
# Histograms of more samples take minutes.
_HISTOGRAM_SAMPLES = 16


def quantisable_types() -> list[str]:
    """Returns all types of nodes that ONNX Runtime computes with activations in eight bits."""
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    return sorted({*QLinearOpsRegistry, *QDQRegistry} - _WITHOUT_KERNEL)


class CalibrationReader:
    """Calibration samples as ONNX Runtime's quantisation reads them."""

    def __init__(self, samples: Sequence[Feed]) -> None:
        self._next = iter(samples)

    def get_next(self) -> dict[str, Any] | None:
        """Returns the next sample, or None at the end."""
        feed = next(self._next, None)
        return None if feed is None else dict(feed)


def activation_ranges(path: Path, samples: Sequence[Feed], method: str) -> Ranges:
    """Returns the ranges of all tensors that can be quantised.

    That of a tensor with values that are not finite is not finite either.

    Args:
        path: The model; a file of the same name is written beside it for a while.
        method: A value of ``calibration``: the extremes, or ONNX Runtime's percentile of 99.999.
    """
    from onnxruntime.quantization import CalibrationMethod
    from onnxruntime.quantization.calibrate import create_calibrator

    is_minmax = method == _MINMAX
    not_finite: set[str] = set()
    narrow: Ranges = {}
    with silent_tools(), _any_values(not_finite, narrow), tempfile.TemporaryDirectory() as folder:
        calibrator = create_calibrator(
            path,
            quantisable_types(),
            augmented_model_path=str(Path(folder) / "augmented.onnx"),
            calibrate_method=(
                CalibrationMethod.MinMax if is_minmax else CalibrationMethod.Percentile
            ),
        )
        for group in _groups(samples, method):
            calibrator.collect_data(CalibrationReader(group))
        ranges = _as_records(calibrator.compute_data()) | narrow
    return _marked(not_finite, ranges)


@contextlib.contextmanager
def _any_values(not_finite: set[str], narrow: Ranges) -> Iterator[None]:
    """Lets the tools make histograms of any tensors.

    They fail with infinite values, such as a mask adds to what attention must not see, with shapes
    that depend on the values of the inputs, and with values that differ in their last digits alone.

    Args:
        not_finite: Names of tensors with values that are not finite are added.
        narrow: The extremes of tensors that no histogram holds are added.
    """
    from onnxruntime.quantization.calibrate import HistogramCollector

    original = HistogramCollector.collect

    def collect(collector: Any, arrays_by_name: Mapping[str, Sequence[Array]]) -> None:
        # one tensor after the other: all of them, copied, would take as much memory again
        for name, arrays in arrays_by_name.items():
            values = np.concatenate([np.ravel(array) for array in arrays])
            finite = values[np.isfinite(values)]
            if len(finite) < len(values):
                not_finite.add(name)
            kept = finite if len(finite) else np.zeros(1, values.dtype)
            try:
                original(collector, {name: kept})
            except ValueError:  # there are fewer numbers between its extremes than bins
                _, low, high = narrow.get(name, _record(kept[0], kept[0]))
                narrow[name] = _record(min(low, kept.min()), max(high, kept.max()))

    with patch.object(HistogramCollector, "collect", collect):
        yield


def _marked(not_finite: Collection[str], ranges: Ranges) -> Ranges:
    """Returns the ranges, from minus infinity on for tensors with values that are not finite."""
    endless = _record(np.float32(-np.inf), np.float32(np.inf))
    return {name: endless if name in not_finite else item for name, item in ranges.items()}


def _groups(samples: Sequence[Feed], method: str) -> list[list[Feed]]:
    """Returns the samples that a calibrator gets together.

    One at a time needs the least memory, and is the only way for samples that differ in shape. But
    the first group gives a histogram its bins: a tensor that is all but constant in one sample, and
    not in the next, ends in "Too many bins for data range", or in bins without number.
    """
    groups = [[feed] for feed in samples]
    if method == _MINMAX:
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
