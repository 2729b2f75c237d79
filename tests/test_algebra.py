"""The rules of algebra one by one: what each makes of a pattern, and where it must not apply."""

from typing import Any

import numpy as np
import onnx
import pytest
from algebra_models import (
    answers,
    assert_same_answers,
    inputs_of,
    operators,
    optimised_operators,
    simplified,
)
from factories import onnx_model
from numpy.typing import NDArray
from onnx import TensorProto, helper

_RANDOM = np.random.default_rng(5)


def _weight(*shape: int) -> NDArray[np.float32]:
    return _RANDOM.normal(0, 0.5, shape).astype(np.float32)


_NUMBERS: dict[str, float] = {
    "half": 0.5,
    "one": 1.0,
    "two": 2.0,
    "three": 3.0,
    "six": 6.0,
    "zero": 0.0,
    "slope": 0.1,
    "sixth": 1 / 6,
    "root": 2**0.5,
    "inverse": 0.5**0.5,
    "k": 0.044715,
    "s": 0.7978845608,
}
_FILTERS: dict[str, Any] = {
    "w": _weight(4, 4, 3, 3),
    "w1": _weight(4, 4, 1, 1),
    "v": _weight(4, 2, 3, 3),  # two groups, or a transposed convolution
    "b": _weight(4),
    "c": _weight(4, 1, 1) + 2,
    "d": _weight(1, 4, 1, 1) + 2,
    "one_of": np.array([2.5], np.float32),
    "m": _weight(6, 5),
    "n": _weight(5) + 2,
    **{name: _weight(4) + 2 for name in ("gamma", "beta", "mean")},
    "variance": np.abs(_weight(4)) + 0.1,
    "flat": np.array([2, -1], np.int64),
    "g": _weight(144, 5),
    "permuted": np.array([2, 4, 36], np.int64),
}


_ACTIVATIONS = {
    # hard swish and hard sigmoid
    "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)": "HardSigmoid Mul",
    "a = Add(three, x) c = Clip(a, zero, six) d = Div(c, six) y = Mul(d, x)": "HardSigmoid Mul",
    "a = Add(x, three) r = Relu(a) c = Min(r, six) d = Mul(c, sixth) y = Mul(x, d)": (
        "HardSigmoid Mul"
    ),
    "a = Add(x, three) c = Clip(a, zero, six) d = Div(x, six) y = Mul(d, c)": "HardSigmoid Mul",
    "a = Add(x, three) h = Max(a, zero) c = Min(six, h) y = Mul(sixth, c)": "HardSigmoid",
    "m = Mul(x, slope) a = Add(m, half) y = Clip(a, zero, one)": "HardSigmoid",
    # other bounds
    "r = Relu(x) y = Min(r, six)": "Clip",
    "r = Max(x, half) y = Clip(r, zero, six)": "Clip",
    "y = Max(zero, x)": "Relu",
    # GELU
    "a = Div(x, root) e = Erf(a) p = Add(e, one) q = Mul(x, p) y = Mul(q, half)": "Gelu",
    "a = Mul(x, inverse) e = Erf(a) p = Add(one, e) q = Mul(half, p) y = Mul(q, x)": "Gelu",
    "a = Div(x, root) e = Erf(a) h = Mul(e, half) p = Add(h, half) y = Mul(x, p)": "Gelu",
    "a = Div(x, root) e = Erf(a) p = Add(e, one) q = Mul(x, p) y = Div(q, two)": "Gelu",
    "c = Pow(x, three) d = Mul(c, k) e = Add(x, d) f = Mul(e, s) t = Tanh(f) p = Add(t, one) "
    "q = Mul(x, half) y = Mul(q, p)": "FastGelu",
    "a = Mul(x, x) b = Mul(a, x) d = Mul(k, b) e = Add(x, d) f = Mul(s, e) t = Tanh(f) "
    "p = Add(one, t) h = Mul(half, p) y = Mul(x, h)": "FastGelu",
    "a = Mul(x, k) b = Mul(a, x) c = Add(b, one) d = Mul(x, s) e = Mul(d, c) t = Tanh(e) "
    "p = Add(t, one) q = Mul(x, half) y = Mul(q, p)": "FastGelu",
}


