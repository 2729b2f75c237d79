"""Which nodes stay in float because eight bits make them slower."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from factories import normal, onnx_model, save_onnx
from small_models import write

from autotune.graph import by_time, int8, node_times, sensitivity
from autotune.graph.by_time import LinearTime, Times
from autotune.graph.entries import StepRefusedError
from autotune.graph.float_model import FloatModel
from autotune.graph.intermediates import Intermediates
from autotune.graph.node_times import Executed

pytestmark = pytest.mark.filterwarnings("ignore")


def _cost(
    labels: Sequence[int], costs: Sequence[Sequence[float]], edges: Mapping[tuple[int, int], float]
) -> float:
    own = sum(pair[label] for pair, label in zip(costs, labels, strict=True))
    return own + sum(c for (i, j), c in edges.items() if labels[i] != labels[j])


@pytest.mark.parametrize("seed", range(20))
def test_the_cut_is_the_cheapest_of_all_divisions(seed: int) -> None:
    """Every division of a random graph is tried."""
    chance = np.random.default_rng(seed)
    costs = chance.integers(0, 20, (7, 2)).tolist()
    edges = {
        (i, j): float(chance.integers(0, 12))
        for i in range(7)
        for j in range(i + 1, 7)
        if chance.random() < 0.4
    }
    first, second = ([pair[label] for pair in costs] for label in (0, 1))
    found = by_time.minimum_cut(first, second, edges)
    labels = [int(i in found) for i in range(7)]
    best = min(_cost(each, costs, edges) for each in product((0, 1), repeat=7))
    assert _cost(labels, costs, edges) == pytest.approx(best)


def _chain() -> onnx.ModelProto:
    """Returns a convolution with a hard swish behind it, and another convolution."""
    return onnx_model(
        "[first] a = Conv (x, w) [gate] b = HardSigmoid (a) [swish] c = Mul (a, b) "
        "[second] d = Conv (c, v)",
        y="float[?] d",
    )


def _in_float(model: onnx.ModelProto, times: Times) -> list[str]:
    return by_time.names_in_float(model, times, by_time.fastest_in_int8(times))


def _node(operator: str, source: int | None, time_us: float, **more: Any) -> Executed:
    fields = {"inputs": (), "outputs": (), "elements": 0, "in_eight_bits": False, **more}
    return Executed(operator=operator, source=source, time_us=time_us, **fields)


def test_what_one_kernel_computes_is_one_unit() -> None:
    """Its parts cannot have two labels; what moves numbers counts for what it moves."""
    in_float = [
        _node("Conv", 0, 10.0, elements=256, outputs=("p",)),
        _node(
            "com.microsoft.nchwc.ReorderOutput",
            None,
            3.0,
            inputs=("p",),
            outputs=("c",),
            elements=256,
        ),
        _node("Conv", 3, 20.0, elements=256),
    ]
    in_int8 = [
        _node("QLinearConv", 0, 4.0, elements=256, in_eight_bits=True, outputs=("q",)),
        _node("DequantizeLinear", None, 1.0, inputs=("q",), outputs=("r",), elements=256),
        _node("HardSigmoid", 1, 2.0, elements=256),
        _node("QLinearMul", 2, 8.0, elements=256, in_eight_bits=True),
        _node("Conv", 3, 21.0, elements=256),
    ]
    times = by_time.times_of(_chain(), in_float, in_int8, ("Conv", "Mul"))
    assert times.units == [[0, 1, 2], [3]]
    assert times.float_us == [13.0, 20.0]
    # the second convolution found no kernel of eight bits
    assert times.int8_us[0] == 15.0
    assert times.int8_us[1] > 1e6
    assert times.edges == {(0, 1): 256}
    assert _in_float(_chain(), times) == ["first", "gate", "swish", "second"]


def test_nodes_before_a_kernel_belong_to_it_or_to_what_they_take() -> None:
    """Of two nodes without a kernel the sigmoid is a part of a SiLU, the other of the product."""
    model = onnx_model(
        "a = Conv (x, w) b = Sigmoid (a) c = Mul (a, b) d = Conv (c, v) e = Relu (d) "
        "y = GlobalAveragePool (e)"
    )
    kernels = {"Conv": 0, "QuickGelu": 2, "FusedConv": 3, "GlobalAveragePool": 5}
    executed = [_node(name, source, 1.0) for name, source in kernels.items()]
    assert by_time.times_of(model, executed, [], ()).units == [[0], [1, 2], [3, 4], [5]]
    executed[2] = _node("Conv", 4, 1.0)
    assert by_time.times_of(model, executed, [], ()).units == [[0], [1, 2], [3, 4], [5]]


_FOUR = Times([[0], [1], [2], [3]], [9.0] * 4, [1.0] * 4, {}, LinearTime(0.0, 0.0))


@pytest.mark.parametrize(
    ("left", "in_int8"), [(1.0, {0, 1, 2, 3}), (0.9, {0, 1, 3}), (0.1, {0, 3}), (0.01, {0})]
)
def test_what_has_the_largest_error_for_its_time_goes_to_float_first(
    left: float, in_int8: set[int]
) -> None:
    errors = {0: 0.0, 1: 0.04, 2: 0.16, 3: 1e-4}
    assert by_time.precise_in_int8(_FOUR, range(4), errors, left) == in_int8


def test_a_unit_that_saves_more_may_have_a_larger_error() -> None:
    """Its error is the smallest share of what the time that it saves is worth."""
    times = _FOUR._replace(float_us=[90.0, 9.0, 9.0, 9.0])
    errors = {0: 0.04, 1: 0.02, 2: 0.02, 3: 0.02}
    assert by_time.precise_in_int8(times, range(4), errors, 0.7) == {0}


def test_a_unit_that_nobody_looked_at_stays_in_float() -> None:
    assert by_time.precise_in_int8(_FOUR, range(4), {0: 0.1, 2: 0.1}, 1.0) == {0, 2}


@pytest.mark.parametrize("seed", range(10))
def test_no_more_than_the_share_of_the_error_is_left(seed: int) -> None:
    chance = np.random.default_rng(seed)
    in_float, in_int8 = (chance.uniform(1, 20, 8).tolist() for _ in range(2))
    edges = {(i, i + 1): float(chance.uniform(0, 4)) for i in range(7)}
    times = Times([[i] for i in range(8)], in_float, in_int8, edges, LinearTime(0.0, 1.0))
    fastest = by_time.fastest_in_int8(times)
    errors = {i: float(chance.exponential()) for i in fastest}
    all_of_it = sum(errors.values())
    for left in (0.9, 0.5, 0.2):
        found = by_time.precise_in_int8(times, fastest, errors, left)
        assert found <= fastest
        assert sum(errors[i] for i in found) <= left**2 * all_of_it


def test_a_fast_node_between_slow_ones_pays_for_both_edges() -> None:
    """It goes to eight bits only where it saves more than the change of types costs."""
    model = _chain()
    edges = {(0, 1): 10.0, (1, 2): 10.0}
    times = Times(
        [[0], [1, 2], [3]], [5.0, 30.0, 5.0], [50.0, 10.0, 50.0], edges, LinearTime(1.0, 0.5)
    )
    assert _in_float(model, times) == ["first", "second"]
    dear = times._replace(crossing=LinearTime(1.0, 1.0))
    assert _in_float(model, dear) == ["first", "gate", "swish", "second"]


def test_times_come_from_both_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every convolution and product is found in what ONNX Runtime executes, fused or not."""
    monkeypatch.setattr(node_times, "_SECONDS", 0.0)
    seen: dict[str, Any] = {}
    times_of = by_time.times_of

    def noted(*arguments: Any) -> Times:
        times = times_of(*arguments)
        seen["model"], seen["times"] = arguments[0], times
        # eight bits are faster but for the first unit
        rest = len(times.units) - 1
        return times._replace(
            float_us=[2.0] * (rest + 1), int8_us=[9.0] + [1.0] * rest, crossing=LinearTime(0.0, 0.0)
        )

    monkeypatch.setattr(by_time, "times_of", noted)
    source, feeds = write("cnn", tmp_path)
    shared = Intermediates()
    for kept in (0, 1):
        target = tmp_path / f"{kept}.onnx"
        options = {"slow_in_float": True, "kept_in_float": kept, "per_channel": True}
        int8.static(source, target, feeds, shared=shared, **options)
    times = seen["times"]
    assert all(time > 0 for time in times.float_us)
    products = {i for i, n in enumerate(seen["model"].graph.node) if n.op_type in ("Conv", "Gemm")}
    quick = {i for u, members in enumerate(times.units) if times.int8_us[u] < 1e6 for i in members}
    assert products <= quick
    assert _quantised_products(tmp_path / "0.onnx") == len(products) - 1
    assert _quantised_products(tmp_path / "1.onnx") == len(products) - 2


