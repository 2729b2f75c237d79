"""What eight bits cost in accuracy, unit by unit."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from factories import normal, onnx_model, save_onnx
from small_models import write

from autotune.graph import by_error, by_time, int8, node_times
from autotune.graph.by_time import LinearTime, Times
from autotune.graph.calibration import Ranges
from autotune.graph.entries import StepRefusedError
from autotune.graph.intermediates import Intermediates

pytestmark = pytest.mark.filterwarnings("ignore")

_RUN_US = 100.0


def _range(low: float, high: float) -> list[object]:
    return ["float32", low, high]


def _model() -> onnx.ModelProto:
    """Returns two products, of which the second hardly reaches the output."""
    return onnx_model(
        "[loud] a = MatMul (x, w) [quiet] b = MatMul (x, v) [less] c = Mul (b, tiny) "
        "[sum] y = Add (a, c)",
        {"w": normal(0, 8, 8), "v": normal(1, 8, 8), "tiny": 1e-3},
        x="float[4,8] x",
    )


_RANGES: Ranges = {"x": _range(-4, 4), "a": _range(-9, 9), "b": _range(-9, 9), "c": _range(-1, 1)}
_FEEDS = [{"x": normal(2 + i, 4, 8)} for i in range(2)]


def test_a_unit_has_the_error_of_what_it_rounds() -> None:
    model = _model()
    before = model.SerializeToString()
    loud, quiet, nothing = by_error.squared_errors(
        model, _FEEDS, _RANGES | {"x": _range(0, 0)}, [[0], [1], []], _RUN_US
    )
    assert loud > 100 * quiet > 0
    assert nothing == 0
    assert model.SerializeToString() == before


def test_a_narrow_range_is_an_error() -> None:
    """Tensors are rounded to the ranges that they are calibrated to, not to those of a sample."""
    wide, narrow = (
        by_error.squared_errors(_model(), _FEEDS, {"a": _range(-size, size)}, [[0]], _RUN_US)[0]
        for size in (9, 0.5)
    )
    assert narrow > 10 * wide


def test_what_a_bound_takes_is_not_rounded() -> None:
    """Eight bits round what is behind it: its own range is that of the product before it."""
    model = onnx_model(
        "[m] a = MatMul (x, w) [r] y = Relu (a)", {"w": normal(0, 8, 8)}, x="float[4,8] x"
    )
    assert by_error.squared_errors(model, _FEEDS, {"a": _range(-1, 1)}, [[1]], _RUN_US) == [0]


def test_the_work_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first units come first, and the others have no error that is known."""
    monkeypatch.setattr(by_error, "_MOST_US", 2 * _RUN_US)
    errors = by_error.squared_errors(_model(), _FEEDS, _RANGES, [[0], [1], [2]], _RUN_US)
    assert len(errors) == 2


def test_outputs_without_an_element_say_nothing() -> None:
    empty = [{"x": np.zeros((0, 8), np.float32)}]
    model = onnx_model("y = MatMul (x, w)", {"w": normal(0, 8, 8)}, x="float[?,8] x")
    with pytest.raises(StepRefusedError, match="without an element"):
        by_error.squared_errors(model, empty, {"x": _range(-1, 1)}, [[0]], 1.0)


def _all_faster(times_of: Callable[..., Times]) -> Callable[..., Times]:
    """Returns the same function, with times by which eight bits are faster everywhere."""

    def faster(*arguments: object) -> Times:
        times = times_of(*arguments)
        count, free = len(times.units), LinearTime(0.0, 0.0)
        return times._replace(float_us=[2.0] * count, int8_us=[1.0] * count, crossing=free)

    return faster


def test_static_int8_leaves_a_share_of_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three convolutions that int8 makes faster, the one with an outlier stays in float."""
    monkeypatch.setattr(node_times, "_SECONDS", 0.0)
    monkeypatch.setattr(by_time, "times_of", _all_faster(by_time.times_of))
    weights = {name: normal(i, 4, 4, 1, 1) for i, name in enumerate("uvw")}
    weights["v"][0, 0] = 500
    weights["w"][:, 0] = 0  # what the outlier fills is not used
    source = save_onnx(
        tmp_path / "source.onnx",
        "[a] a = Conv (x, u) [b] b = Conv (a, v) [c] y = Conv (b, w)",
        weights,
        x="float[2,4,6,6] x",
        y="float[2,4,6,6] y",
    )
    shared, counts = Intermediates(), []
    for left in (100, 50):
        target = tmp_path / f"{left}.onnx"
        feeds = [{"x": normal(5, 2, 4, 6, 6)}]
        int8.static(source, target, feeds, shared=shared, slow_in_float=True, error_left=left)
        nodes = onnx.load(target).graph.node
        made = {name: node.op_type for node in nodes for name in node.output}
        convolutions = [node for node in nodes if node.op_type == "Conv"]
        counts.append(sum(made.get(n.input[1]) == "DequantizeLinear" for n in convolutions))
    assert counts[0] == 3
    assert 0 < counts[1] < 3


def test_a_file_without_int8_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each convolution alone has a larger error than may be left."""
    monkeypatch.setattr(node_times, "_SECONDS", 0.0)
    monkeypatch.setattr(by_time, "times_of", _all_faster(by_time.times_of))
    monkeypatch.setattr(by_error, "squared_errors", lambda *given: [1.0] * len(given[3]))
    source, feeds = write("cnn", tmp_path)
    with pytest.raises(StepRefusedError, match="leaves so little of the error"):
        int8.static(source, tmp_path / "q.onnx", feeds, slow_in_float=True, error_left=3)


def test_models_that_differ_in_names_are_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most pre-passes leave most models as they are but for names."""
    monkeypatch.setattr(node_times, "_SECONDS", 0.0)
    counted: list[int] = []
    times_of = _all_faster(by_time.times_of)

    def counting(*given: object) -> Times:
        counted.append(1)
        return times_of(*given)

    monkeypatch.setattr(by_time, "times_of", counting)
    weights = {"w": normal(0, 4, 4, 1, 1)}
    shapes = {"x": "float[2,4,6,6] x", "y": "float[2,4,6,6] y"}
    first, same, other = (
        "a = Conv (x, w) y = Relu (a)",
        "b = Conv (x, w) y = Relu (b)",
        "y = Conv (x, w)",
    )
    of_model = tmp_path / "model"
    of_model.mkdir()
    for i, body in enumerate([first, same, other]):
        source = save_onnx(tmp_path / f"{i}.onnx", body, weights, **shapes)
        (tmp_path / f"{i}").mkdir()
        shared = Intermediates(tmp_path / f"{i}", of_model)
        feeds = [{"x": normal(5, 2, 4, 6, 6)}]
        int8.static(source, tmp_path / "q.onnx", feeds, shared=shared, slow_in_float=True)
    assert len(counted) == 2
