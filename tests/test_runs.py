"""Runs with inputs and outputs that are bound to a device; here the device is the CPU."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from factories import save_onnx
from small_models import write

from autotune.deploy.providers import CPU
from autotune.deploy.session import SessionConfig
from autotune.measure.runs import ArrayRuns, BoundRuns, CapturedAnswers, runs_of


def _open(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path, providers=[CPU])


@pytest.mark.parametrize("kind", ["cnn", "lstm", "transformer"])
def test_bound_runs_give_the_same_outputs(kind: str, tmp_path: Path) -> None:
    path, feeds = write(kind, tmp_path)
    session = _open(path)
    runs = BoundRuns(session, feeds, "cpu", 0)
    for index in range(len(feeds)):
        runs.run(index)
    for binding, feed in zip(runs._bindings, feeds, strict=True):
        expected = session.run(None, dict(feed))
        for bound, output in zip(binding.copy_outputs_to_cpu(), expected, strict=True):
            np.testing.assert_array_equal(bound, output)


def test_copies_are_a_figure_of_their_own(tmp_path: Path) -> None:
    """Bound runs leave the copies out and tell them; runs on arrays leave nothing out."""
    path, feeds = write("cnn", tmp_path)
    copy_ms = BoundRuns(_open(path), feeds, "cpu", 0).copy_ms()
    assert copy_ms is not None
    assert copy_ms > 0
    assert ArrayRuns(_open(path), feeds).copy_ms() is None


def test_text_goes_through_arrays(tmp_path: Path) -> None:
    """ONNX Runtime cannot bind strings, so that a model with inputs of them is run without."""
    path = tmp_path / "text.onnx"
    save_onnx(path, "same = Identity (words)", x="string[2] words", y="string[2] same")
    words = np.array(["a", "longer"], dtype=object)
    runs = runs_of(_open(path), [{"words": words}], "cuda")
    assert isinstance(runs, ArrayRuns)
    runs.run(0)


class FakeSession:
    """A session with outputs of several types, which is its own binding."""

    def __init__(self, **types: str) -> None:
        self.devices: dict[str, tuple[str, int]] = {}
        self._types = types

    def io_binding(self) -> "FakeSession":
        return self

    def get_outputs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name, type=kind) for name, kind in self._types.items()]

    def bind_output(self, name: str, device: str, device_id: int = 0) -> None:
        self.devices[name] = device, device_id

    def bind_ortvalue_input(self, name: str, value: tuple[str, int]) -> None:
        self.devices[name] = value


def test_outputs_that_no_device_holds_stay_in_main_memory() -> None:
    session = FakeSession(scores="tensor(float)", labels="tensor(string)", boxes="seq(map(int64))")
    BoundRuns(session, [{}], "cuda", 0)
    cpu = ("cpu", 0)
    assert session.devices == {"scores": ("cuda", 0), "labels": cpu, "boxes": cpu}


def test_values_lie_on_the_device_of_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the second GPU chosen, values on the first would be copied in every run."""
    made = SimpleNamespace(ortvalue_from_numpy=lambda _, device, number: (device, number))
    monkeypatch.setattr(onnxruntime, "OrtValue", made)
    session = FakeSession(scores="tensor(float)")
    feeds = [{"image": np.ones(1, np.float32)}]
    runs_of(session, feeds, "cuda", 1)
    assert session.devices == {"image": ("cuda", 1), "scores": ("cuda", 1)}


def test_main_memory_needs_no_binding(tmp_path: Path) -> None:
    path, feeds = write("lstm", tmp_path)
    assert isinstance(runs_of(_open(path), feeds, "cpu"), ArrayRuns)


class FakeCaptured(FakeSession):
    """A session that answers for what its buffers held when the graph of a number was captured.

    ``update_inplace`` changes what they hold.
    """

    def __init__(self) -> None:
        super().__init__(sum="tensor(float)")
        self.buffer: FakeValue
        self.graphs: dict[str, FakeValue] = {}
        self.answer = 0.0

    def io_binding(self) -> "FakeCaptured":
        return self

    def bind_ortvalue_input(self, name: str, value: Any) -> None:
        self.buffer = value

    def run_with_iobinding(self, _: object, options: onnxruntime.RunOptions) -> None:
        number = options.get_run_config_entry("gpu_graph_id")
        self.answer = float(self.graphs.setdefault(number, self.buffer).array.sum())

    def synchronize_outputs(self) -> None:
        """Has nothing to wait for."""

    def copy_outputs_to_cpu(self) -> list[float]:
        return [self.answer]


class FakeValue:
    """A buffer of a device."""

    def __init__(self, array: Any, *_: object) -> None:
        self.array = array

    def update_inplace(self, array: Any) -> None:
        self.array = array


def test_a_captured_graph_answers_for_what_its_buffers_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """New inputs are written into the buffers; other shapes have a graph of their own."""
    monkeypatch.setattr(onnxruntime, "OrtValue", SimpleNamespace(ortvalue_from_numpy=FakeValue))
    answers = CapturedAnswers(FakeCaptured(), SessionConfig(), "cuda", 0)
    feeds = [{"x": np.full(size, value, np.float32)} for size, value in ((2, 1), (2, 5), (3, 1))]
    assert [answers.run(feed) for feed in feeds] == [[2.0], [10.0], [3.0]]


def test_each_timed_sample_has_a_graph_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "OrtValue", SimpleNamespace(ortvalue_from_numpy=FakeValue))
    session = FakeCaptured()
    runs = runs_of(session, [{"x": np.ones(1)}] * 2, "cuda", 0, SessionConfig())
    runs.run(0)
    runs.run(1)
    assert set(session.graphs) == {"1", "2"}