def _quantised_products(path: Path) -> int:
    nodes = onnx.load(path).graph.node
    producers = {name: node.op_type for node in nodes for name in node.output}
    return sum(
        producers.get(node.input[0]) == "DequantizeLinear"
        and producers.get(node.input[1]) == "DequantizeLinear"
        for node in nodes
        if node.op_type in ("Conv", "Gemm", "MatMul")
    )


@pytest.mark.parametrize(
    ("kept", "reason"), [(0, "make every node slower"), (2, "no node left that can be quantised")]
)
def test_nothing_is_written_where_every_node_is_in_float(
    kept: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model would be the float one; not all are slower where the last were asked for."""

    def slow(model: onnx.ModelProto, *_: Any) -> list[str]:
        faster = sensitivity.quantisable(model)[:kept]
        return [node.name for node in model.graph.node if node.name not in faster]

    nothing = Times([], [], [], {}, LinearTime(0.0, 0.0))
    monkeypatch.setattr(by_time, "measure", lambda *_: nothing)
    monkeypatch.setattr(by_time, "names_in_float", slow)
    source, feeds = write("cnn", tmp_path)
    options: dict[str, Any] = {"slow_in_float": True, "kept_in_float": kept}
    with pytest.raises(StepRefusedError, match=reason):
        int8.static(source, tmp_path / "q.onnx", feeds, **options)


def test_times_are_those_of_the_same_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stack of matrices has a kernel with one scale, and none with scales for each channel."""

    def fast_with_kernel(*arguments: Any) -> Times:
        times = times_of(*arguments)
        int8_us = [time if time == by_time.NEVER_US else 1.0 for time in times.int8_us]
        return times._replace(
            float_us=[2.0] * len(int8_us), int8_us=int8_us, crossing=LinearTime(0, 0)
        )

    times_of = by_time.times_of
    monkeypatch.setattr(node_times, "_SECONDS", 0.0)
    monkeypatch.setattr(by_time, "times_of", fast_with_kernel)
    constants = {"stack": normal(0, 2, 16, 16), "matrix": normal(1, 16, 8)}
    shapes = {"x": "float[2,4,16] x", "y": "float[2,4,8] y"}
    body = "a = MatMul (x, stack) y = MatMul (a, matrix)"
    source = save_onnx(tmp_path / "source.onnx", body, constants, **shapes)
    shared, target = Intermediates(), tmp_path / "out.onnx"
    for per_channel in (True, False):
        options = {"slow_in_float": True, "per_channel": per_channel}
        int8.static(source, target, [{"x": normal(2, 2, 4, 16)}], shared=shared, **options)
        assert _quantised_products(target) == (1 if per_channel else 2)


def test_a_node_with_a_graph_inside_stays_in_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes tensors of the graph around it by their new names, and they have a price."""
    monkeypatch.setattr(node_times, "_SECONDS", 0.0)
    branches = (
        "then_branch = t () => (float[2,4,6,6] p) { p = Add (b, b) }, "
        "else_branch = e () => (float[2,4,6,6] q) { q = Mul (b, b) }"
    )
    body = f"[first] a = Conv (x, w) [second] b = Conv (a, w) [last] y = If (flag) <{branches}>"
    constants = {"w": normal(0, 4, 4, 1, 1)}
    inputs = "bool flag, float[2,4,6,6] x"
    source = save_onnx(tmp_path / "source.onnx", body, constants, x=inputs, y="float[2,4,6,6] y")
    feeds = [{"flag": np.array(True), "x": normal(1, 2, 4, 6, 6)}]
    ready = FloatModel.ready(source, feeds, Intermediates())
    ranges = ready.ranges("minmax", tmp_path / "calibrated.onnx")
    quantise = int8.quantiser(ranges, int8.StaticOptions())
    times = by_time.measure(ready.load(), ready.samples, quantise)
    assert times.units == [[0], [1], [2]]
    assert [time < by_time.NEVER_US for time in times.int8_us] == [True, False, False]
    assert times.edges.keys() == {(0, 1), (1, 2)}


def test_copies_of_a_shared_bias_have_names_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tool names copies by the bias and a number, and timed nodes are named by numbers too."""
    monkeypatch.setattr(node_times, "_SECONDS", 0.0)
    body = "a = Conv (x, w, b) c = Conv (a, w, b) d = Conv (c, w, b) y = Conv (d, w, b)"
    constants = {"w": normal(0, 4, 4, 1, 1), "b": normal(1, 4)}
    shapes = {"x": "float[2,4,6,6] x", "y": "float[2,4,6,6] y"}
    source = save_onnx(tmp_path / "source.onnx", body, constants, **shapes)
    ready = FloatModel.ready(source, [{"x": normal(2, 2, 4, 6, 6)}], Intermediates())
    quantise = int8.quantiser(
        ready.ranges("minmax", tmp_path / "calibrated.onnx"), int8.StaticOptions()
    )
    times = by_time.measure(ready.load(), ready.samples, quantise)
    assert all(time < by_time.NEVER_US for time in times.int8_us)