@pytest.mark.parametrize(("body", "expected"), _ACTIVATIONS.items())
def test_an_activation_written_out_is_one_operator(body: str, expected: str) -> None:
    """Every spelling becomes the operator with a kernel, also for NaN and infinity."""
    before = onnx_model(body, _NUMBERS)
    after = simplified(before)
    assert operators(after) == expected.split()
    assert_same_answers(before, after, inputs_of(before), 1e-6)
    edges = np.zeros((2, 4, 6, 6), np.float32)
    edges.flat[:6] = [np.nan, np.inf, -np.inf, -0.0, 80, -80]
    assert_same_answers(before, after, {"x": edges}, 1e-6)


def test_gelu_is_onnx_own_operator_from_opset_20_on() -> None:
    """Before that it is ONNX Runtime's, whose domain the model then imports."""
    body = "a = Div(x, root) e = Erf(a) p = Add(e, one) q = Mul(x, p) y = Mul(q, half)"
    for opset, domain in ((19, "com.microsoft"), (20, "")):
        before = onnx_model(body, _NUMBERS, opset=opset)
        del before.opset_import[1:]
        after = simplified(before)
        assert [node.domain for node in after.graph.node] == [domain]
        assert domain in {item.domain for item in after.opset_import}
        assert_same_answers(before, after, inputs_of(before), 1e-6)


@pytest.mark.parametrize("attributes", ["<min = 0.0, max = 6.0>", "<max = 6.0, min = 0.0>"])
def test_bounds_may_be_attributes(attributes: str) -> None:
    """Before opset 11 a Clip has its bounds there."""
    body = f"a = Add(x, three) c = Clip{attributes}(a) m = Mul(x, c) y = Div(m, six)"
    before = onnx_model(body, _NUMBERS, opset=9)
    after = simplified(before)
    assert operators(after) == ["HardSigmoid", "Mul"]
    assert_same_answers(before, after, inputs_of(before), 1e-6)


_NO_ACTIVATIONS = [
    "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, three)",  # 2 x hard swish
    "a = Add(x, three) c = Clip(a, half, six) m = Mul(x, c) y = Div(m, six)",
    "l = ReduceMin<keepdims = 0>(x) a = Add(x, one) c = Clip(a, l, six) y = Div(c, six)",
    "a = Add(x, three) c = Clip(a, zero) y = Div(c, six)",
    "a = Div(x, two) e = Erf(a) p = Add(e, one) q = Mul(x, p) y = Mul(q, half)",
    "a = Div(x, root) e = Erf(a) p = Add(e, one) q = Mul(x, p) y = Mul(q, three)",
]


@pytest.mark.parametrize("body", _NO_ACTIVATIONS)
def test_another_function_stays_as_it_is(body: str) -> None:
    """Other numbers, or bounds that are computed, are no activation."""
    before = onnx_model(body, _NUMBERS)
    after = simplified(before)
    assert set(operators(after)) <= set(operators(before))
    assert_same_answers(before, after, inputs_of(before), 0)


_CONV = "t = Conv<pads = [1, 1, 1, 1]>(x, w, b)"
_INTO_WEIGHTS = {
    f"{_CONV} y = Mul(t, three)": "Conv",
    f"{_CONV} y = Add(t, one_of)": "Conv",
    f"{_CONV} s = Mul(t, c) y = Sub(s, d)": "Conv",
    f"{_CONV} s = Sub(one, t) y = Div(s, c)": "Conv",
    "t = Conv(x, w) y = Add(t, d)": "Conv",
    "t = Conv(x, w) y = Neg(t)": "Conv",
    "t = Conv<group = 2>(x, v) s = Mul(t, d) y = Add(s, d)": "Conv",
    "t = ConvTranspose<group = 2>(x, v) s = Mul(t, c) y = Add(s, c)": "ConvTranspose",
    "t = Conv(x, w, b) y = BatchNormalization(t, gamma, beta, mean, variance)": "Conv",
    "s = BatchNormalization(x, gamma, beta, mean, variance) y = Conv(s, w, b)": "Conv",
    "s = Mul(x, c) y = Conv<pads = [1, 1, 1, 1]>(s, w, b)": "Conv",
    "s = Mul(x, d) t = Add(s, c) y = Conv(t, w)": "Conv",
    "s = Mul(x, d) y = Conv<group = 2>(s, v)": "Conv",
    "s = Mul(x, d) y = ConvTranspose<group = 2>(s, v)": "ConvTranspose",
    "s = Mul(x, three) p = Conv(s, w) q = Conv(s, w1) r = Flatten(p) t = Flatten(q) "
    "y = Concat<axis = 1>(r, t)": "Concat Conv Conv Flatten Flatten",
    "t = MatMul(x, m) y = Mul(t, n)": "MatMul",
    "f = Reshape(x, flat) t = Gemm<alpha = 0.5, beta = 2.0>(f, g, n) s = Mul(t, n) y = Add(s, n)": (
        "Gemm Reshape"
    ),
    "f = Reshape(x, flat) t = Gemm<beta = 0.0>(f, g) y = Add(t, n)": "Add Gemm Reshape",
    "f = Reshape(x, flat) s = Add(f, three) t = Mul(s, six) y = Gemm<alpha = 0.5>(t, g, n)": (
        "Gemm Reshape"
    ),
}


