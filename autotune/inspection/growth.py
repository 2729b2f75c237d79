"""How the memory of a session grows over inputs of several shapes.

ONNX Runtime plans memory for each new shape and its arena grows to the largest that was needed, in
steps of powers of two; neither is released.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.deploy.session import SessionConfig
from autotune.facts.feeds import Feed
from autotune.facts.model import Model
from autotune.facts.workload import Workload
from autotune.inspection.profile import Profile
from autotune.measure.child_session import child_session
from autotune.process import memory
from autotune.process.child import ChildFailure

DEFAULT = "the default"

_SESSIONS = {
    DEFAULT: SessionConfig(),
    "enable_mem_pattern=false": SessionConfig(options={"enable_mem_pattern": False}),
    "arena=off": SessionConfig(options={"enable_cpu_mem_arena": False}),
}
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
    """The memory that a session adds to its process, over inputs of several shapes.

    Attributes:
        shapes: How many there were.
        first_mib: What it held after a run of the first of them.
        held_mib: What it held after several runs of all of them.
        peak_mib: The most that it held in these runs.
    """

    shapes: int
    first_mib: float
    held_mib: float
    peak_mib: float


def shape_feeds(model: Model, workload: Workload, profile: Profile) -> tuple[Feed, ...]:
    """Returns inputs of several shapes: the samples, or the first of them along one dimension.

    There are none where the shapes are fixed, or where fewer than three take neither too much
    memory nor too much time by the profile of a run.
    """
    if not model.is_dynamic:
        return ()
    by_shape = {tuple((n, a.shape) for n, a in feed.items()): feed for feed in workload.feeds}
    if len(by_shape) >= _FEWEST_SHAPES:
        return tuple(by_shape.values())[: len(_FACTORS)]
    first = workload.feeds[0]
    axes = varying_axes(model, first)
    free_mib = memory.free_mib()
    feeds = []
    for factor in _FACTORS:
        repeated = {
            name: np.repeat(array, factor, axis=axes[name]) if name in axes else array
            for name, array in first.items()
        }
        if factor * (profile.arena_mib or 0) < free_mib / _LEAST_SHARE:
            feeds.append(repeated)
    # the time grows with the size at least; each session runs each shape a few times
    while feeds and len(feeds) ** 2 * profile.run_ms > _MOST_MS:
        feeds.pop()
    return tuple(feeds) if len(feeds) >= _FEWEST_SHAPES else ()


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


def measure_growth(path: Path, feeds: Sequence[Feed]) -> dict[str, Growth]:
    """Returns the memory of the default and of both remedies, as ``--fix`` names them.

    Args:
        feeds: One input of each shape. Nothing is returned where the model refuses one of them.
    """
    if not feeds:
        return {}
    try:
        return {name: _over_shapes(path, config, feeds) for name, config in _SESSIONS.items()}
    except ChildFailure:
        return {}


def _over_shapes(path: Path, config: SessionConfig, feeds: Sequence[Feed]) -> Growth:
    """Returns the memory of a session in a process of its own."""
    workload = Workload(feeds=tuple(feeds), source="generated", notes=())
    with child_session(path, config, workload) as session:
        base_mib = session.opened.base.resident_mib
        session.outputs(feeds[:1])
        first, every = session.held(), session.first_runs().after
    return Growth(
        shapes=len(feeds),
        first_mib=max(0.0, first.resident_mib - base_mib),
        held_mib=max(0.0, every.resident_mib - base_mib),
        peak_mib=max(0.0, every.peak_mib - base_mib),
    )
