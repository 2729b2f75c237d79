"""Fewer bits: right within a limit, or refused with a reason."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from factories import normal, save_onnx
from onnx import TensorProto, numpy_helper
from small_models import distance, write

from autotune.facts.feeds import Feed
from autotune.graph import fp16, int8, weight_only
from autotune.graph.entries import StepRefusedError

pytestmark = pytest.mark.filterwarnings("ignore")


def _packed(source: Path, target: Path, _: Sequence[Feed], **options: Any) -> None:
    weight_only.quantise(source, target, **options)


def _halved(source: Path, target: Path, _: Sequence[Feed]) -> None:
    fp16.half(source, target)


_CHANNELS = {"per_channel": True}
_CONV = {"quantized_operators": "conv"}
_PRODUCTS = {"quantized_operators": "products"}
_EVERY_PRODUCT = {"smoothing": "0.5", "float_outputs": True, **_PRODUCTS}
_KEPT = {"kept_in_float": 2}
_RIGHT: list[tuple[Callable[..., None], str, dict[str, Any], float]] = [
    (int8.static, "cnn", {}, 0.1),
    (int8.static, "transformer", {"calibration": "percentile"}, 0.1),
    (int8.static, "lstm", {}, 0.02),
    (int8.static, "cnn", {"calibration": "percentile", **_CHANNELS}, 0.1),
    (int8.static, "transformer", {"symmetric": True, "reduce_range": True}, 0.1),
    (int8.static, "transformer", {"quantized_operators": "matmul"}, 0.1),
    (int8.static, "transformer", _EVERY_PRODUCT, 0.1),
    (int8.static, "cnn", {"unsigned_weights": True, **_CHANNELS}, 0.1),
    (int8.static, "cnn", _KEPT, 0.1),
    (int8.dynamic, "transformer", {"smoothing": "0.7", **_CHANNELS}, 0.1),
    (int8.dynamic, "transformer", {"reduce_range": True, **_KEPT}, 0.1),
    (int8.dynamic, "lstm", {"unsigned_weights": True, **_CHANNELS}, 0.02),
    (_packed, "transformer", {"bits": 8}, 0.05),
    (_packed, "lstm", {"bits": 4, "block_size": 16, "accuracy_level": 0}, 0.1),
    (_halved, "transformer", {}, 0.01),
    (_halved, "lstm", {}, 0.01),
    (fp16.mixed, "cnn", {"max_error": 0.002}, 0.002),
]
_REFUSED: list[tuple[Callable[..., None], str, dict[str, Any], str]] = [
    (int8.static, "transformer", _CONV, "no node of these types"),
    (int8.static, "lstm", _KEPT, "no node left that can be quantised"),
    (int8.dynamic, "cnn", _KEPT, "no matrix product or LSTM"),
]


def _names(cases: Sequence[tuple[Callable[..., None], str, dict[str, Any], Any]]) -> list[str]:
    return [
        "-".join([f"{step.__module__.split('.')[-1]}.{step.__name__}", kind, *options])
        for step, kind, options, _ in cases
    ]


@pytest.mark.parametrize(("step", "kind", "options", "limit"), _RIGHT, ids=_names(_RIGHT))
def test_a_precision_is_right(
    tmp_path: Path, kind: str, step: Callable[..., None], options: dict[str, Any], limit: float
) -> None:
    source, feeds = write(kind, tmp_path)
    target = tmp_path / "out" / "best.onnx"
    target.parent.mkdir()
    step(source, target, feeds, **options)
    # an error of 0 is that of a model in which nothing became smaller
    assert 0 < distance(source, target, feeds) < limit
    assert {file.name for file in target.parent.iterdir()} == {"best.onnx"}


@pytest.mark.parametrize(("step", "kind", "options", "reason"), _REFUSED, ids=_names(_REFUSED))
def test_a_precision_without_work_is_refused(
    tmp_path: Path, kind: str, step: Callable[..., None], options: dict[str, Any], reason: str
) -> None:
    """A model that has nothing to quantise is no configuration of its own."""
    source, feeds = write(kind, tmp_path)
    with pytest.raises(StepRefusedError, match=reason):
        step(source, tmp_path / "out.onnx", feeds, **options)


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
    source, feeds = write("cnn", tmp_path)
    target = tmp_path / "out.onnx"
    recorded = _Recording(feeds)
    int8.static(source, target, recorded)
    assert recorded.asked == len(feeds)
    scales = _activation_scales(target)
    larger = [{name: 10 * np.asarray(a) for name, a in feed.items()} for feed in feeds]
    int8.static(source, target, larger)
    assert _activation_scales(target)[0] == pytest.approx(10 * scales[0], rel=1e-3)


@pytest.mark.parametrize("calibration", ["minmax", "percentile"])
def test_padding_stays_hidden_where_no_sample_had_any(tmp_path: Path, calibration: str) -> None:
    """What the mask adds was 0 in all samples, and no range of it would hold another number."""
    source, feeds = write("transformer", tmp_path)
    int8.static(source, tmp_path / "out.onnx", feeds, calibration=calibration)
    padded = [{name: np.pad(a, [(0, 0), (0, 8)]) for name, a in feed.items()} for feed in feeds]
    assert distance(source, tmp_path / "out.onnx", padded) < 0.3


def test_a_sample_that_is_all_but_constant_does_not_end_a_histogram(tmp_path: Path) -> None:
    """The bins of the first sample would be far too fine for the second one."""
    source, feeds = write("cnn", tmp_path)
    target = tmp_path / "out.onnx"
    faint = {
        name: np.asarray(array, np.float32) * np.float32(1e-20) for name, array in feeds[0].items()
    }
    int8.static(source, target, [faint, *feeds[1:]], calibration="percentile")
    assert target.is_file()


def test_an_overflow_keeps_no_product_in_fp32(tmp_path: Path) -> None:
    """A power between products is beyond halves; the products beside it are not.

    ONNX Runtime runs the power in fp32 on a CPU, also in a model in halves: it overflows elsewhere.
    """
    source, target = tmp_path / "source.onnx", tmp_path / "mixed.onnx"
    save_onnx(
        source,
        "[first] a = MatMul (x, w0) [enlarge] b = Mul (a, large) [power] c = Pow (b, two) "
        "[reduce] d = Mul (c, small) [last] y = MatMul (d, w1)",
        {
            "w0": normal(0, 16, 16) / 4,
            "w1": normal(1, 16, 16) / 4,
            "large": 1000.0,
            "two": 2.0,
            "small": 1e-6,
        },
        x="float[4,16] x",
        y="float[4,16] y",
    )
    feeds: list[Feed] = [{"x": normal(2, 4, 16)}]
    model = onnx.load(source)
    errors = fp16.errors_of_halves(model, ["x", "a", "b", "c", "d", "y"], feeds)
    assert set(fp16.rank(model, errors)[:2]) == {"power", "reduce"}
    fp16.mixed(source, target, feeds, max_error=1e-2)
    assert distance(source, target, feeds) < 1e-2
    written = onnx.load(target).graph
    halves = {i.name for i in written.initializer if i.data_type == TensorProto.FLOAT16}
    assert {"w0", "w1"} <= halves
    assert "two" not in halves


def test_no_node_stays_in_fp32_where_halves_hold_all(tmp_path: Path) -> None:
    """The file is that of fp16, so a study measures one of the two."""
    source = tmp_path / "source.onnx"
    save_onnx(
        source,
        "a = Add (x, offset) b = Sub (a, offset) y = MatMul (b, w)",
        {"offset": 8.0, "w": normal(0, 16, 16)},
        x="float[4,16] x",
        y="float[4,16] y",
    )
    feeds: list[Feed] = [{"x": normal(2, 4, 16)}]
    fp16.mixed(source, tmp_path / "mixed.onnx", feeds)
    fp16.half(source, tmp_path / "half.onnx")
    assert (tmp_path / "mixed.onnx").read_bytes() == (tmp_path / "half.onnx").read_bytes()


def test_nodes_stay_in_float(tmp_path: Path) -> None:
    source, feeds = write("transformer", tmp_path)
    target = tmp_path / "out.onnx"

    def products(path: Path) -> int:
        return sum(n.op_type == "MatMulInteger" for n in onnx.load(path).graph.node)

    int8.dynamic(source, target, feeds)
    every = products(target)
    assert every > 3
    int8.dynamic(source, target, feeds, kept_in_float=3)
    assert products(target) == every - 3


def test_float_outputs_are_not_rounded(tmp_path: Path) -> None:
    source, feeds = write("transformer", tmp_path)
    # the model takes the mean over all tokens, in which the rounding of many vanishes
    feeds = tuple({name: array[:, :1] for name, array in feed.items()} for feed in feeds)
    target = tmp_path / "out.onnx"
    errors, rounded = [], []
    for float_outputs in (False, True):
        int8.static(
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


def test_unsigned_weights_do_not_saturate(tmp_path: Path) -> None:
    """Their products are exact on every processor, and weights keep eight bits."""
    source, feeds = write("transformer", tmp_path)
    target = tmp_path / "out.onnx"
    errors = {}
    for name in ("unsigned_weights", "reduce_range"):
        options: dict[str, Any] = {name: True}
        int8.dynamic(source, target, feeds, per_channel=True, **options)
        errors[name] = distance(source, target, feeds)
    assert errors["unsigned_weights"] < errors["reduce_range"]


@pytest.mark.parametrize("step", [int8.dynamic, int8.static])
def test_stacked_matrices_run_beside_scales_for_each_channel(
    tmp_path: Path, step: Callable[..., None]
) -> None:
    """ONNX Runtime has no product for such a weight with several scales: it stays in float.

    It is none of the nodes that are kept there for their error.
    """
    source = save_onnx(
        tmp_path / "source.onnx",
        "a = MatMul (x, stack) b = MatMul (a, matrix) y = MatMul (b, vector)",
        {"stack": normal(0, 2, 16, 16), "matrix": normal(1, 16, 8), "vector": normal(2, 8)},
        x="float[2,4,16] x",
        y="float[2,4] y",
    )
    feeds: list[Feed] = [{"x": normal(3, 2, 4, 16)}]
    step(source, tmp_path / "int8.onnx", feeds, per_channel=True)
    assert distance(source, tmp_path / "int8.onnx", feeds) < 0.3
    with pytest.raises(StepRefusedError, match="quantise"):
        step(source, tmp_path / "none.onnx", feeds, per_channel=True, kept_in_float=1)


def test_an_old_opset_is_raised(tmp_path: Path) -> None:
    """Scales per channel need opset 13; a model of opset 11 gets it first."""
    source, target = tmp_path / "old.onnx", tmp_path / "out.onnx"
    weight = {"w": normal(2, 8, 3, 3, 3)}
    save_onnx(source, "c = Conv (x, w) y = Relu (c)", weight, x="float[1,3,8,8] x", opset=11)
    feeds = [{"x": normal(seed, 1, 3, 8, 8)} for seed in range(3)]
    int8.static(source, target, feeds, per_channel=True)
    assert max(item.version for item in onnx.load(target).opset_import) >= 13
    assert distance(source, target, feeds) < 0.5


def test_what_has_no_weights_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "source.onnx"
    save_onnx(source, "c = MatMul (a, b)", x="float[4,4] a, float[4,4] b", y="float[4,4] c")
    feed = dict.fromkeys("ab", np.ones((4, 4), np.float32))
    for step in (int8.static, int8.dynamic, _packed):
        with pytest.raises(StepRefusedError, match="there is no"):
            step(source, tmp_path / "out.onnx", [feed])


@pytest.mark.parametrize(
    ("node", "nodes"),
    [
        ("y = Gemm<transB = 1> (x, w, b)", ["MatMulNBits", "Add"]),
        ("y = Gemm (x, v)", ["MatMulNBits"]),
    ],
)
def test_weights_of_a_gemm_are_packed(tmp_path: Path, node: str, nodes: list[str]) -> None:
    constants = {"w": normal(0, 48, 64), "v": normal(1, 64, 48), "b": normal(2, 48)}
    x = {"x": "float[4,64] x", "y": "float[4,48] y"}
    source = save_onnx(tmp_path / "source.onnx", node, constants, **x)
    feeds = [{"x": normal(3, 4, 64)}]
    target = tmp_path / "out.onnx"
    weight_only.quantise(source, target, bits=8)
    written = onnx.load(target).graph
    assert [item.op_type for item in written.node] == nodes
    assert 0 < distance(source, target, feeds) < 0.02
    assert not {"w", "v"} & {item.name for item in written.initializer}


@pytest.mark.parametrize("options", ["alpha = 0.5", "beta = 2.0", "transA = 1"])
def test_a_gemm_with_factors_stays(tmp_path: Path, options: str) -> None:
    constants = {"w": normal(0, 64, 64), "b": normal(2, 64)}
    x = {"x": "float[64,64] x", "y": "float[64,64] y"}
    node = f"y = Gemm<{options}> (x, w, b)"
    source = save_onnx(tmp_path / "source.onnx", node, constants, **x)
    with pytest.raises(StepRefusedError, match="no matrix product"):
        weight_only.quantise(source, tmp_path / "out.onnx")


@pytest.mark.parametrize(("operator", "kept"), [("Conv", 1), ("ConvTranspose", 0)])
def test_a_node_in_float_has_its_own_copy_of_a_shared_bias(
    operator: str, kept: int, tmp_path: Path
) -> None:
    """Rounded with that of the other node it is no constant, and the node loses its fast layout."""
    constants = {"w": normal(0, 4, 4, 1, 1), "v": 9 * normal(1, 4, 4, 1, 1), "b": normal(2, 4)}
    body = f"t = Conv (x, w, b) y = {operator} (t, v, b)"
    source = save_onnx(tmp_path / "source.onnx", body, constants, y="float[2,4,6,6] y")
    int8.static(source, tmp_path / "out.onnx", [{"x": normal(3, 2, 4, 6, 6)}], kept_in_float=kept)
    graph = onnx.load(tmp_path / "out.onnx").graph
    weights = {item.name for item in graph.initializer}
    in_float = [n for n in graph.node if n.op_type == operator and n.input[1] in weights]
    assert [node.input[2] for node in in_float] == ["b_in_float"]