@pytest.mark.parametrize(("body", "expected"), _INTO_WEIGHTS.items())
def test_constants_go_into_weights(body: str, expected: str) -> None:
    """Factors and summands before and behind a product leave the product alone."""
    before = onnx_model(body, {**_NUMBERS, **_FILTERS})
    after = simplified(before)
    assert operators(after) == expected.split()
    assert_same_answers(before, after, inputs_of(before), 2e-5)


_NOT_INTO_WEIGHTS = [
    "s = Add(x, three) y = Conv<pads = [1, 1, 1, 1]>(s, w, b)",
    's = Add(x, three) y = Conv<auto_pad = "SAME_UPPER">(s, w, b)',
    "s = Add(x, three) y = ConvTranspose(s, w)",
    f"{_CONV} y = Mul(t, wide)",
    f"{_CONV} y = Mul(t, zero)",
    f"{_CONV} y = Mul(t, tiny)",
    f"{_CONV} y = Mul(t, infinite)",
    f"{_CONV} y = Add(t, nan)",
    f"{_CONV} y = Mul(t, huge)",
    f"{_CONV} n = Neg(three) r = Relu(t) y = Mul(r, negative)",
    f"{_CONV} r = Relu(t) s = Mul(t, three) y = Add(r, s)",
    f"{_CONV} y = Mul(t, five_axes)",
    f"{_CONV} s = Shape(t) u = Mul(t, three) v = Reshape(u, s) z = Softmax(t) y = Add(v, z)",
    "s = Mul(x, three) p = Conv(s, w) r = Softmax(s) q = Conv(r, w) y = Add(p, q)",
    "t = MatMul(x, m) y = Add(t, n)",
    "s = Add(x, three) y = MatMul(s, m)",
]


@pytest.mark.parametrize("body", _NOT_INTO_WEIGHTS)
def test_weights_take_what_they_can_hold(body: str) -> None:
    """Zeros at borders, overflow, other consumers: the operators stay, and so do the answers."""
    numbers = {"tiny": 1e-38, "huge": 3e38, "infinite": np.inf, "nan": np.nan, "negative": -2.0}
    shapes = {"wide": _weight(1, 4, 1, 6), "five_axes": _weight(1, 1, 4, 1, 1)}
    before = onnx_model(body, {**_NUMBERS, **_FILTERS, **numbers, **shapes})
    after = simplified(before)
    free = ("Neg", "Shape", "Reshape")
    kept = [name for name in operators(before) if name not in free]
    assert [name for name in operators(after) if name not in free] == kept
    assert_same_answers(before, after, inputs_of(before, spread=0.3), 2e-6)


