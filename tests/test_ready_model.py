"""The float model that the quantisation tools get answers as its source does."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from factories import normal, onnx_model, save_onnx
from made_files import error_of, make, run
from onnx import helper

from autotune.facts.feeds import Feed
from autotune.facts.graphs import operator_of
from autotune.graph import ready_model
from autotune.graph.dead_products import proven_constants
from autotune.graph.entries import StepRefusedError

pytestmark = pytest.mark.filterwarnings("ignore")

_ROWS: list[Feed] = [{"x": normal(seed, 4, 32)} for seed in range(4)]
_MATRICES: dict[str, Any] = {
    "w": normal(0, 32, 64) / 4,
    "t": normal(0, 64, 32) / 4,
    "v": normal(1, 64, 16) / 4,
    "d": normal(2, 16),
}


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("gemm", "bias"),
    [
        ("Gemm <transB = 1, alpha = 0.5, beta = 2.0> (x, t, c)", normal(3, 64)),
        ("Gemm <beta = 2.0> (x, w, c)", normal(3, 1, 64)),
        ("Gemm <alpha = 0.5> (x, w, c)", np.array(0.7, np.float32)),
        ("Gemm (x, w, c)", normal(3, 1)),
        ("Gemm <beta = 0.5> (x, w, c)", normal(3, 4, 1)),
        ("Gemm <beta = 3.0> (x, w, c)", normal(3, 4, 64)),
    ],
)
def test_the_factors_and_the_bias_of_a_gemm_count(
    gemm: str, bias: np.ndarray, per_channel: bool, tmp_path: Path
) -> None:
    """The tools drop beta, and take every bias for a vector."""
    model = onnx_model(
        f"a = {gemm} b = Tanh(a) y = Gemm(b, v, d)",
        {**_MATRICES, "c": bias},
        x="float[4,32] x",
        y="float[4,16] y",
    )
    made = make(model, tmp_path, _ROWS, precision="int8_static", per_channel=per_channel)
    assert error_of(model, made, _ROWS) < 0.05
    types = [operator_of(node) for node in onnx.load(made).graph.node]
    assert types.count("Gemm") == 2
    assert "QuantizeLinear" in types


def test_an_output_that_a_relu_takes_keeps_its_negative_numbers(tmp_path: Path) -> None:
    model = onnx_model(
        "a = MatMul(x, w) r = Relu(a) y = MatMul(r, v)",
        _MATRICES,
        x="float[4,32] x",
        y="float[4,16] y, float[4,64] a",
    )
    made = make(model, tmp_path, _ROWS, precision="int8_static")
    assert error_of(model, made, _ROWS) < 0.05
    assert [item.name for item in onnx.load(made).graph.output] == ["y", "a"]


@pytest.mark.parametrize("calibration", ["minmax", "percentile"])
def test_names_that_tools_invent_may_be_taken(calibration: str, tmp_path: Path) -> None:
    """Inputs, outputs and tensors are called what the tools append to others."""
    model = onnx_model(
        "x_scale = Gemm(x, w, w_scale) x_quantized = Relu(x_scale) "
        "x_ReduceMin = Gemm(x_quantized, v, x_zero_point) y = Add(x_ReduceMin, x_QuantizeLinear)",
        {
            "w": _MATRICES["w"],
            "v": _MATRICES["v"],
            "w_scale": normal(4, 64),
            "x_zero_point": normal(5, 16),
        },
        x="float[4,32] x, float[4,16] x_QuantizeLinear",
        y="float[4,16] y, float[4,64] x_scale",
    )
    feeds: list[Feed] = [
        {"x": normal(seed, 4, 32), "x_QuantizeLinear": normal(seed + 9, 4, 16)} for seed in range(4)
    ]
    for precision in ("int8_static", "int8_dynamic"):
        options = {"calibration": calibration} if precision == "int8_static" else {}
        made = make(model, tmp_path, feeds, precision=precision, per_channel=True, **options)
        assert error_of(model, made, feeds) < 0.1
        graph = onnx.load(made).graph
        assert [item.name for item in graph.input] == ["x", "x_QuantizeLinear"]
        assert not any(name.startswith("autotune") for n in graph.node for name in n.output[:0])


def test_copies_of_a_shared_bias_take_no_name_of_a_tensor(tmp_path: Path) -> None:
    """ONNX Runtime's tools call them by the bias's name and a number: 91 is none of bias 9."""
    products = ["a0 = Gemm(x, w0, b)", *(f"a{i} = Gemm(a{i - 1}, w{i}, b)" for i in range(1, 12))]
    weights = {f"w{i}": normal(i, 8, 8) for i in range(12)} | {"b": normal(99, 8)}
    model = onnx_model(" ".join(products), weights, x="float[4,8] x", y="float[4,8] a11")
    onnx.save(model, tmp_path / "model.onnx")
    ready_model.make_ready(
        tmp_path / "model.onnx", tmp_path / "ready.onnx", [{"x": normal(1, 4, 8)}]
    )
    ready = onnx.load(tmp_path / "ready.onnx")
    names = ready_model.original_names(ready)
    assert "b" in names.values()
    assert not any(name[-1].isdigit() for name in names)
    # nor is a copy given the name of another tensor of the source
    copy = onnx.TensorProto()
    copy.CopyFrom(ready.graph.initializer[0])
    (neutral,) = (name for name, own in names.items() if own == "w1")
    copy.name = f"{neutral}1"
    ready.graph.initializer.append(copy)
    onnx.save(ready, tmp_path / "ready.onnx")
    ready_model.give_names(tmp_path / "ready.onnx", names)
    given = [item.name for item in onnx.load(tmp_path / "ready.onnx").graph.initializer]
    assert len(given) == len(set(given))


def _loop(opset: int) -> onnx.ModelProto:
    """Returns a Loop around an LSTM whose weights lie outside, and a product behind it."""
    body = helper.make_graph(
        [
            helper.make_node("Unsqueeze", ["row", "axis"], ["step"]),
            helper.make_node(
                "LSTM", ["step", "W", "R", "B", "", "h", "c"], ["", "h_out", "c_out"],
                hidden_size=16,
            ),
            helper.make_node("Squeeze", ["h_out", "axis"], ["flat"]),
            helper.make_node("MatMul", ["flat", "inside"], ["row_out"]),
            helper.make_node("Identity", ["going"], ["going_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("going", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("row", onnx.TensorProto.FLOAT, [1, 32]),
            helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [1, 1, 16]),
            helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, [1, 1, 16]),
        ],
        [
            helper.make_tensor_value_info("going_out", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("row_out", onnx.TensorProto.FLOAT, [1, 32]),
            helper.make_tensor_value_info("h_out", onnx.TensorProto.FLOAT, [1, 1, 16]),
            helper.make_tensor_value_info("c_out", onnx.TensorProto.FLOAT, [1, 1, 16]),
        ],
        [onnx.numpy_helper.from_array(normal(8, 16, 32), "inside")],
    )  # fmt: skip
    model = onnx_model(
        "y = MatMul(last, w)", {"w": normal(0, 32, 16)}, x="float[1,32] x", y="float[1,16] y",
        opset=opset,
    )  # fmt: skip
    loop = helper.make_node(
        "Loop", ["trips", "true", "x", "zero", "zero"], ["last", "h_last", "c_last"], body=body
    )
    product = onnx.NodeProto.FromString(model.graph.node[0].SerializeToString())
    del model.graph.node[:]
    model.graph.node.extend([loop, product])
    constants: dict[str, Any] = {
        "W": normal(1, 1, 64, 32) / 8, "R": normal(2, 1, 64, 16) / 8, "B": normal(3, 1, 128) / 8,
        "axis": np.array([0]), "trips": np.array(3), "true": np.array(True),
        "zero": np.zeros((1, 1, 16), np.float32),
    }  # fmt: skip
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in constants.items()
    )
    return model


def test_an_lstm_whose_weights_lie_outside_its_body_is_left_out_alone(tmp_path: Path) -> None:
    model = _loop(17)
    feeds: list[Feed] = [{"x": normal(seed, 1, 32)} for seed in range(2)]
    made = make(model, tmp_path, feeds, precision="int8_dynamic", reduce_range=True)
    assert error_of(model, made, feeds) < 0.1
    types = [operator_of(node) for node in onnx.load(made).graph.node]
    assert "MatMulInteger" in types


_OLD = {
    "Resize": ('r = Resize <mode = "linear"> (a, s)', [1, 8, 24, 24]),
    "nearest Resize": ("r = Resize (a, odd)", [1, 8, 18, 18]),
    "Upsample": ('r = Upsample <mode = "linear"> (a, s)', [1, 8, 24, 24]),
}


@pytest.mark.parametrize("name", _OLD)
def test_old_operators_mean_what_they_did(name: str, tmp_path: Path) -> None:
    """Raising the opset alone moves pixels by half of one, and takes another axis."""
    body, _ = _OLD[name]
    model = onnx_model(
        f"a = Conv(x, w) {body} y = Conv(r, v)",
        {
            "w": normal(0, 8, 3, 1, 1),
            "v": normal(1, 4, 8, 1, 1),
            "s": np.array([1, 1, 2, 2], np.float32),
            "odd": np.array([1, 1, 1.5, 1.5], np.float32),
        },
        x="float[1,3,12,12] x",
        opset=9 if name == "Upsample" else 10,
    )
    feeds: list[Feed] = [{"x": normal(seed, 1, 3, 12, 12)} for seed in range(2)]
    onnx.save(model, tmp_path / "source.onnx")
    (tmp_path / "ready").mkdir()
    ready_model.make_ready(tmp_path / "source.onnx", tmp_path / "ready" / "m.onnx", feeds)
    made = make(model, tmp_path, feeds, precision="int8_static", quantized_operators="conv")
    assert error_of(model, made, feeds) < 0.1


def test_a_float_model_that_answers_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of int8 is not spent on what a converter did."""
    raised = ready_model._raised

    def shifted(model: onnx.ModelProto) -> onnx.ModelProto:
        model = raised(model)
        weight = model.graph.initializer[0]
        array = onnx.numpy_helper.to_array(weight) * 1.01
        weight.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float32), weight.name))
        return model

    monkeypatch.setattr(ready_model, "_raised", shifted)
    model = onnx_model("y = MatMul(x, w)", _MATRICES, x="float[4,32] x", y="float[4,64] y")
    with pytest.raises(StepRefusedError, match="answers otherwise"):
        make(model, tmp_path, _ROWS, precision="int8_static")


