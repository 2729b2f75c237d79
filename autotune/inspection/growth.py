"""How the memory of a session grows over inputs of several shapes.

ONNX Runtime plans memory for each new shape and its arena grows to the largest that was needed, in
steps of powers of two; neither is released.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from autotune.deploy.records import MeasuredAmount, Several, Text
from autotune.deploy.session import SessionConfig
from autotune.errors import CannotMeasureError
from autotune.facts.feeds import Feed
from autotune.facts.model import Model
from autotune.facts.workload import Workload
from autotune.inspection.asking import ask
from autotune.inspection.profile import Profile

_CHILD = "autotune.inspection.growth_child"
# Sizes of the dimension that varies, over that of the samples; in an order in which they come.
_FACTORS = (2, 1, 4, 3, 6, 5)
_FEWEST_SHAPES = 3
# What exporters write where a dimension has no name.
_NAMELESS = (None, "", "?")
# The arena takes up to twice what the activations need.
_LEAST_SHARE = 8
_MOST_MS = 3000.0


@dataclass(frozen=True, kw_only=True)
class Growth:
    """The memory of a session over inputs of several shapes.

    Attributes:
        shapes: The shapes of the varying inputs, in words, in the order in which they were run.
        held_mib: Memory that the process held after the runs of each shape, above what it held
            before the session was created.
        peak_mib: The most that it held in all of them, above the same.
        again_mib: Memory that it held after all shapes were run once more.
    """

    shapes: Several[Text]
    held_mib: Several[MeasuredAmount]
    peak_mib: MeasuredAmount
    again_mib: MeasuredAmount


def shape_feeds(model: Model, workload: Workload, profile: Profile) -> tuple[Feed, ...]:
    """Returns inputs of several shapes: the samples, or the first of them along one dimension.

    Args:
        model: The model; one whose shapes are fixed has none.
        workload: Its samples. Where they have several shapes, those are taken.
        profile: Memory and time of a run, by which sizes are left out that would take too much.
    """
    if not model.is_dynamic:
        return ()
    by_shape = {tuple((n, a.shape) for n, a in feed.items()): feed for feed in workload.feeds}
    if len(by_shape) >= _FEWEST_SHAPES:
        return tuple(by_shape.values())[: len(_FACTORS)]
    first = workload.feeds[0]
    axes = varying_axes(model, first)
    feeds = []
    for factor in _FACTORS:
        repeated = {
            name: np.repeat(array, factor, axis=axes[name]) if name in axes else array
            for name, array in first.items()
        }
        if factor * (profile.arena_mib or 0) < _free_mib() / _LEAST_SHARE:
            feeds.append(repeated)
    # the time grows with the size at least; each session runs each shape a few times
    while feeds and len(feeds) ** 2 * profile.run_ms > _MOST_MS:
        feeds.pop()
    return tuple(feeds)


def varying_axes(model: Model, feed: Feed) -> dict[str, int]:
    """Returns the first open dimension and all others that are its equal: axes by input.

    Others are equal if they have the same name or, without a name, the same size in `feed`.
    """
    open_axes = [
        (tensor.name, axis, size)
        for tensor in model.inputs
        for axis, size in enumerate(tensor.shape)
        if not isinstance(size, int)
    ]
    first, first_axis, symbol = open_axes[0]
    axes: dict[str, int] = {}
    for name, axis, size in open_axes:
        same_size = feed[name].shape[axis] == feed[first].shape[first_axis]
        if size == symbol and (size not in _NAMELESS or same_size):
            axes.setdefault(name, axis)
    return axes


def _free_mib() -> int:
    return int(psutil.virtual_memory().available) >> 20


def measure_growth(path: Path, session: SessionConfig, feeds: Sequence[Feed]) -> Growth | None:
    """Returns the memory of a session over these inputs, from a process of its own.

    Args:
        feeds: One input of each shape. Those that the model refuses are left out.

    Returns:
        None where the model runs with fewer than three of them, or the process ends before.
    """
    request = {"do": "growth", "session": session.to_json()}
    try:
        growth = ask(_CHILD, request, path, feeds, Growth, limit_s=300.0)
    except CannotMeasureError:
        return None
    return growth if len(growth.shapes) >= _FEWEST_SHAPES else None
