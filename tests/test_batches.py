"""Batches of samples: which models can have them, and how samples are stacked."""

from collections.abc import Sequence

import numpy as np
import psutil
import pytest
from factories import model_of, tensor

from autotune.errors import RequestError
from autotune.facts.batches import Batching, stack
from autotune.facts.generated import generate
from autotune.facts.model import Model
from autotune.facts.model_facts import Tensor
from autotune.facts.workload import Workload

IMAGES = model_of(tensor("x", "float32", "N", 3))


def _of(*tensors: Tensor, sizes: tuple[int, ...] = (1, 4)) -> Batching:
    model = model_of(*tensors)
    return Batching.of(model, generate(model, {}), sizes)


def _workload(*samples: Sequence[Sequence[float]]) -> Workload:
    feeds = tuple({"x": np.asarray(sample, np.float32)} for sample in samples)
    return Workload(feeds=feeds, source="user", notes=())


def test_the_batch_dimension_has_the_size_of_the_batch() -> None:
    """Sizes of other named dimensions stay; a model that names no batch dimension has no size."""
    named = _of(tensor("x", "float32", "N", "time"), tensor("mask", "int64", "N", "time"))
    assert named.inputs == ("x", "mask")
    assert named.dimensions({"N": 1, "time": 7}, 4) == {"N": 4, "time": 7}
    unnamed = _of(tensor("x", "float32", None, 3))
    assert unnamed.dimensions({"time": 7}, 4) == {"time": 7}


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ([], "no input of model.onnx has an open first dimension; export"),
        ([tensor("x", "float32", 1, 3)], r"\('x' has the shape \[1, 3\]\)"),
        ([tensor("k", "int64")], r"\('k' has the shape \[\]\)"),
        (
            [tensor("x", "float32", "N", 3), tensor("boxes", "float32", "M", 4)],
            r"'x' \[N, 3\] and 'boxes' \[M, 4\] begin with different dimensions",
        ),
        (
            [tensor("x", "float32", "N", 3), tensor("y", "float32", None, 3)],
            r"'x' \[N, 3\] and 'y' \[\?, 3\] begin with different dimensions",
        ),
        (
            [tensor("x", "float32", "N", 3), tensor("state", "float32", 2, "N", 8)],
            r"'state' has the shape \[2, N, 8\], with the batch dimension 'N' in another place",
        ),
        ([tensor("x", "float32", "N", "N")], "in another place than the first"),
        (
            [tensor("x", "float32", "N", 3), tensor("noise", "float32", 1, 3)],
            "'noise' has the shape .* without the batch dimension, and differs from sample to",
        ),
    ],
)
def test_a_model_without_a_batch_dimension_is_refused(tensors: list[Tensor], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        _of(*tensors)


def test_an_input_that_all_samples_share_is_not_stacked() -> None:
    model = model_of(tensor("x", "float32", "N", 3), tensor("rate", "int64"))
    workload = generate(model, {})
    batching = Batching.of(model, workload, [4])
    (first, *_) = batching.timing(workload, 4)
    assert first["x"].shape == (4, 3)
    assert first["rate"].shape == ()


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ([[[1, 2, 3], [4, 5, 6]]], r"'x' has the shape \[2, 3\]; .* first dimension is 1"),
        ([[[1, 2, 3]], [[1, 2]]], r"shapes \[1, 3\] and \[1, 2\], and only samples of one shape"),
    ],
)
def test_samples_that_cannot_be_stacked_are_refused(
    samples: list[list[list[float]]], reason: str
) -> None:
    model = model_of(tensor("x", "float32", "N", "time"))
    with pytest.raises(RequestError, match=reason):
        Batching.of(model, _workload(*samples), [2])


def test_samples_are_stacked_in_order_and_the_last_batch_is_filled_from_the_start() -> None:
    samples = [{"x": np.asarray([[i]])} for i in range(5)]
    batches = stack(samples, ["x"], 2)
    assert [batch["x"].ravel().tolist() for batch in batches] == [[0, 1], [2, 3], [4, 0]]
    assert [batch["x"].ravel().tolist() for batch in stack(samples[:2], ["x"], 5)] == [
        [0, 1, 0, 1, 0]
    ]


def test_every_size_is_validated_on_the_same_samples() -> None:
    workload = _workload(*([[i, i, i]] for i in range(20)))
    batching = Batching.of(IMAGES, workload, [1, 3, 16])
    wanted = [feed["x"][0, 0] for feed in workload.validation]
    for size in batching.sizes:
        rows = np.concatenate([batch["x"] for batch in batching.validation(workload, size)])
        assert rows[: len(wanted), 0].tolist() == wanted
        assert len(rows) % size == 0


def test_large_batches_are_timed_on_more_samples() -> None:
    """A batch of 16 has 16 different samples where there are as many, and small ones rotate."""
    workload = _workload(*([[i, i, i]] for i in range(40)))
    batching = Batching.of(IMAGES, workload, [1, 4, 16])
    assert batching.timing(workload, 1) == workload.timing
    assert [len(batching.timing(workload, size)) for size in (4, 16)] == [2, 1]
    (large,) = batching.timing(workload, 16)
    assert len(set(large["x"][:, 0].tolist())) == 16


def test_batches_that_do_not_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal says how much they would take, and how much there is."""
    memory = psutil.virtual_memory()._replace(available=64 << 20)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    model: Model = model_of(tensor("x", "float32", "N", 1000))
    with pytest.raises(RequestError, match=r"batches of 8192 would take 93 MiB .* 64 MiB are free"):
        Batching.of(model, generate(model, {}), [1, 8192])


def test_a_workload_of_batches_says_so() -> None:
    workload = _workload([[1, 2, 3]], [[4, 5, 6]])
    batches = Batching.of(IMAGES, workload, [2]).workload(workload, 2)
    assert [feed["x"].shape for feed in batches.feeds] == [(2, 3)]
    assert batches.notes == ("each run has a batch of 2",)