def _residual(blocks: int, dead: set[int], bias: float) -> onnx.ModelProto:
    """Returns a residual network; the last convolution of some blocks is zero."""
    constants: dict[str, Any] = {"w0": normal(0, 8, 3, 3, 3) / 4}
    body = ["a0 = Conv<pads = [1, 1, 1, 1]>(x, w0) t0 = Relu(a0)"]
    for i in range(1, blocks + 1):
        constants[f"v{i}"] = normal(i, 8, 8, 3, 3) / 8
        constants[f"w{i}"] = normal(9 + i, 8, 8, 3, 3) / 8 * (i not in dead)
        constants[f"b{i}"] = normal(20 + i, 8) * (bias if i in dead else 1.0)
        body.append(
            f"p{i} = Conv<pads = [1, 1, 1, 1]>(t{i - 1}, v{i}) q{i} = Relu(p{i}) "
            f"r{i} = Conv<pads = [1, 1, 1, 1]>(q{i}, w{i}, b{i}) "
            f"s{i} = Add(t{i - 1}, r{i}) t{i} = Relu(s{i})"
        )
    body.append(f"y = GlobalAveragePool(t{blocks})")
    return onnx_model(" ".join(body), constants, x="float[1,3,12,12] x", y="float[1,8,1,1] y")


