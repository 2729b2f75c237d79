"""Configurations that are judged on all samples, and what a study makes of the judgements."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fakes
import numpy as np
import onnx
import pytest
from factories import model_of, tensor
from fakes import FakeWorld, thread_cost
from numpy.typing import NDArray

from autotune.deploy.session import SessionConfig
from autotune.errors import RequestError
from autotune.facts import sample_models
from autotune.facts.feeds import load_samples, save_samples
from autotune.facts.workload import Workload
from autotune.graph.prepare import PreparationError, PreparedModel, Preparer
from autotune.measure import child_session
from autotune.measure.judging import AllSamples, JudgedConfiguration, Judgement
from autotune.measure.metrics import METRICS
from autotune.process.child import ChildFailure
from autotune.report.result import view_ending
from autotune.report.view import Line
from autotune.results.result import StudyResult
from autotune.study.finish import Interrupted
from autotune.study.judging import JudgeOnAllSamples

Array = NDArray[Any]

_MODEL = model_of(tensor("x", "float32", "N", 2))
_SUBJECT = JudgedConfiguration(
    trial=3, words="int8", path=Path("int8.onnx"), config=SessionConfig()
)


def _exact(x: Array) -> Array:
    return x


class FakeChild:
    """A process whose sessions are functions of the input, by the name of the model's file."""

    sessions: dict[str, Callable[[Array], Array]]
    folder: Path

    def __init__(self, *_: object, measures: bool) -> None:
        self._run: Callable[[Array], Array] = _exact

    def __enter__(self) -> "FakeChild":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def request(self, message: dict[str, Any], limit_s: float, reply: type) -> object:
        """Opens a session, or answers samples."""
        if message["do"] == "producers":
            raise ChildFailure("failed", "nothing is known of a function")
        if message["do"] == "open":
            self._run = self.sessions[Path(message["model"]).name]
            return None
        feeds = [feed["x"] for feed in load_samples(Path(message["samples"]))]
        save_samples([{"y": self._run(x)} for x in feeds], Path(message["to"]))
        return None


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Judgement]:
    """Returns a function that judges a function of the input on so many labelled samples."""
    monkeypatch.setattr(child_session, "Child", FakeChild)
    monkeypatch.setattr(FakeChild, "folder", tmp_path, raising=False)

    def judgement(run: Callable[[Array], Array], count: int, **options: Any) -> Judgement:
        FakeChild.sessions = {_MODEL.path.name: _exact, "int8.onnx": run}
        labels = tuple(np.asarray(i % 2) for i in range(count))
        feeds = tuple({"x": np.eye(2, dtype=np.float32)[[label]]} for label in labels)
        facts: dict[str, Any] = {
            "metric": METRICS["top1"],
            "max_drop": 0.01,
            "max_error": float("inf"),
            "limit_s": 60.0,
            "workload": Workload(feeds=feeds, source="user", notes=(), labels=labels),
        }
        samples = AllSamples(model=_MODEL, **{**facts, **options})
        return samples.judge(_SUBJECT)

    return judgement


def test_a_configuration_that_loses_a_class_is_beyond_the_limit(judge: Any) -> None:
    """Half of the labels are lost: one look suffices, and the lost samples are named."""
    found = judge(lambda x: np.array([[1, 0]], np.float32), 4000)
    assert (found.decision, found.samples, found.admitted) == ("beyond", 64, False)
    assert found.metric == pytest.approx(0.5, abs=0.2)
    assert found.reference_metric == 1
    assert [sample.number % 2 for sample in found.worst] == [1, 1, 1]
    assert found.worst[0].metric == 0


def test_a_configuration_with_the_same_labels_is_within(judge: Any) -> None:
    found = judge(lambda x: 0.9 * x, 4000)
    assert (found.decision, found.admitted, found.metric) == ("within", True, 1.0)
    assert found.samples < found.available == 4000


def test_few_samples_leave_it_open_and_the_numbers_decide(judge: Any) -> None:
    found = judge(_exact, 100)
    assert (found.decision, found.admitted, found.samples) == ("undecided", True, 100)


