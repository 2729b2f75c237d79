"""Inputs of several shapes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from small_inspections import PROFILE
from small_spaces import model

from autotune.facts.generated import generate
from autotune.facts.model import describe
from autotune.facts.model_facts import Tensor
from autotune.facts.sample_models import transformer
from autotune.facts.workload import Workload
from autotune.inspection.growth import DEFAULT, measure_growth, shape_feeds, varying_axes


def _inputs(**shapes: tuple[int | str | None, ...]) -> tuple[Tensor, ...]:
    return tuple(Tensor(name=n, dtype="float32", shape=shape) for n, shape in shapes.items())


def test_one_shape_is_repeated_along_the_open_axis() -> None:
    """Six sizes, the values those of the first sample."""
    described = model(inputs=_inputs(x=("batch", 4)))
    feeds = shape_feeds(described, generate(described, {"x": (2, 4)}), PROFILE)
    assert [feed["x"].shape for feed in feeds] == [(4, 4), (2, 4), (8, 4), (6, 4), (12, 4), (10, 4)]


def test_samples_of_several_shapes_are_taken_as_they_are() -> None:
    """The user's own shapes are better than invented ones."""
    described = model(inputs=_inputs(x=("batch", 4)))
    feeds = tuple({"x": np.zeros((size, 4), np.float32)} for size in (3, 5, 3, 9))
    workload = Workload(feeds=feeds, source="user", notes=())
    assert [feed["x"].shape[0] for feed in shape_feeds(described, workload, PROFILE)] == [3, 5, 9]


def test_fixed_shapes_have_none() -> None:
    described = model(inputs=_inputs(x=(2, 4)))
    assert shape_feeds(described, generate(described, {}), PROFILE) == ()


def test_sizes_that_take_too_much_are_left_out() -> None:
    """A terabyte of arena leaves no size; a run of half a second leaves two, which are too few."""
    described = model(inputs=_inputs(x=("batch", 4)))
    workload = generate(described, {})
    assert shape_feeds(described, workload, replace(PROFILE, arena_mib=1 << 20)) == ()
    assert shape_feeds(described, workload, replace(PROFILE, run_ms=500)) == ()


@pytest.mark.process
@pytest.mark.slow
def test_memory_is_measured_over_shapes(tmp_path: Path) -> None:
    """Of the default and of both remedies; a shape that the model refuses leaves nothing."""
    path = tmp_path / "transformer.onnx"
    onnx.save(transformer(width=32, heads=2, layers=1, words=50), path)
    described = describe(path)
    feeds = shape_feeds(described, generate(described, {}), PROFILE)
    growth = measure_growth(path, feeds)
    assert list(growth) == [DEFAULT, "enable_mem_pattern=false", "arena=off"]
    for each in growth.values():
        assert each.shapes == 6
        assert each.peak_mib >= each.held_mib > 0
        assert each.first_mib > 0
    refused = {name: array[..., None] for name, array in feeds[0].items()}
    assert measure_growth(path, [*feeds[1:], refused]) == {}


@pytest.mark.parametrize(
    ("shapes", "feed", "axes"),
    [
        # the batch of both inputs; the open length keeps its size
        (
            {"ids": ("batch", "length"), "mask": ("batch", "length"), "size": (3,)},
            {"ids": (1, 1), "mask": (1, 1), "size": (3,)},
            {"ids": 0, "mask": 0},
        ),
        # without names, a state may hold the batch along another axis
        (
            {"x": (None, None), "state": (2, None, 4)},
            {"x": (1, 512), "state": (2, 1, 4)},
            {"x": 0, "state": 1},
        ),
    ],
)
def test_axes_of_one_name_or_size_vary_together(
    shapes: dict[str, tuple[int | str | None, ...]],
    feed: dict[str, tuple[int, ...]],
    axes: dict[str, int],
) -> None:
    arrays = {name: np.zeros(shape, np.float32) for name, shape in feed.items()}
    assert varying_axes(model(inputs=_inputs(**shapes)), arrays) == axes