_EPSILON: dict[str, Any] = {
    "epsilon": 1e-5,
    "minus_half": -0.5,
    "gain": _weight(6),
    "shift": _weight(6),
    "matrix": _weight(6, 5),
    "one_axis": np.array([1], np.int64),
    "last_axis": np.array([-1], np.int64),
    "both_axes": np.array([2, 3], np.int64),
}
_CENTRED = "m = ReduceMean<axes = [-1]>(x) d = Sub(x, m)"
_NORMALISATIONS = {
    f"{_CENTRED} p = Pow(d, two) v = ReduceMean<axes = [-1]>(p) e = Add(v, epsilon) r = Sqrt(e) "
    "n = Div(d, r) h = Mul(n, gain) y = Add(h, shift)": "LayerNormalization",
    f"{_CENTRED} p = Mul(d, d) v = ReduceMean<axes = [3]>(p) e = Add(epsilon, v) r = Sqrt(e) "
    "i = Reciprocal(r) n = Mul(d, i) h = Mul(gain, n) y = Add(shift, h)": "LayerNormalization",
    f"{_CENTRED} p = Mul(d, d) v = ReduceMean<axes = [-1]>(p) e = Add(v, epsilon) "
    "i = Pow(e, minus_half) j = Mul(i, gain) y = Mul(d, j)": "LayerNormalization",
    f"{_CENTRED} p = Mul(d, d) v = ReduceMean<axes = [-1]>(p) e = Add(v, epsilon) r = Sqrt(e) "
    "i = Div(one, r) y = Mul(i, d)": "LayerNormalization",
    "p = Mul(x, x) v = ReduceMean<axes = [-1]>(p) e = Add(v, epsilon) r = Sqrt(e) "
    "i = Reciprocal(r) n = Mul(x, i) y = Mul(n, gain)": "Add Div Mul Pow ReduceMean Sqrt",
    "m = ReduceMax<axes = [3]>(x) d = Sub(x, m) e = Exp(d) t = ReduceSum(e, last_axis) "
    "y = Div(e, t)": "Softmax",
    "e = Exp(x) t = ReduceSum(e, last_axis) y = Div(e, t)": "Softmax",
    "y = Pow(x, two)": "Mul",
}


@pytest.mark.parametrize(("body", "expected"), _NORMALISATIONS.items())
def test_a_normalisation_in_parts_is_one_operator(body: str, expected: str) -> None:
    """Also roots and squares of their own, and softmax; NaN stays NaN."""
    before = onnx_model(body, {**_NUMBERS, **_FILTERS, **_EPSILON})
    after = simplified(before)
    assert operators(after) == expected.split()
    feeds = inputs_of(before)
    assert_same_answers(before, after, feeds, 3e-6)
    feeds["x"][0, 0, 0, 0] = np.nan
    assert_same_answers(before, after, feeds, 3e-6)


@pytest.mark.parametrize("body", list(_NORMALISATIONS)[:5])
def test_older_normalisations_are_spelled_as_fusions_look_for_them(body: str) -> None:
    """ONNX Runtime makes one node of each at load, whatever constants are beside them."""
    before = onnx_model(
        f"{body} z = MatMul(y, matrix)",
        {**_NUMBERS, **_FILTERS, **_EPSILON},
        opset=16,
        y="float[?] z",
    )
    after = simplified(before)
    assert_same_answers(before, after, inputs_of(before), 3e-6)
    assert optimised_operators(after)[0].endswith("LayerNormalization")
    assert len(optimised_operators(after)) == 2


_QUOTIENT = "r = Sqrt(e) y = Div(d, r)"
_NO_NORMALISATIONS = [
    f"{_CENTRED} p = Mul(d, d) v = ReduceMean<axes = [2]>(p) e = Add(v, epsilon) {_QUOTIENT}",
    f"{_CENTRED} p = Mul(d, x) v = ReduceMean<axes = [-1]>(p) e = Add(v, epsilon) {_QUOTIENT}",
    # ONNX Runtime's fusion of layer normalisation takes this for x minus its mean
    "m = ReduceMean<axes = [3]>(x) d = Sub(m, x) p = Mul(d, d) v = ReduceMean<axes = [3]>(p) "  # noqa: ISC004
    "e = Add(v, epsilon) r = Sqrt(e) n = Div(d, r) g = Mul(n, gain) y = Add(g, shift)",
    "e = Exp(x) t = ReduceSum(e, both_axes) y = Div(e, t)",
    "e = Exp(x) t = ReduceSum(e, one_axis) y = Div(e, t)",
    "y = Pow(x, half)",
    "y = Pow(two, x)",
    "y = Div(x, three)",
]


@pytest.mark.parametrize("body", _NO_NORMALISATIONS)
def test_other_normalisations_stay(body: str) -> None:
    """Means over other axes, or roots of what may be negative, are another function."""
    before = onnx_model(body, {**_NUMBERS, **_EPSILON})
    after = simplified(before)
    assert operators(after) == operators(before)