@pytest.mark.parametrize("bias", [0.0, 0.5])
def test_blocks_without_effect_are_no_reason_for_floats(bias: float, tmp_path: Path) -> None:
    """What a product of zeros gives is known for every input, and so is its range."""
    model = _residual(4, {2, 3}, bias)
    feeds: list[Feed] = [{"x": normal(seed, 1, 3, 12, 12)} for seed in range(3)]
    made = make(model, tmp_path, feeds, precision="int8_static")
    assert error_of(model, made, feeds) < 0.05
    graph = onnx.load(made).graph
    producers = {name: node for node in graph.node for name in node.output}
    convolutions = [node for node in graph.node if operator_of(node) == "Conv"]
    assert len(convolutions) == 9
    assert all(operator_of(producers[n.input[0]]) == "DequantizeLinear" for n in convolutions)


def test_what_constants_prove_stays_and_what_was_seen_once_does_not(tmp_path: Path) -> None:
    """A product of zeros is 0 for every input; a mask was 0 in these samples."""
    model = onnx_model(
        "a = MatMul(x, w) z = MatMul(x, zeros) r = Relu(z) c = Concat<axis = 1>(a, r) "
        "m = Add(c, mask) s = Softmax(m) y = MatMul(s, v)",
        {"w": normal(0, 32, 32), "zeros": np.zeros((32, 32), np.float32), "v": _MATRICES["v"]},
        x="float[4,32] x, float[4,64] mask",
        y="float[4,16] y",
    )
    assert {"z", "r"} <= proven_constants(model.graph)
    assert "m" not in proven_constants(model.graph)
    feeds: list[Feed] = [
        {"x": normal(seed, 4, 32), "mask": np.zeros((4, 64), np.float32)} for seed in range(3)
    ]
    made = make(model, tmp_path, feeds, precision="int8_static")
    hidden = np.where(np.arange(64) % 3, 0, -50).astype(np.float32)
    masked = [{**feed, "mask": np.tile(hidden, (4, 1))} for feed in feeds]
    assert error_of(model, made, masked) < 0.2
    graph = onnx.load(made).graph
    dequantised = {n.output[0] for n in graph.node if operator_of(n) == "DequantizeLinear"}
    by_type = {operator_of(node): node for node in graph.node}
    assert dequantised.issuperset(by_type["Concat"].input)
    assert "mask" in by_type["Add"].input


