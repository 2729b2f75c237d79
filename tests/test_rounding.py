"""Weights as ONNX Runtime rounds them; clipping and correction do what their names say."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import distance, write

from autotune.facts.feeds import Feed
from autotune.graph import channels, int8, rounding, sensitivity

pytestmark = pytest.mark.filterwarnings("ignore")

_CHANCE = np.random.default_rng(6)


@pytest.fixture(autouse=True)
def _same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test draws the same numbers, whichever tests ran before it."""
    monkeypatch.setitem(globals(), "_CHANCE", np.random.default_rng(6))


def _product(path: Path, size: int = 24, channels: int = 6) -> tuple[list[Feed], np.ndarray]:
    """Writes a MatMul with a bias behind it; returns samples with a mean, and the weight."""
    chance = np.random.default_rng(7)
    weight = chance.standard_t(3, (size, channels)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["p"], "product"),
            helper.make_node("Add", ["p", "b"], ["y"], "sum"),
        ],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [50, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [50, channels])],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.zeros(channels, np.float32), "b"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    feeds: list[Feed] = [
        {"x": (chance.standard_normal((50, size)) + 4).astype(np.float32)} for _ in range(4)
    ]
    return feeds, weight


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("reduce_range", "unsigned"), [(False, False), (True, False), (False, True)]
)
def test_weights_are_rounded_as_onnx_runtime_does(
    tmp_path: Path, per_channel: bool, reduce_range: bool, unsigned: bool
) -> None:
    """The integers in the quantised file, times their scales, are the rounded weight."""
    feeds, weight = _product(tmp_path / "source.onnx")
    target = tmp_path / "int8.onnx"
    int8.static(
        tmp_path / "source.onnx",
        target,
        feeds,
        per_channel=per_channel,
        reduce_range=reduce_range,
        unsigned_weights=unsigned,
        quantized_operators="products",
    )
    values = {i.name: numpy_helper.to_array(i) for i in onnx.load(target).graph.initializer}
    integers = values["w_quantized"].astype(np.float32) - values["w_zero_point"]
    assert values["w_quantized"].dtype == (np.uint8 if unsigned else np.int8)
    written = integers * values["w_scale"]
    rounded = rounding.round_weight(
        weight, 1 if per_channel else None, reduce_range=reduce_range, unsigned=unsigned
    )
    np.testing.assert_allclose(written, rounded, atol=1e-5)


def test_clipping_lowers_the_squared_error(tmp_path: Path) -> None:
    """Weights with long tails are nearer to what they were, once they are rounded."""
    source = tmp_path / "source.onnx"
    _, weight = _product(source, 64, 64)
    model = onnx.load(source)
    sensitivity.name_nodes(model)
    names = sensitivity.quantisable(model)
    rounding.clip(model, names, per_channel=False, reduce_range=True)
    (clipped,) = [numpy_helper.to_array(i) for i in model.graph.initializer if len(i.dims) == 2]
    assert np.abs(clipped).max() < np.abs(weight).max()

    def squared_error(of: np.ndarray) -> float:
        rounded = rounding.round_weight(of, None, reduce_range=True)
        return float(((rounded - weight) ** 2).sum())

    assert squared_error(clipped) < squared_error(weight)


@pytest.mark.parametrize("kind", ["cnn", "transformer"])
def test_the_float_error_of_clipping_is_small(tmp_path: Path, kind: str) -> None:
    """Clipping changes the float answers by a few hundredths at most."""
    source, feeds = write(kind, tmp_path)
    model = onnx.load(source)
    sensitivity.name_nodes(model)
    names = sensitivity.quantisable(model)
    rounding.clip(model, names, per_channel=False, reduce_range=True)
    onnx.save(model, tmp_path / "clipped.onnx")
    assert distance(source, tmp_path / "clipped.onnx", feeds) < 0.05


def test_only_what_is_quantised_is_clipped() -> None:
    """A node in float keeps its weight; those that share a clipped one go on to share it."""
    weight = np.random.default_rng(0).standard_t(3, (16, 16)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", [x, "w"], [y], y)
        for x, y in (("x", "a"), ("a", "b"), ("b", "c"))
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 16]) for name in "xc"]
    graph = helper.make_graph(
        nodes, "shared", values[:1], values[1:], [numpy_helper.from_array(weight, "w")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    rounding.clip(model, ["a", "b"], per_channel=True, reduce_range=True)
    first, second, third = (node.input[1] for node in model.graph.node)
    assert first == second != third == "w"
    assert len(model.graph.initializer) == 2


def _mean_shift(source: Path, target: Path, feeds: list[Feed]) -> float:
    means = [
        np.mean([sensitivity.open_exactly(str(path)).run(None, dict(f))[0] for f in feeds], (0, 1))
        for path in (source, target)
    ]
    return float(np.abs(means[0] - means[1]).max())


def test_corrected_biases_take_the_shift_away(tmp_path: Path) -> None:
    """With inputs that have a mean, rounded weights move the mean output less than before."""
    source, target = tmp_path / "source.onnx", tmp_path / "int8.onnx"
    feeds, _ = _product(source)
    shifts = []
    for corrected in (False, True):
        int8.static(
            source,
            target,
            feeds,
            bias_corrected=corrected,
            reduce_range=True,
            quantized_operators="products",
        )
        shifts.append(_mean_shift(source, target, feeds))
    assert shifts[1] < shifts[0] / 2


def _convolution(group: int, path: Path) -> list[Feed]:
    weight = _CHANCE.standard_normal((8, 8 // group, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv", group=group)
    graph = helper.make_graph(
        [node],
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 9, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 7, 7])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    means = np.arange(8).reshape(1, 8, 1, 1)
    return [{"x": np.broadcast_to(means, (1, 8, 9, 9)).astype(np.float32)}]


@pytest.mark.parametrize("group", [1, 8])
def test_a_convolution_gets_the_bias_that_it_lacks(tmp_path: Path, group: int) -> None:
    """For constant inputs the corrected float model differs by exactly what rounding adds."""
    source, target = tmp_path / "source.onnx", tmp_path / "corrected.onnx"
    feeds = _convolution(group, source)
    model = onnx.load(source)
    inputs = channels.from_json(channels.measure(model, feeds))
    rounding.correct_bias(model, inputs, {"conv"}, per_channel=True, reduce_range=True)
    weight = numpy_helper.to_array(model.graph.initializer[0])
    rounded = np.asarray(rounding.round_weight(weight, 0, reduce_range=True), np.float32)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(rounded, "w"))
    onnx.save(model, target)
    assert distance(source, target, feeds) < 1e-5


def test_a_bias_that_others_use_stays(tmp_path: Path) -> None:
    """A product whose output goes two ways has no bias of its own."""
    source = tmp_path / "source.onnx"
    feeds, _ = _product(source)
    model = onnx.load(source)
    model.graph.output.append(helper.make_tensor_value_info("p", TensorProto.FLOAT, [50, 6]))
    before = model.SerializeToString()
    inputs = channels.from_json(channels.measure(model, feeds))
    rounding.correct_bias(model, inputs, {"product"}, per_channel=False, reduce_range=False)
    assert model.SerializeToString() == before