_STRUCTURE = {
    "i = Identity(x) d = Dropout(i) y = Abs(d)": "Abs",
    "p = Cast<to = 1>(x) q = Cast<to = 11>(p) r = Cast<to = 11>(q) y = Abs(r)": "Abs Cast",
    "a = Add(x, zero) b = Mul(one, a) c = Div(b, one) y = Abs(c)": "Abs",
    "r = Reshape(b, column) t = Conv(x, w) y = Add(t, r)": "Conv",
    "a = Mul(three, half) e = Exp(a) y = Mul(x, e)": "Mul",
    "a = Abs(x) r = Reshape(a, same) e = Expand(r, same) y = Neg(e)": "Abs Neg",
    "a = Abs(x) p = Pad(a, none) y = Slice(p, start, open, axis)": "Abs",
    "a = Abs(x) s = Slice(a, start, two_, axis) y = Slice(s, start, open, last)": "Abs Slice",
    "s = Shape(x) g = Gather(s, first) c = Concat<axis = 0>(g, g_) y = Reshape(x, c)": "Reshape",
}


@pytest.mark.parametrize(("body", "expected"), _STRUCTURE.items())
def test_what_changes_nothing_goes(body: str, expected: str) -> None:
    """Nodes without effect and constant subgraphs; names of outputs stay."""
    constants = {
        "column": np.array([1, -1, 1, 1], np.int64),
        "same": np.array([2, 4, 6, 6], np.int64),
        "none": np.zeros(8, np.int64),
        "start": np.array([0], np.int64),
        "start_2": np.array([1], np.int64),
        "two_": np.array([2], np.int64),
        "open": np.array([2**63 - 1], np.int64),
        "axis": np.array([1], np.int64),
        "last": np.array([-1], np.int64),
        "first": np.array([0], np.int64),
        "g_": np.array([-1], np.int64),
    }
    before = onnx_model(body, {**_NUMBERS, **_FILTERS, **constants})
    if "to = 11" in body:
        before.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    after = simplified(before)
    assert operators(after) == expected.split()
    assert_same_answers(before, after, inputs_of(before), 2e-6)


@pytest.mark.parametrize(
    "part",
    ["Slice(s, place, end_)", "Gather(s, place)", "Slice(s, three_, end_)", "Gather(s, last)"],
)
def test_a_size_that_is_known_is_a_constant(part: str) -> None:
    """Of a shape with an open batch, what does not depend on the batch is known."""
    constants: dict[str, Any] = {
        "place": np.array([1], np.int64),
        "three_": np.array([-3], np.int64),
        "last": np.array(-1, np.int64),
        "end_": np.array([2], np.int64),
    }
    body = f"s = Shape(x) g = {part} c = Cast<to = 1>(g) r = Sqrt(c) y = Mul(x, r)"
    before = onnx_model(body, constants, x="float[N,4,6,6] x")
    after = simplified(before)
    assert operators(after) == ["Mul"]
    assert_same_answers(before, after, inputs_of(before), 0)
    first = onnx_model(
        body.replace(part, "Gather(s, zero_)"), {"zero_": np.array([0])}, x="float[N,4] x"
    )
    assert "Shape" in operators(simplified(first))


_SIZES = {
    "first": np.array(0, np.int64),
    "second": np.array(1, np.int64),
    "zero_": np.array([0], np.int64),
    "four": np.array([4], np.int64),
    "rest": np.array([6, 6], np.int64),
}
_JOINED = """
    s = Shape(x) g = Gather(s, {axis}) u = Unsqueeze(g, zero_) c = Concat<axis = 0>({order})
    y = Reshape(x, c)
"""


def test_sizes_that_are_copied_one_by_one_are_a_constant() -> None:
    """An open size at its own place is a zero in the shape; the answers are those of any batch."""
    before = onnx_model(
        _JOINED.format(axis="first", order="u, rest, four"), _SIZES, x="float[N,4,6,6] x"
    )
    after = simplified(before)
    assert operators(after) == ["Reshape"]
    for batch in (1, 3):
        feed = {"x": inputs_of(before)["x"][:batch]}
        assert_same_answers(before, after, feed, 0)


def test_an_open_size_that_moves_stays() -> None:
    """A zero in the shape would copy the size of another place."""
    before = onnx_model(
        _JOINED.format(axis="first", order="four, u, rest"), _SIZES, x="float[N,4,6,6] x"
    )
    after = simplified(before)
    assert "Shape" in operators(after)
    assert_same_answers(before, after, inputs_of(before), 0)


