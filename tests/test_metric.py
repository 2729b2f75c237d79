"""Metrics: the user's own, whose faults are told as theirs, and those that autotune brings."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import normal
from fakes import setting, thread_space

from autotune.errors import RequestError
from autotune.facts import sample_models
from autotune.facts.feeds import Feed
from autotune.facts.model import describe
from autotune.measure.answers import OutputJudge, OutputMismatchError, Outputs
from autotune.measure.metrics import METRICS, WITHOUT_LABELS
from autotune.search.trial import Limits
from autotune.storage.identity import digest, identity_of
from autotune.study import metric
from autotune.study.options import StudyOptions
from autotune.study.resolve import resolve_study
from autotune.study.seams import Seams

_MODULE = """
def right(outputs, references, inputs):
    return len(outputs) + len(references) + len(inputs)

def wrong(outputs, references, inputs):
    raise KeyError("label")

def nan(outputs, references, inputs):
    return float("nan")

def writing(outputs, references, inputs):
    references[0]["y"] /= 2
    return 1.0

def emptying(outputs, references, inputs):
    outputs.clear()
    return 1.0

number = 5
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_judge.py").write_text(_MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_judge", raising=False)


def test_a_function_is_called_with_all_three() -> None:
    assert metric.load_metric("my_judge:right")([{}], [{}, {}], [{}]) == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_judge", "MODULE:FUNCTION"),
        ("my_judge:", "MODULE:FUNCTION"),
        ("no_such_module:right", "ModuleNotFoundError"),
        ("my_judge:missing", "AttributeError"),
        ("my_judge:number", "no function"),
    ],
)
def test_a_wrong_name_is_told(name: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        metric.load_metric(name)


@pytest.mark.parametrize(("name", "message"), [("wrong", "KeyError"), ("nan", "finite")])
def test_a_function_that_fails_is_told(name: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        metric.load_metric(f"my_judge:{name}")([], [], [])


def test_a_function_cannot_change_the_right_answers() -> None:
    right: list[Outputs] = [{"y": np.ones(2)}]
    with pytest.raises(RequestError, match="read-only"):
        metric.load_metric("my_judge:writing")(right, right, [])
    assert metric.load_metric("my_judge:emptying")(right, right, []) == 1
    assert right[0]["y"].tolist() == [1, 1]


def test_a_fall_of_the_metric_is_a_limit() -> None:
    limits = Limits(max_error=float("inf"), max_drop=0.01)
    assert limits.admit_answers(0.9, 0.01)
    assert not limits.admit_answers(0.0, 0.02)
    assert not Limits(max_error=0.05, max_drop=0.01).admit_answers(0.9, 0.0)
    assert not Limits(max_error=float("inf"), max_drop=0.0).admit_answers(0.0, 0.001)


def test_an_edited_metric_is_another_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for text in (_MODULE, _MODULE.replace("len(inputs)", "2 * len(inputs)")):
        (tmp_path / "my_judge.py").write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, "my_judge", raising=False)
        metric.load_metric("my_judge:right")
        ctx = setting(thread_space(), metric_source=metric.source_digest("my_judge:right"))
        digests.append(digest(identity_of(ctx)))
    assert len(set(digests)) == 2
    assert metric.source_digest("no_module:right") == ""


def test_another_version_of_autotune_is_another_study() -> None:
    """It may measure or make files in another way, as after a step was mended."""
    ctx = setting(thread_space())
    newer = replace(ctx, environment=replace(ctx.environment, autotune="99.0"))
    assert digest(identity_of(ctx)) != digest(identity_of(newer))


def _rate(name: str, outputs: list[object], labels: list[object] | None = None) -> float:
    """Returns the metric of outputs, beside references that are the first output each."""
    samples: list[Outputs] = [{"y": np.asarray(output)} for output in outputs]
    references: list[Outputs] = [{"y": np.asarray(outputs[0])}] * len(samples)
    feeds = [{"x": np.zeros(1)} for _ in samples]
    if labels is not None:
        feeds = [{**f, "labels": np.asarray(x)} for f, x in zip(feeds, labels, strict=True)]
    return METRICS[name](samples, references, feeds)


_CAT, _DOG = [[0.9, 0.1]], [[0.2, 0.8]]


@pytest.mark.parametrize(
    ("name", "outputs", "labels", "value"),
    [
        ("top1", [_CAT, _DOG, _CAT, _DOG], [0, 1, 1, 1], 0.75),
        ("top1", [_CAT, _DOG], None, 0.5),
        ("top1", [[0.9, 0.1], [0.2, 0.8]], [0, 0], 0.5),
        ("cosine", [[1.0, 0.0], [0.0, 2.0]], None, 0.5),
        ("cosine", [[0.0, 0.0], [0.0, 0.0]], None, 1.0),
    ],
)
def test_the_value_of_known_answers(
    name: str, outputs: list[object], labels: list[object] | None, value: float
) -> None:
    assert _rate(name, outputs, labels) == pytest.approx(value)


def test_the_length_of_a_sequence_is_no_answer() -> None:
    """It is the same for all answers, and every configuration would have the best value."""
    right, wrong = (
        [{"z.length": np.asarray(2), "z[0]": np.array(row), "z[1]": np.array(row)}]
        for row in ([1.0, 0.0], [0.0, 1.0])
    )
    assert METRICS["cosine"](wrong, right, [{}]) == 0
    with pytest.raises(RequestError, match="no output with numbers"):
        METRICS["cosine"]([{"z.length": np.asarray(0)}], [{"z.length": np.asarray(0)}], [{}])


def test_there_is_no_cosine_of_texts() -> None:
    texts = [{"label": np.array(["1", "2"])}]
    with pytest.raises(RequestError, match="holds <U1"):
        METRICS["cosine"](texts, texts, [{}])


@pytest.mark.parametrize(
    ("name", "outputs", "labels", "message"),
    [
        ("top1", [_CAT], [[0, 1]], "2 labels for a sample with 1 rows"),
        ("top1", [_CAT], [["cat"]], "labels hold <U3, and the first output float64"),
    ],
)
def test_labels_that_do_not_fit_are_told(
    name: str, outputs: list[object], labels: list[object], message: str
) -> None:
    with pytest.raises(RequestError, match=f"--metric {name}.*{message}"):
        _rate(name, outputs, labels)


@pytest.mark.parametrize(
    ("name", "right", "given", "message"),
    [
        ("top1", [[0.9, 0.1]], [[np.nan, 0.1]], "the scores hold NaN"),
        ("cosine", [1.0, 2.0], [1.0, np.nan], "no finite numbers"),
        ("cosine", [1.0, 2.0], [np.inf, 2.0], "no finite numbers"),
    ],
)
def test_no_metric_rates_what_is_not_finite(
    name: str, right: list[object], given: list[object], message: str
) -> None:
    """It is the failure of a configuration, and of the request where it is the model's own."""
    feeds: list[Feed] = [{"x": np.zeros(1)}]
    outputs, wrong = [{"y": np.array(right)}], [{"y": np.array(given)}]
    with pytest.raises(RequestError, match=message):
        METRICS[name](wrong, outputs, feeds)
    judge = OutputJudge(outputs, feeds, METRICS[name])
    with pytest.raises(OutputMismatchError):
        judge.compare(wrong)
    if name == "top1":
        with pytest.raises(RequestError, match=message):
            OutputJudge(wrong, feeds, METRICS[name])


@pytest.mark.parametrize("has_labels", [False, True])
def test_top1_without_labels_says_what_it_compares_with(has_labels: bool, tmp_path: Path) -> None:
    sample_models.write("cnn", tmp_path / "cnn.onnx")
    (tensor,) = describe(tmp_path / "cnn.onnx").inputs
    shape = [size if isinstance(size, int) else 1 for size in tensor.shape]
    arrays: dict[str, Any] = {tensor.name: normal(1, 4, *shape)}
    if has_labels:
        arrays["labels"] = np.zeros(4, int)
    np.savez(tmp_path / "inputs.npz", **arrays)
    options = StudyOptions(
        model=tmp_path / "cnn.onnx", data=tmp_path / "inputs.npz", metric="top1", out=tmp_path / "o"
    )
    context = resolve_study(options, Seams())
    assert (WITHOUT_LABELS in context.workload.warnings) is not has_labels


def test_a_metric_is_known_by_its_name() -> None:
    assert metric.load_metric("top1") is METRICS["top1"]
    with pytest.raises(RequestError, match="none of top1, cosine"):
        metric.load_metric("top5")