@pytest.mark.parametrize("transposed", [False, True])
def test_parts_of_unequal_ranges_are_joined_in_float(transposed: bool, tmp_path: Path) -> None:
    """Boxes in pixels beside scores up to 1: one scale for both would make every score 0."""
    tail = "y = Transpose<perm = [0, 2, 1]>(j)" if transposed else "y = Relu(j)"
    model = onnx_model(
        "f = Conv<pads = [1, 1, 1, 1]>(x, w) r = Relu(f) b = Conv(r, wb) s = Conv(r, ws) "
        "p = Sigmoid(s) q = Mul(b, pixels) c = Reshape(q, four) e = Reshape(p, eight) "
        f"j = Concat<axis = 1>(c, e) {tail}",
        {
            "w": normal(0, 8, 3, 3, 3) / 4,
            "wb": normal(1, 4, 8, 1, 1),
            "ws": normal(2, 8, 8, 1, 1),
            "pixels": 100.0,
            "four": np.array([1, 4, -1]),
            "eight": np.array([1, 8, -1]),
        },
        x="float[1,3,12,12] x",
    )
    feeds: list[Feed] = [{"x": normal(seed, 1, 3, 12, 12)} for seed in range(3)]
    made = make(model, tmp_path, feeds, precision="int8_static")
    (expected,), (actual,) = (run(path, feeds[0]) for path in (_saved(model, tmp_path), made))
    scores = (
        (slice(None), slice(None), slice(4, None)) if transposed else (slice(None), slice(4, None))
    )
    error = np.abs(expected[scores] - actual[scores]).max()
    assert error < 0.1
    assert np.ptp(actual[scores]) > 0.5


def test_columns_of_unequal_factors_are_multiplied_in_float(tmp_path: Path) -> None:
    model = onnx_model(
        "a = MatMul(x, w) s = Sigmoid(a) y = Mul(s, sizes)",
        {"w": normal(0, 32, 12) / 4, "sizes": np.array([640] * 4 + [1] * 8, np.float32)},
        x="float[4,32] x",
    )
    made = make(model, tmp_path, _ROWS, precision="int8_static")
    (expected,), (actual,) = (run(path, _ROWS[0]) for path in (_saved(model, tmp_path), made))
    assert np.abs(expected[:, 4:] - actual[:, 4:]).max() < 0.1
    assert np.ptp(actual[:, 4:]) > 0.5


