"""Runs with inputs and outputs that are bound to a device; here the device is the CPU."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from small_models import write

from autotune.deploy.providers import CPU
from autotune.measure.runs import ArrayRuns, BoundRuns, runs_of


def _open(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(path, providers=[CPU])


@pytest.mark.parametrize("kind", ["cnn", "lstm", "transformer"])
def test_bound_runs_give_the_same_outputs(kind: str, tmp_path: Path) -> None:
    """Each sample has a binding of its own, with the outputs that `run` returns."""
    path, feeds = write(kind, tmp_path)
    session = _open(path)
    runs = BoundRuns(session, feeds, "cpu")
    for index in range(len(feeds)):
        runs.run(index)
    for binding, feed in zip(runs._bindings, feeds, strict=True):
        expected = session.run(None, dict(feed))
        for bound, output in zip(binding.copy_outputs_to_cpu(), expected, strict=True):
            np.testing.assert_array_equal(bound, output)


def test_copies_are_a_figure_of_their_own(tmp_path: Path) -> None:
    """Bound runs leave the copies out and tell them; runs on arrays leave nothing out."""
    path, feeds = write("cnn", tmp_path)
    copy_ms = BoundRuns(_open(path), feeds, "cpu").copy_ms()
    assert copy_ms is not None
    assert copy_ms > 0
    assert ArrayRuns(_open(path), feeds).copy_ms() is None


def test_text_goes_through_arrays(tmp_path: Path) -> None:
    """ONNX Runtime cannot bind strings, so that a model with inputs of them is run without."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["words"], ["same"])],
        "text",
        [helper.make_tensor_value_info("words", TensorProto.STRING, [2])],
        [helper.make_tensor_value_info("same", TensorProto.STRING, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "text.onnx")
    words = np.array(["a", "longer"], dtype=object)
    runs = runs_of(_open(tmp_path / "text.onnx"), [{"words": words}], "cuda")
    assert isinstance(runs, ArrayRuns)
    runs.run(0)


class FakeSession:
    """A session with outputs of several types, which is its own binding.

    Attributes:
        devices: The device of each output that was bound.
    """

    def __init__(self, **types: str) -> None:
        self.devices: dict[str, str] = {}
        self._types = types

    def io_binding(self) -> "FakeSession":
        return self

    def get_outputs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name, type=kind) for name, kind in self._types.items()]

    def bind_output(self, name: str, device: str) -> None:
        self.devices[name] = device


def test_outputs_that_no_device_holds_stay_in_main_memory() -> None:
    """Text and sequences are written there, tensors of numbers on the device."""
    session = FakeSession(scores="tensor(float)", labels="tensor(string)", boxes="seq(map(int64))")
    BoundRuns(session, [{}], "cuda")
    assert session.devices == {"scores": "cuda", "labels": "cpu", "boxes": "cpu"}


def test_main_memory_needs_no_binding(tmp_path: Path) -> None:
    """The CPU provider is timed as `InferenceSession.run` is called."""
    path, feeds = write("lstm", tmp_path)
    assert isinstance(runs_of(_open(path), feeds, "cpu"), ArrayRuns)