def test_an_input_with_a_default_is_no_constant() -> None:
    """A run may feed it another value."""
    before = onnx_model("t = Conv(x, w) y = Mul(t, c)", _FILTERS)
    before.graph.input.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, [4, 1, 1]))
    after = simplified(before)
    assert operators(after) == ["Conv", "Mul"]
    feeds = inputs_of(before)
    assert_same_answers(before, after, feeds, 1e-6)
    assert_same_answers(before, after, {"x": feeds["x"]}, 1e-6)


def test_a_weight_that_others_take_keeps_its_value() -> None:
    """A small one is copied; a large one would be stored twice, so it is left alone."""
    constants: dict[str, Any] = {
        "small": _weight(4, 4, 1, 1),
        "large": _weight(64, 4, 5, 5),
        "three": 3.0,
    }
    for name in ("small", "large"):
        body = f"t = Conv(x, {name}) u = Mul(t, three) v = Conv(x, {name}) y = Add(u, v)"
        before = onnx_model(body, constants)
        after = simplified(before)
        assert_same_answers(before, after, inputs_of(before), 2e-6)
        assert operators(after).count("Mul") == (name == "large")


def test_half_precision_is_rounded_once_and_never_overflows() -> None:
    """Weights of 16 bits are scaled in 64; a scale that they cannot hold stays a node."""
    half = {name: np.asarray(_FILTERS[name], np.float16) for name in ("w", "b")}
    for scale, expected in ((3.0, ["Conv"]), (60000.0, ["Conv", "Mul"])):
        before = onnx_model(
            "t = Conv(x, w, b) y = Mul(t, s)",
            {**half, "s": np.array(scale, np.float16)},
            x="float16[1,4,6,6] x",
            y="float16[?] y",
        )
        after = simplified(before)
        assert operators(after) == expected
        weight = next(i for i in after.graph.initializer if i.name == after.graph.node[0].input[1])
        assert weight.data_type == TensorProto.FLOAT16
        assert_same_answers(before, after, inputs_of(before, spread=0.1), 3e-3)


def test_other_types_than_floats_are_left_alone() -> None:
    """Whole numbers divide otherwise, and HardSigmoid has no kernel for 64 bits."""
    body = "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)"
    for kind, name in ((np.int64, "int64"), (np.float64, "double")):
        numbers = {key: np.array(value, kind) for key, value in _NUMBERS.items()}
        before = onnx_model(body, numbers, x=f"{name}[2,4] x", y=f"{name}[?] y")
        after = simplified(before)
        assert operators(after) == operators(before)


def test_constants_with_an_axis_need_the_rank_of_the_tensor() -> None:
    """The result of a vector and a tensor of unknown rank may have more axes than the tensor."""
    constants = {name: np.array([value], np.float32) for name, value in _NUMBERS.items()}
    constants |= {"zero": np.array(0, np.float32), "six": np.array(6, np.float32)}
    body = "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Mul(m, sixth)"
    before = onnx_model(body, constants, x="float[] x")
    after = simplified(before)
    assert_same_answers(before, after, {"x": np.array(1.5, np.float32)}, 1e-6)
    before = onnx_model(body, constants)
    assert operators(simplified(before)) == ["HardSigmoid", "Mul"]


def _with_branches() -> onnx.ModelProto:
    """Returns a model whose two branches use the same names, and weights from outside."""
    outer = onnx_model(
        "t = Conv(x, w, b) u = Mul(t, three)",
        {**_FILTERS, **_NUMBERS},
        x="float[2,4,6,6] x, bool[] flag",
    )
    branches: list[onnx.GraphProto] = []
    for number in ("six", "two"):
        body = onnx_model(
            f"a = Add(u, three) c = Clip(a, zero, six) m = Mul(u, c) h = Div(m, {number}) "
            f"v = Conv(h, w1) r = Mul(v, {number})",
            {**_NUMBERS, **_FILTERS},
            y="float[?] r",
        ).graph
        del body.input[:]
        outside = [item for item in body.initializer if item.name in ("w1", "six")]
        for item in outside:
            body.initializer.remove(item)
            if not branches:
                outer.graph.initializer.append(item)
        branches.append(body)
    node = helper.make_node("If", ["flag"], ["y"], then_branch=branches[0], else_branch=branches[1])
    outer.graph.node.append(node)
    return outer


