"""The metrics that autotune brings, on answers whose value is known."""

import numpy as np
import pytest

from autotune.errors import RequestError
from autotune.measure.fidelity import Outputs
from autotune.measure.metrics import METRICS
from autotune.study.metric import load_metric


def _rate(name: str, outputs: list[object], labels: list[object] | None = None) -> float:
    """Returns the metric of outputs, beside references that are the first output each."""
    samples: list[Outputs] = [{"y": np.asarray(output)} for output in outputs]
    references: list[Outputs] = [{"y": np.asarray(outputs[0])}] * len(samples)
    feeds = [{"x": np.zeros(1)} for _ in samples]
    if labels is not None:
        feeds = [{**f, "labels": np.asarray(x)} for f, x in zip(feeds, labels, strict=True)]
    return METRICS[name](samples, references, feeds)


_CAT, _DOG = [[0.9, 0.1]], [[0.2, 0.8]]
# greedy steps of a CTC model: 1 1 0 1 2, which reads 1 1 2
_STEPS = np.eye(3)[[1, 1, 0, 1, 2]]


@pytest.mark.parametrize(
    ("name", "outputs", "labels", "value"),
    [
        ("top1", [_CAT, _DOG, _CAT, _DOG], [0, 1, 1, 1], 0.75),
        ("top1", [_CAT, _DOG], None, 0.5),
        ("top1", [[0.9, 0.1], [0.2, 0.8]], [0, 0], 0.5),
        ("cosine", [[1.0, 0.0], [0.0, 2.0]], None, 0.5),
        ("cosine", [[0.0, 0.0], [0.0, 0.0]], None, 1.0),
        ("exact", [[[3, 4, 5]], [[3, 4, 6]]], [[3, 4, 5], [3, 4, 5]], 0.5),
        ("exact", [[3, 4]], [[3, 4, -1]], 1.0),
        ("exact", [["cat"], ["dog"]], None, 0.5),
        ("cer", [["kitten"]], [["sitting"]], 1 - 3 / 7),
        ("cer", [["cat"], ["dog"]], [["cat"], ["dot"]], 1 - 1 / 6),
        ("cer", [_STEPS], [[1, 1, 2]], 1.0),
        ("cer", [_STEPS], None, 1.0),
        ("cer", [[""]], [["cat"]], 0.0),
    ],
)
def test_the_value_of_known_answers(
    name: str, outputs: list[object], labels: list[object] | None, value: float
) -> None:
    assert _rate(name, outputs, labels) == pytest.approx(value)


@pytest.mark.parametrize(
    ("name", "outputs", "labels", "message"),
    [
        ("top1", [_CAT], [[0, 1]], "2 labels for a sample with 1 rows"),
        ("top1", [_CAT], [["cat"]], "labels hold <U3, and the first output float64"),
        ("cer", [["cat"]], [[1, 2]], "labels are texts for an output of texts"),
        ("exact", [[1]], [[0.5]], "labels hold float64"),
    ],
)
def test_labels_that_do_not_fit_are_told(
    name: str, outputs: list[object], labels: list[object], message: str
) -> None:
    with pytest.raises(RequestError, match=f"--metric {name}.*{message}"):
        _rate(name, outputs, labels)


def test_a_metric_is_known_by_its_name() -> None:
    assert load_metric("top1") is METRICS["top1"]
    with pytest.raises(RequestError, match="none of top1, cosine, exact, cer"):
        load_metric("top5")