def test_without_a_metric_the_error_of_all_samples_decides(judge: Any) -> None:
    drawn = iter(range(10**6))

    def off_once(x: Array) -> Array:
        return x * (9.0 if next(drawn) == 250 else 1.0)

    options = {"metric": None, "max_drop": None, "max_error": 0.05}
    found = judge(off_once, 300, **options)
    assert (found.decision, found.metric, found.drop) == ("beyond", None, None)
    assert found.error == pytest.approx(1.0)
    assert judge(_exact, 300, **options).decision == "within"


@pytest.mark.parametrize("count", [129, 133])
def test_the_last_samples_are_held_to_the_error_of_64(judge: Any, count: int) -> None:
    """One of the last is 20 % off: an error of 0.025 among 64, of 0.04 among five, 0.2 alone."""
    angles = np.linspace(0, 1, count, dtype=np.float32)
    feeds = tuple({"x": np.array([[np.cos(a), np.sin(a)]], np.float32)} for a in angles)
    places: dict[bytes, int] = {}

    def off_at_the_end(x: Array) -> Array:
        place = places.setdefault(x.tobytes(), len(places))
        return x * (1.2 if place == 128 else 1.0)

    found = judge(
        off_at_the_end,
        count,
        metric=None,
        max_drop=None,
        max_error=0.03,
        workload=Workload(feeds=feeds, source="user", notes=()),
    )
    assert (found.decision, found.samples) == ("within", count)
    assert found.error == pytest.approx(0.025, rel=0.1)
    assert [sample.error > 0.1 for sample in found.worst] == [True, False, False]


def test_time_ends_a_judgement_after_its_first_look(judge: Any) -> None:
    times = iter(range(10**6))
    found = judge(_exact, 4000, limit_s=1.0, clock_s=lambda: float(next(times)))
    assert (found.decision, found.samples) == ("undecided", 64)
    assert "too long" in found.reason
    assert found.admitted


def test_a_configuration_that_fails_on_a_sample_is_beyond(judge: Any) -> None:
    def crash(x: Array) -> Array:
        raise ChildFailure("crashed", "it ended with SIGSEGV")

    found = judge(crash, 200)
    assert (found.decision, found.admitted) == ("beyond", False)
    assert "SIGSEGV" in found.reason


@pytest.mark.filterwarnings("ignore:overflow")
def test_an_error_without_end_is_beyond_and_can_be_written(judge: Any) -> None:
    options = {"metric": None, "max_drop": None}
    found = judge(lambda x: x.astype(np.float64) * 1e200, 200, **options)
    assert (found.decision, found.admitted) == ("beyond", False)
    assert math.isfinite(found.error)


def test_a_metric_of_many_samples_alone_leaves_it_open(judge: Any) -> None:
    """A correlation says nothing of one sample; the study keeps what the search has compared."""

    def correlation(*_: object) -> float:
        raise RequestError("--metric m:f gave nan; it must be a finite number")

    found = judge(_exact, 200, metric=correlation)
    assert (found.decision, found.samples, found.admitted) == ("undecided", 0, True)
    assert "nan" in found.reason


def test_samples_that_calibrated_nothing_come_first() -> None:
    """Calibration has seen every second one, up to 128."""
    feeds = tuple({"x": np.zeros((1, 2), np.float32)} for _ in range(400))
    workload = Workload(feeds=feeds, source="user", notes=())
    samples = AllSamples(
        model=_MODEL, workload=workload, metric=None, max_drop=None, max_error=1, limit_s=1
    )
    seen = {id(feed) for feed in workload.calibration}
    order = samples._order()
    assert sorted(order) == list(range(400))
    assert not seen & {id(feeds[number]) for number in order[:272]}


