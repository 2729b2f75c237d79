"""Fewer bits: right within a limit, careful by itself, or a refusal that says why."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import BUILDERS, applies, distance, write

from autotune.facts.feeds import Feed
from autotune.graph import precision
from autotune.graph.entries import StepRefusedError

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]

# All operators in eight bits are often too much; the study's error limit finds that out.
_FAR = 3.0
_DYNAMIC_PRODUCTS = {"matrix_products": "int8_dynamic"}
_PACKED_PRODUCTS = {"matrix_products": "int8_weights"}
_STEPS: list[tuple[Callable[..., None], dict[str, Any], float]] = [
    (precision.int8_static, {}, _FAR),
    (precision.int8_static, {"per_channel": True, "quantized_operators": "products"}, 0.3),
    (precision.int8_static, {"per_channel": True, "calibration": "percentile"}, _FAR),
    (precision.int8_static, {"calibration": "entropy"}, _FAR),
    (precision.int8_static, {"symmetric": True, "reduce_range": True}, _FAR),
    (precision.int8_static, {"quantized_operators": "matmul", "kept_in_float": 1}, 0.3),
    (precision.int8_static, {"quantized_operators": "products", "float_outputs": True}, 0.3),
    (precision.int8_static, {"quantized_operators": "products", "smoothing": "0.5"}, 0.5),
    (precision.int8_static, {"equalized": True, "clipped": True, "bias_corrected": True}, _FAR),
    (precision.int8_static, {"quantized_operators": "conv", **_DYNAMIC_PRODUCTS}, 0.3),
    (precision.int8_static, {"quantized_operators": "conv", **_PACKED_PRODUCTS}, 0.3),
    (precision.int8_dynamic, {"per_channel": True, "smoothing": "0.7", "clipped": True}, 0.3),
    (precision.int8_dynamic, {"per_channel": True}, 0.3),
    (precision.int8_dynamic, {"reduce_range": True, "kept_in_float": 2}, 0.3),
    (precision.int8_static, {"unsigned_weights": True, "per_channel": True}, _FAR),
    (precision.int8_static, {"quantized_operators": "products", "unsigned_weights": True}, 0.3),
    (precision.int8_dynamic, {"per_channel": True, "unsigned_weights": True}, 0.3),
    (precision.int8_static, {"kept_in_float": 2, "ranking": "nodes"}, _FAR),
    (precision.int8_dynamic, {"kept_in_float": 2, "ranking": "nodes"}, 0.3),
    (precision.weight_only, {"kept_in_float": 1, "ranking": "nodes"}, 0.1),
    (precision.int8_static, {"calibration": "percentile_99.9"}, _FAR),
    (precision.int8_static, {"calibration": "least_squares"}, _FAR),
    (precision.weight_only, {"bits": 8}, 0.1),
    (precision.weight_only, {"bits": 4, "block_size": 16, "accuracy_level": 0}, 0.5),
    (precision.fp16, {}, 0.05),
    (precision.fp16_mixed, {"max_error": 0.02}, 0.03),
]


@pytest.mark.parametrize("kind", BUILDERS)
@pytest.mark.parametrize(
    ("step", "options", "limit"),
    _STEPS,
    ids=[f"{step.__name__}-{'-'.join(map(str, options))}" for step, options, _ in _STEPS],
)
def test_a_precision_is_right_or_refused(
    tmp_path: Path, kind: str, step: Callable[..., None], options: dict[str, Any], limit: float
) -> None:
    """Every precision yields a model that loads and is right within its limit, or says no."""
    source, feeds = write(kind, tmp_path)
    target = tmp_path / "out" / "best.onnx"
    target.parent.mkdir()
    if not applies(lambda: step(source, target, feeds, **options)):
        return
    assert distance(source, target, feeds) < limit
    assert {file.name for file in target.parent.iterdir()} == {"best.onnx"}


class _Recording(Sequence[Feed]):
    """Samples that note that they were asked for."""

    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds = feeds
        self.asked = 0

    def __len__(self) -> int:
        return len(self._feeds)

    def __getitem__(self, index: Any) -> Any:
        return self._feeds[index]

    def __iter__(self) -> Iterator[Feed]:
        for feed in self._feeds:
            self.asked += 1
            yield feed


def _activation_scales(path: Path) -> list[float]:
    model = onnx.load(path)
    weights = {w.name: numpy_helper.to_array(w) for w in model.graph.initializer}
    nodes = [n for n in model.graph.node if n.op_type == "QuantizeLinear"]
    return [float(np.max(weights[n.input[1]])) for n in nodes]


def test_ranges_come_from_the_samples_given(tmp_path: Path) -> None:
    """Samples ten times as large make scales ten times as large; each is read."""
    source, feeds = write("cnn", tmp_path)
    target = tmp_path / "out.onnx"
    recorded = _Recording(feeds)
    precision.int8_static(source, target, recorded)
    assert recorded.asked == len(feeds)
    scales = _activation_scales(target)
    larger = [{name: 10 * np.asarray(a) for name, a in feed.items()} for feed in feeds]
    precision.int8_static(source, target, larger)
    assert _activation_scales(target)[0] == pytest.approx(10 * scales[0], rel=1e-3)


def test_a_sample_that_is_all_but_constant_does_not_end_a_histogram(tmp_path: Path) -> None:
    """The bins of the first sample would be far too fine for the second one."""
    source, feeds = write("cnn", tmp_path)
    target = tmp_path / "out.onnx"
    faint = {
        name: np.asarray(array, np.float32) * np.float32(1e-20) for name, array in feeds[0].items()
    }
    precision.int8_static(source, target, [faint, *feeds[1:]], calibration="percentile")
    assert target.is_file()


def test_nodes_stay_in_float(tmp_path: Path) -> None:
    """So many products keep their float weights, the first ones of the ranking."""
    source, feeds = write("transformer", tmp_path)
    target = tmp_path / "out.onnx"

    def products(path: Path) -> int:
        return sum(n.op_type == "MatMulInteger" for n in onnx.load(path).graph.node)

    precision.int8_dynamic(source, target, feeds)
    every = products(target)
    assert every > 3
    precision.int8_dynamic(source, target, feeds, kept_in_float=3)
    assert products(target) == every - 3


@pytest.mark.parametrize("kind", BUILDERS)
def test_exact_products_open_every_model(tmp_path: Path, kind: str) -> None:
    """The session option for exact products takes what static int8 of all operators writes."""
    source, feeds = write(kind, tmp_path)
    target = tmp_path / "out.onnx"
    precision.int8_static(source, target, feeds)
    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry("session.x64quantprecision", "1")
    assert onnxruntime.InferenceSession(target, settings).run(None, dict(feeds[0]))


def test_float_outputs_are_not_rounded(tmp_path: Path) -> None:
    """The outputs of matrix products lose their eight bits, and the answers are nearer."""
    source, feeds = write("transformer", tmp_path)
    target = tmp_path / "out.onnx"
    errors, rounded = [], []
    for float_outputs in (False, True):
        precision.int8_static(
            source,
            target,
            feeds,
            quantized_operators="products",
            reduce_range=True,
            float_outputs=float_outputs,
        )
        nodes = onnx.load(target).graph.node
        products = {name for n in nodes if n.op_type in {"MatMul", "Gemm"} for name in n.output}
        rounds = [n for n in nodes if n.op_type == "QuantizeLinear" and n.input[0] in products]
        rounded.append(len(rounds))
        errors.append(distance(source, target, feeds))
    assert rounded[0] > rounded[1]
    assert errors[1] < errors[0]


def test_products_are_quantised_apart_from_convolutions(tmp_path: Path) -> None:
    """One model has convolutions in static int8 and its matrix product in another precision."""
    source, feeds = write("cnn", tmp_path)
    target = tmp_path / "out.onnx"
    operators = {}
    for products in ("float", "int8_dynamic"):
        precision.int8_static(
            source, target, feeds, quantized_operators="conv", matrix_products=products
        )
        operators[products] = {node.op_type for node in onnx.load(target).graph.node}
    assert "DequantizeLinear" in operators["float"]
    assert operators["int8_dynamic"] - operators["float"] >= {"MatMulInteger"}


def test_nodes_of_both_kinds_may_stay_in_float(tmp_path: Path) -> None:
    """Where products are quantised apart, they are among the nodes that can be kept."""
    source, feeds = write("cnn", tmp_path)
    target = tmp_path / "out.onnx"
    operators = set()
    for count in (0, 4):
        precision.int8_static(
            source,
            target,
            feeds,
            quantized_operators="conv",
            matrix_products="int8_dynamic",
            kept_in_float=count,
        )
        nodes = onnx.load(target).graph.node
        operators.add((count, sum(n.op_type in {"MatMulInteger", "MatMul"} for n in nodes)))
        assert distance(source, target, feeds) < 0.3
    # its only matrix product is the cheapest node, and stays as it was
    assert operators == {(0, 1), (4, 0)}


def test_unsigned_weights_do_not_saturate(tmp_path: Path) -> None:
    """Their products are exact on every processor, and weights keep eight bits."""
    source, feeds = write("transformer", tmp_path)
    target = tmp_path / "out.onnx"
    errors = {}
    for name in ("unsigned_weights", "reduce_range"):
        precision.int8_dynamic(source, target, feeds, per_channel=True, **{name: True})
        errors[name] = distance(source, target, feeds)
    assert errors["unsigned_weights"] < errors["reduce_range"]


@pytest.mark.parametrize("step", [precision.int8_dynamic, precision.int8_static])
def test_stacked_matrices_run_beside_scales_for_each_channel(
    tmp_path: Path, step: Callable[..., None]
) -> None:
    """ONNX Runtime has no product for such a weight with several scales: it stays in float."""
    chance = np.random.default_rng(0)
    weights = {
        "stack": chance.standard_normal((2, 16, 16)),
        "matrix": chance.standard_normal((16, 8)),
        "vector": chance.standard_normal(8),
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "stack"], ["a"], "stacked"),
            helper.make_node("MatMul", ["a", "matrix"], ["b"], "plain"),
            helper.make_node("MatMul", ["b", "vector"], ["y"], "pooled"),
        ],
        "stacked",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in weights.items()],
    )
    source, target = tmp_path / "source.onnx", tmp_path / "int8.onnx"
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), source)
    feeds: list[Feed] = [{"x": chance.standard_normal((2, 4, 16)).astype(np.float32)}]
    step(source, target, feeds, per_channel=True)
    assert distance(source, target, feeds) < 0.3


def test_an_old_opset_is_raised(tmp_path: Path) -> None:
    """Scales per channel need opset 13; a model of opset 11 gets it first."""
    weight = np.random.default_rng(2).standard_normal((8, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])],
        "old",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 6, 6])],
        [numpy_helper.from_array(weight, "w")],
    )
    source, target = tmp_path / "old.onnx", tmp_path / "out.onnx"
    old = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6)
    onnx.save(old, source)
    chance = np.random.default_rng(3)
    feeds = [{"x": chance.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(3)]
    precision.int8_static(source, target, feeds, per_channel=True)
    assert max(item.version for item in onnx.load(target).opset_import) >= 13
    assert distance(source, target, feeds) < 0.5


def test_what_has_no_weights_is_refused(tmp_path: Path) -> None:
    """Where there is nothing to quantise the refusal says so."""
    node = helper.make_node("MatMul", ["a", "b"], ["c"])
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in "abc"]
    graph = helper.make_graph([node], "no weights", values[:2], values[2:])
    source = tmp_path / "source.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, source)
    feed = {"a": np.ones((4, 4), np.float32), "b": np.ones((4, 4), np.float32)}
    for step in (precision.int8_static, precision.int8_dynamic, precision.weight_only):
        with pytest.raises(StepRefusedError, match="there is no"):
            step(source, tmp_path / "out.onnx", [feed])
