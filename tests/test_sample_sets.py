"""The samples of each batch size, and what the unoptimised model says to them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from factories import model_of, tensor
from numpy.typing import NDArray

from autotune.errors import CannotMeasureError
from autotune.facts.batches import Batching
from autotune.facts.feeds import load_samples, save_samples
from autotune.facts.generated import generate
from autotune.measure.answers import OutputMismatchError
from autotune.measure.configuration_run import TimeLimits
from autotune.measure.replies import Producers
from autotune.measure.sample_sets import SampleSet, sample_sets
from autotune.process.child import Child, ChildFailure

MODEL = model_of(tensor("x", "float32", "N", 3))
WORKLOAD = generate(MODEL, {"x": (1, 3)})
_RANDOM = np.random.default_rng(0)
Array = NDArray[np.generic]
Compute = Callable[[Array], Mapping[str, Array]]


class FakeChild:
    """A process whose session is a function of the input."""

    def __init__(self, compute: Compute) -> None:
        self.runs: list[tuple[int, ...]] = []
        self._compute = compute

    def request(self, message: dict[str, Any], limit_s: float, reply: type) -> object:
        if message["do"] == "answers":
            feeds = [feed["x"] for feed in load_samples(Path(message["samples"]))]
            self.runs += [array.shape for array in feeds]
            save_samples([dict(self._compute(array)) for array in feeds], Path(message["to"]))
        if message["do"] == "producers":
            save_samples([], Path(message["to"]))
            return Producers(of_outputs={})
        return None


def _sets(
    compute: Compute, folder: Path, *sizes: int, metric: Any = None
) -> tuple[dict[int, SampleSet], FakeChild]:
    child = FakeChild(compute)
    sets = sample_sets(
        cast("Child", child),
        MODEL,
        WORKLOAD,
        folder,
        batching=Batching.of(MODEL, WORKLOAD, sizes) if sizes else None,
        metric=metric,
        max_error=0.05,
    )
    return sets, child


def _double(x: Array) -> dict[str, Array]:
    return {"y": 2 * np.asarray(x, np.float32)}


def test_without_sizes_a_sample_is_run_as_it_is(tmp_path: Path) -> None:
    sets, child = _sets(_double, tmp_path)
    assert list(sets) == [1]
    assert sets[1].files.batch is None
    assert sets[1].files.timing.name == "timing.npz"
    assert sets[1].dimensions == {"N": 1}
    assert set(child.runs) == {(1, 3)}


def test_each_size_has_its_samples_and_dimensions(tmp_path: Path) -> None:
    sets, child = _sets(_double, tmp_path, 1, 4)
    assert [own.files.batch for own in sets.values()] == [1, 4]
    assert [dict(own.dimensions) for own in sets.values()] == [{"N": 1}, {"N": 4}]
    assert load_samples(sets[4].files.timing)[0]["x"].shape == (4, 3)
    assert (4, 3) in child.runs


def test_errors_of_a_batch_are_those_of_its_samples(tmp_path: Path) -> None:
    sets, _ = _sets(_double, tmp_path, 1, 3)
    answers = [{"y": 2.02 * feed["x"]} for feed in WORKLOAD.validation]  # type: ignore[operator]
    for own in sets.values():
        fidelity = own.judge.compare(answers)
        assert fidelity.error == pytest.approx(0.01, rel=1e-4)
        assert len(fidelity.errors["y"]) == len(WORKLOAD.validation)


def test_a_metric_sees_single_samples(tmp_path: Path) -> None:
    """A metric of the user need not know about batches."""
    shapes: list[tuple[int, ...]] = []

    def metric(outputs: Any, _references: Any, inputs: Any) -> float:
        shapes.extend(feed["x"].shape for feed in inputs)
        shapes.extend(output["y"].shape for output in outputs)
        return 1.0

    _sets(_double, tmp_path, 4, metric=metric)
    assert set(shapes) == {(1, 3)}


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (lambda x: {"y": x - x.mean(0) + 1}, r"not those to its samples one by one \(error"),
        (lambda x: {"y": np.ones(4) * x.sum()}, "not those to its samples one by one"),
        (lambda x: {"y": x.sum()}, r"'y' has the shape \[\] for a batch of 4.*multiple of 4"),
        (lambda x: {"y": x[:1]}, r"'y' has the shape \[1, 3\] for a batch of 4"),
    ],
)
def test_a_model_whose_first_dimension_is_no_batch_is_refused(
    tmp_path: Path, compute: Compute, reason: str
) -> None:
    """Samples of a batch must not change each other's answers."""
    with pytest.raises(CannotMeasureError, match=reason):
        _sets(compute, tmp_path, 1, 4)


def test_answers_that_differ_from_run_to_run_are_refused(tmp_path: Path) -> None:
    """Such as by dropout in training mode."""
    with pytest.raises(CannotMeasureError, match=r"differ from run to run .* without dropout"):
        _sets(lambda x: {"y": _RANDOM.normal(size=3)}, tmp_path)


def test_answers_without_a_number_admit_an_unchanged_graph_alone(tmp_path: Path) -> None:
    """Where the reference has no number, any answer would pass."""
    sets, _ = _sets(lambda x: {"y": np.full(x.shape, np.nan)}, tmp_path)
    assert "only an unchanged graph" in sets[1].judge.only_unchanged


def test_a_model_that_fails_on_batches_is_refused(tmp_path: Path) -> None:

    def fail(x: Array) -> dict[str, Array]:
        if len(x) > 1:
            raise ChildFailure("refused", "it reshapes to [1, 3]")
        return _double(x)

    with pytest.raises(CannotMeasureError, match=r"in batches of 4 \(refused\): it reshapes"):
        _sets(fail, tmp_path, 1, 4)


def test_answers_without_a_batch_dimension_are_wrong_answers(tmp_path: Path) -> None:
    from autotune.measure.requests import request_outputs

    sets, _ = _sets(_double, tmp_path, 1, 4)
    child = cast("Child", FakeChild(lambda x: {"y": np.ones((3, 3))}))
    with pytest.raises(OutputMismatchError, match="multiple of 4"):
        request_outputs(child, sets[4].files, 1.0)


def test_many_samples_of_a_slow_model_have_time() -> None:
    """Until the speed is known a reply may take as long as a few runs, or as many as it holds."""
    limits = TimeLimits(load_s=1.0, run_s=300.0)
    assert limits.of_runs(1) == 300.0
    assert limits.of_runs(16) == 1200.0