@pytest.mark.parametrize("flag", [True, False])
def test_branches_are_simplified_for_themselves(flag: bool) -> None:
    """What a branch takes from outside keeps its name and value; names may be in both branches."""
    before = _with_branches()
    after = simplified(before)
    bodies = {item.name: item.g for item in after.graph.node[-1].attribute}
    then = sorted(node.op_type for node in bodies["then_branch"].node)
    assert then == ["Conv", "HardSigmoid", "Mul"]
    assert [node.op_type for node in after.graph.node] == ["Conv", "If"]
    feeds = {**inputs_of(before), "flag": np.array(flag)}
    assert_same_answers(before, after, feeds, 2e-6)


def test_outputs_inside_a_pattern_stay() -> None:
    """A tensor that is an output as well is still computed, under its name."""
    body = "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)"
    before = onnx_model(body, _NUMBERS, y="float[?] y, float[?] c")
    after = simplified(before)
    assert_same_answers(before, after, inputs_of(before), 1e-6)


@pytest.mark.parametrize(
    "body", ["t = Mul(row, column) y = Add(x, t)", "t = Expand(row, shape) y = Add(x, t)"]
)
def test_a_constant_that_grows_is_not_computed(body: str) -> None:
    """A few numbers of a stranger's model must not become gigabytes."""
    constants: dict[str, Any] = {
        "row": np.ones((1, 2**20), np.float32),
        "column": np.ones((2**20, 1), np.float32),
        "shape": np.array([2**20, 1], np.int64),
    }
    before = onnx_model(body, constants, x="float[1] x")
    assert operators(simplified(before)) == operators(before)


def test_a_model_of_old_operators_stays_as_it_is() -> None:
    """Before opset 7 operators broadcast by attributes."""
    before = onnx_model("a = Neg(x) y = Neg(a)", opset=6)
    assert simplified(before) == before


@pytest.mark.parametrize(
    "chain",
    [
        "n = BatchNormalization(t, gamma, beta, mean, variance) s = Mul(n, one_of) a = Add(s, d)",
        "s = Mul(t, half) a = Add(s, one_of)",
    ],
)
def test_rules_use_what_they_made(chain: str) -> None:
    """Normalisation, numbers, and a bias behind a reshape: one convolution and its activation."""
    body = (
        f"t = Conv(x, w) {chain} h = Add(a, three) c = Clip(h, zero, six) m = Mul(a, c) "
        "y = Div(m, six)"
    )
    before = onnx_model(body, {**_NUMBERS, **_FILTERS})
    after = simplified(before)
    assert operators(after) == ["Conv", "HardSigmoid", "Mul"]
    assert_same_answers(before, after, inputs_of(before), 2e-6)
    assert len(answers(after, inputs_of(after))) == 1


def test_sizes_by_parts_of_a_shape_are_copied() -> None:
    """What PyTorch's newer exporter writes: a part of a shape for each size, and allowzero."""
    body = "a = Shape<start = 0, end = 1>(x) b = Shape<start = 2>(x)"
    body += " s = Concat<axis = 0>(a, sixth_, b) y = Reshape<allowzero = 1>(x, s)"
    before = onnx_model(body, {"sixth_": np.array([-1], np.int64)}, x="float[N,6,4] x")
    after = simplified(before)
    assert operators(after) == ["Reshape"]
    assert_same_answers(before, after, inputs_of(before), 0)


def test_a_size_of_zero_that_is_meant_stays() -> None:
    body = "a = Shape<start = 0, end = 1>(x) s = Concat<axis = 0>(a, none, six)"
    body += " y = Reshape<allowzero = 1>(x, s)"
    numbers = {"none": np.array([0], np.int64), "six": np.array([6], np.int64)}
    before = onnx_model(body, numbers, x="float[N,6,0] x")
    assert "Concat" in operators(simplified(before))


@pytest.mark.parametrize("body", ["s = Mul(x, c) y = Conv(s, w)", "s = Sub(x, c) y = Conv(s, w)"])
def test_a_constant_that_makes_channels_stays(body: str) -> None:
    """A grey image becomes one of four channels; the convolution would get the one."""
    before = onnx_model(body, _FILTERS, x="float[2,1,6,6] x")
    after = simplified(before)
    assert len(operators(after)) == 2
    assert_same_answers(before, after, inputs_of(before), 1e-5)