@pytest.fixture
def study(tmp_path: Path) -> Callable[..., StudyResult]:
    """Returns a function that runs a study with 120 samples."""
    model = tmp_path / "cnn.onnx"
    onnx.save(sample_models.cnn(channels=4, size=8, blocks=1), model)
    inputs = {i.name: i for i in onnx.load(model).graph.input}
    shape = [d.dim_value or 1 for d in next(iter(inputs.values())).type.tensor_type.shape.dim]
    array = np.random.default_rng(0).normal(size=(120, *shape)).astype(np.float32)
    samples: dict[str, Any] = {next(iter(inputs)): array}
    np.savez(tmp_path / "data.npz", **samples)

    def run() -> StudyResult:
        out = tmp_path / "out"
        return FakeWorld(thread_cost).tune(
            model,
            space="session",
            trials=8,
            out=out,
            data=tmp_path / "data.npz",
            seams={"judge": JudgeOnAllSamples},
        )

    return run


@pytest.mark.usefixtures("quiet")
def test_the_next_member_takes_the_place_of_one_beyond_the_limit(
    study: Callable[[], StudyResult], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trials: list[int] = []

    def judge(_: AllSamples, subject: JudgedConfiguration, __: object) -> Judgement:
        trials.append(subject.trial)
        return fakes.judged(subject.trial, subject.words, admitted=subject.trial != trials[0])

    monkeypatch.setattr(AllSamples, "judge", judge)
    result = study()
    first, *_, last = result.judgements
    assert (first.admitted, last.admitted) == (False, True)
    assert result.picked == last.trial != first.trial
    assert first.trial not in [member.trial for member in result.members]
    assert StudyResult.read(tmp_path / "out").judgements == result.judgements
    assert json.loads((tmp_path / "out" / "front.json").read_text())["judgements"]
    lines = [b.text for b in view_ending(result, "").blocks if isinstance(b, Line)]
    assert any("beyond a limit, so it was not selected" in line for line in lines)


@pytest.mark.usefixtures("quiet")
def test_an_interrupted_study_does_not_select_what_was_beyond_the_limit(
    study: Callable[[], StudyResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is judged and does not hold; Ctrl-C comes while the next one is judged."""
    trials: list[int] = []

    def judge(_: AllSamples, subject: JudgedConfiguration, __: object) -> Judgement:
        trials.append(subject.trial)
        if subject.trial != trials[0]:
            raise KeyboardInterrupt
        return fakes.judged(subject.trial, subject.words, admitted=False)

    monkeypatch.setattr(AllSamples, "judge", judge)
    with pytest.raises(Interrupted) as interrupted:
        study()
    result = interrupted.value.result
    assert {judgement.trial for judgement in result.judgements} == {trials[0]}
    assert result.picked == trials[-1]
    lines = [b.text for b in view_ending(result, "").blocks if isinstance(b, Line)]
    assert f"Trial {trials[-1]} was not judged on all samples." in lines
    monkeypatch.setattr(AllSamples, "judge", lambda _, s, __: fakes.judged(s.trial, admitted=True))
    assert study().judgements, "the same command judges the config"


@pytest.mark.usefixtures("quiet")
def test_a_model_that_cannot_be_made_again_gives_way_to_the_next(
    study: Callable[[], StudyResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file was removed from the cache, and the step that made it fails now."""
    made = Preparer.prepare
    failures = iter([PreparationError("refused", "all nodes are slower")])

    def prepare(self: Preparer, half: dict[str, Any]) -> PreparedModel:
        for error in failures:
            raise error
        return made(self, half)

    monkeypatch.setattr(AllSamples, "judge", lambda _, s, __: fakes.judged(s.trial, admitted=True))
    monkeypatch.setattr(Preparer, "prepare", prepare)
    result = study()
    lost, selected = result.judgements
    assert result.picked == selected.trial != lost.trial
    lines = [b.text for b in view_ending(result, "").blocks if isinstance(b, Line)]
    reason = "its model cannot be made again: all nodes are slower; it was not selected."
    assert f"Trial {lost.trial}: {reason}" in lines


@pytest.mark.usefixtures("quiet")
def test_the_default_stays_where_all_are_beyond_the_limit(
    study: Callable[[], StudyResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AllSamples, "judge", lambda _, s, __: fakes.judged(s.trial, admitted=False))
    result = study()
    assert result.best is result.baseline
    assert result.judgements