def _saved(model: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(model, folder / "source.onnx")
    return folder / "source.onnx"


def test_features_of_unequal_ranges_stay_in_eight_bits(tmp_path: Path) -> None:
    """A product behind the Concat weighs its parts."""
    model = onnx_model(
        "a = MatMul(x, w) b = Mul(a, large) j = Concat<axis = 1>(a, b) y = MatMul(j, v)",
        {"w": normal(0, 32, 32), "large": 40.0, "v": _MATRICES["v"]},
        x="float[4,32] x",
        y="float[4,16] y",
    )
    made = make(model, tmp_path, _ROWS, precision="int8_static")
    graph = onnx.load(made).graph
    dequantised = {n.output[0] for n in graph.node if operator_of(n) == "DequantizeLinear"}
    (joined,) = [node for node in graph.node if operator_of(node) == "Concat"]
    assert dequantised.issuperset(joined.input)
    assert error_of(model, made, _ROWS) < 0.1


def test_a_weight_that_is_an_output_keeps_its_type(tmp_path: Path) -> None:
    model = onnx_model(
        "y = MatMul(x, w)", _MATRICES, x="float[4,32] x", y="float[4,64] y, float[32,64] w"
    )
    for half in ({"precision": "fp16"}, {"precision": "int8_static"}, {"pre_pass": "algebra"}):
        made = make(model, tmp_path, _ROWS, **half)
        assert error_of(model, made, _ROWS) < 0.05


def test_what_is_quantised_already_keeps_its_scales_in_half_precision(tmp_path: Path) -> None:
    model = onnx_model(
        "w = DequantizeLinear(w8, s) y = MatMul(x, w)",
        {"w8": np.arange(-64, 64, dtype=np.int8).reshape(32, 4), "s": 0.01},
        x="float[4,32] x",
        y="float[4,4] y",
    )
    assert error_of(model, make(model, tmp_path, _ROWS, precision="fp16"), _ROWS) < 0.05


def test_a_sequence_is_compared_as_well(tmp_path: Path) -> None:
    """What overflows in halves, or gets another type, reaches the caller in a sequence."""
    model = onnx_model(
        "a = MatMul(x, w) y = Mul(a, small) z = SequenceConstruct(y)",
        {"w": np.full((4, 4), 5, np.float32), "small": 1e-5},
        x="float[1,4] x",
    )
    kind = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    del model.graph.output[:]
    model.graph.output.append(helper.make_value_info("z", helper.make_sequence_type_proto(kind)))
    feeds: list[Feed] = [{"x": np.full((1, 4), 3e4, np.float32)}] * 2
    with pytest.raises(StepRefusedError, match="no mixture of precisions"):
        make(model, tmp_path, feeds, precision="fp16_mixed")


def test_a_tensor_whose_values_hardly_differ_is_calibrated(tmp_path: Path) -> None:
    """No histogram has as many bins as there are numbers between its extremes."""
    model = onnx_model(
        "a = MatMul(x, w) b = Mul(a, tiny) c = Add(b, thousand) d = MatMul(c, v) "
        "e = MatMul(a, v) y = Add(d, e)",
        {"w": _MATRICES["w"], "v": _MATRICES["v"], "tiny": 1e-6, "thousand": 1000.0},
        x="float[4,32] x",
        y="float[4,16] y",
    )
    made = make(model, tmp_path, _ROWS, precision="int8_static", calibration="percentile")
    assert error_of(model, made, _ROWS) < 0.1


@pytest.mark.parametrize("is_constant", [False, True])
def test_scores_beside_a_large_mask_stay_in_float(is_constant: bool, tmp_path: Path) -> None:
    """One scale for a sum with -10,000 would leave the scores no digit."""
    mask = np.tile(np.where(np.arange(64) % 3, 0, -1e4), (4, 1)).astype(np.float32)
    model = onnx_model(
        "a = MatMul(x, w) m = Add(a, mask) s = Softmax(m) y = MatMul(s, v)",
        {"w": _MATRICES["w"], "v": _MATRICES["v"], **({"mask": mask} if is_constant else {})},
        x="float[4,32] x" if is_constant else "float[4,32] x, float[4,64] mask",
        y="float[4,16] y",
    )
    if not is_constant:
        del model.graph.initializer[2:]
    feeds: list[Feed] = [{**feed, **({} if is_constant else {"mask": mask})} for feed in _ROWS]
    made = make(model, tmp_path, feeds, precision="int8_static")
    assert error_of(model, made, feeds) < 0.1


def test_names_of_a_source_may_be_those_of_ours(tmp_path: Path) -> None:
    """As where the source is a file that was quantised here before."""
    ours = ["autotune_0_", "autotune_1_", "autotune_0__scale", "autotune_1__scale", "autotune_2_"]
    body = " ".join(f"{new} = Relu({old})" for old, new in zip(["a", *ours], ours, strict=False))
    path = save_onnx(tmp_path / "m.onnx", body, x="float[2] a", y="float[2] autotune_2_")
    source = {"autotune_0_": "x", "autotune_1_": "autotune_0_", "autotune_2_": "x_scale"}
    ready_model.give_names(path, source)
    made = [node.output[0] for node in onnx.load(path).graph.node]
    assert len(set(made)) == len(ours)
    assert made[0::4] == ["x", "x_scale"]