def test_open_sizes_without_a_name_are_not_equal() -> None:
    """Exporters write "?" for each; here the sizes change places."""
    body = (
        "z = Shape(x) p = Gather(z, one_i) q = Gather(z, zero_i) "
        "n = Concat<axis = 0>(p, q, last) y = Reshape(x, n)"
    )
    numbers = {"one_i": 1, "zero_i": 0, "last": 4}
    constants = {name: np.array([value], np.int64) for name, value in numbers.items()}
    before = onnx_model(body, constants, x="float[a,b,4] x")
    for size in list(before.graph.input[0].type.tensor_type.shape.dim)[:2]:
        size.dim_param = "?"
    feeds = {"x": _weight(2, 3, 4)}
    assert_same_answers(before, simplified(before), feeds, 1e-6)


def test_the_default_of_an_input_is_no_constant() -> None:
    """A caller may feed more rows than the default has."""
    body = "z = Shape(h) p = Gather(z, first) f = Cast<to = 1>(p) y = Mul(x, f)"
    first: dict[str, Any] = {"first": np.array([0], np.int64), "h": _weight(1, 4)}
    before = onnx_model(body, first, x="float[1] x, float[n,4] h")
    feeds = {"x": _weight(1), "h": _weight(3, 4)}
    assert_same_answers(before, simplified(before), feeds, 1e-6)


_ROUNDED = [
    "a = Add(x, magic) r = Sub(a, magic) y = Mul(r, half)",
    "t = Conv(x, w1, b) a = Add(t, magic) y = Sub(a, magic)",
    "a = Add(x, magic) r = Sub(a, magic) y = Conv(r, w1)",
    "a = Add(x, magic) r = Sub(a, magic) h = Add(r, three) c = Clip(h, zero, six) y = Div(c, six)",
]


@pytest.mark.parametrize("body", _ROUNDED)
def test_rounding_by_a_large_summand_stays(body: str) -> None:
    """What is added to 1.5 * 2^23 becomes whole."""
    before = onnx_model(body, {**_NUMBERS, **_FILTERS, "magic": 1.5 * 2**23})
    assert_same_answers(before, simplified(before), inputs_of(before), 1e-6)


@pytest.mark.parametrize(
    ("body", "x"),
    [
        ("n = Mul(x, c) y = Gemm(n, m)", "float[6] x"),
        ("n = Sub(x, c) y = Gemm(n, m)", "float[6] x"),
        ("n = Mul(x, image) y = Conv(n, w1)", "float[4,6,6] x"),
    ],
)
def test_a_constant_that_adds_an_axis_stays(body: str, x: str) -> None:
    constants: dict[str, Any] = {
        **_FILTERS,
        "c": np.full((1, 1), 2.0, np.float32),
        "image": _weight(1, 4, 1, 1),
    }
    before = onnx_model(body, constants, x=x)
    assert_same_answers(before, simplified(before), inputs_of(before), 1e-6)


@pytest.mark.parametrize("spelling", [name for name, kind in _ACTIVATIONS.items() if "elu" in kind])
def test_an_activation_of_a_number_without_axes_runs(spelling: str) -> None:
    before = onnx_model(spelling, _NUMBERS, x="float[] x", y="float[] y")
    assert_same_answers(before, simplified(before), {"x": np.array(0.7, np.float32)}, 1e-6)


def test_branches_of_several_ranks_stay_valid() -> None:
    """Before opset 11 a branch must have the shape of the other one, as far as that is known."""
    shaped = (
        "then_g () => (float[] r) { s = Shape(t) d = Gather(s, first) "
        "k = Concat<axis = 0>(d, g_) r = Reshape(t, k) }"
    )
    body = (
        "t = Mul(x, half) z = If <then_branch = "
        f"{shaped}, else_branch = else_g () => (float[] e) {{ e = Identity(t) }}> (flag) y = Neg(z)"
    )
    constants: dict[str, Any] = {
        **_NUMBERS,
        "first": np.array([0], np.int64),
        "g_": np.array([-1], np.int64),
    }
    for opset in (9, 10, 11):
        before = onnx_model(body, constants, opset=opset, x="float[n,3,4] x, bool flag")
        for graph in (a.g for a in before.graph.node[1].attribute):
            graph.output[0].type.tensor_type.ClearField("shape")
        feeds = {"x": _weight(2, 3, 4), "flag": np.array(True)}
        assert_same_answers(before, simplified(before), feeds, 1e-6)
