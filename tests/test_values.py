"""The values of generated inputs, and what the graph tells of them."""

from typing import Any

import numpy as np
import pytest
from factories import model_of, onnx_model, tensor

from autotune.errors import RequestError
from autotune.facts.generated import generate
from autotune.facts.graph_inputs import described
from autotune.facts.model_facts import Axis, Span, Tensor
from autotune.facts.usual_sizes import usual_shapes
from autotune.facts.values import VARIANTS, Variant, feed_of

T = np.zeros((50, 4), np.float32)
Q = np.zeros((50, 4), np.uint8)


def facts_of(body: str, *inputs: Tensor, x: str, **constants: Any) -> tuple[Tensor, ...]:
    """Returns what the graph of a model tells of its inputs."""
    return described(onnx_model(body, constants, x=x, y="float[] y"), inputs)


def feeds_of(*tensors: Tensor) -> tuple[Any, ...]:
    return generate(model_of(*tensors), {}).feeds


IDS = tensor("ids", "int64", "b", "s")


@pytest.mark.parametrize(
    "body",
    [
        "y = Gather (t, ids)",
        "c = Cast <to = 10> (t) y = Gather (c, ids)",
        "c = Cast <to = 6> (ids) u = Unsqueeze (c, z) y = Gather (t, u)",
        "d = DequantizeLinear (q, scale) y = Gather (d, ids)",
        "i = Transpose <perm = [1, 0]> (t) j = Transpose <perm = [1, 0]> (i) y = Gather (j, ids)",
        "m = Greater (ids, z) w = Where (m, ids, z) y = Gather (t, w)",
        "m = Greater (row, f) w = Where (m, t, f) y = Gather (w, ids)",
        "c = Concat <axis = 1> (one, ids) y = Gather (t, c)",
        "y = com.microsoft.GatherBlockQuantized <gather_axis = 0> (q, ids, t)",
        "i = ScatterElements <axis = 1> (ids, one, one) y = Gather (t, i)",
        "i = Unsqueeze (ids, last) y = GatherND (t, i)",
        "y = If (c) <then_branch = a () => (float[] p) { p = Gather (t, ids) }, "  # noqa: ISC004
        "else_branch = b () => (float[] r) { r = Gather (t, ids) }>",
    ],
)
def test_ids_lie_below_the_rows_of_what_gathers_them(body: str) -> None:
    """Whatever lies between the input and the Gather, or between the table and the Gather."""
    zero = np.zeros(1, np.int64)
    (ids,) = facts_of(
        body, IDS, x="int64[b,s] ids", t=T, q=Q, scale=1.0, z=zero, f=0.5,
        row=np.ones((50, 1), np.float32), one=zero[None], c=np.array(True), last=zero - 1,
    )  # fmt: skip
    assert ids.index_bound == 50
    seen = np.concatenate([feed["ids"] for feed in feeds_of(ids)], axis=None)
    assert 0 <= seen.min() < seen.max() < 50


def test_a_summand_leaves_fewer_ids() -> None:
    (ids,) = facts_of(
        "p = Add (ids, two) y = Gather (t, p)", IDS, x="int64[b,s] ids", t=T, two=np.array([2])
    )
    assert ids.index_bound == 48


def test_edges_lie_below_the_number_of_nodes() -> None:
    """The nodes may have been through a product: their number is still that of the input."""
    nodes, edges = tensor("x", "float32", "nodes", 4), tensor("edge_index", "int64", 2, "edges")
    _, found = facts_of(
        "h = MatMul (x, w) s = Gather (edge_index, zero) y = Gather (h, s)", nodes, edges,
        x="float[nodes,4] x, int64[2,edges] edge_index", w=np.ones((4, 4), np.float32),
        zero=np.array(0),
    )  # fmt: skip
    assert found.index_of == Axis(input="x", number=0)
    for feed in feeds_of(nodes, found):
        assert feed["edge_index"].max() < feed["x"].shape[0] == 32
    assert len({feed["edge_index"].tobytes() for feed in feeds_of(nodes, found)}) == 8


@pytest.mark.parametrize("edges", [("src", "E"), ("src", None)])
def test_what_is_indexed_are_nodes_whatever_its_name(edges: tuple[str, str | None]) -> None:
    """``N`` is no batch where another input picks from it."""
    x, positions = tensor("x", "float32", "N", 4), tensor("p", "float32", None, 3)
    *_, found = nodes = facts_of(
        "h = Gather (x, src) g = Gather (p, src) y = Concat <axis = 1> (h, g)",
        x, positions, tensor(edges[0], "int64", edges[1]),
        x="float[N,4] x, float[m,3] p, int64[E] src",
    )  # fmt: skip
    assert found.index_of is not None
    for feed in feeds_of(*nodes):
        assert feed["x"].shape[0] == feed["p"].shape[0] == 32
        assert feed["src"].shape == (64,)
        assert 0 <= feed["src"].min() < feed["src"].max() < 32


def test_a_recurrent_node_takes_all_steps() -> None:
    inputs = tensor("x", "float32", "seq", "batch", 4), tensor("sl", "int32", "batch")
    _, counted = found = facts_of(
        "_, y, _ = LSTM <hidden_size = 2> (x, w, r, , sl)", *inputs,
        x="float[seq,batch,4] x, int32[batch] sl", w=np.ones((1, 8, 4), np.float32),
        r=np.ones((1, 8, 2), np.float32),
    )  # fmt: skip
    assert counted.length_of == Axis(input="x", number=0)
    for feed in feeds_of(*found):
        assert feed["sl"].tolist() == [feed["x"].shape[0]] == [128]


@pytest.mark.parametrize("sizes", [(None, None), ("n", "b")])
def test_a_recurrent_node_takes_more_than_one_step(sizes: tuple[str | None, ...]) -> None:
    """Its first dimension is that of the steps, whatever exporters call it."""
    found = facts_of(
        "y = LSTM <hidden_size = 2> (x, w, r)", tensor("x", "float32", *sizes, 4),
        x="float[n,b,4] x", w=np.ones((1, 8, 4), np.float32), r=np.ones((1, 8, 2), np.float32),
    )  # fmt: skip
    assert next(usual_shapes(found)) == {"x": (128, 1, 4)}


def test_a_dense_graph_has_more_than_one_node() -> None:
    nodes, edges = tensor("x", "float32", "N", 4), tensor("adj", "float32", "N", "N")
    found = facts_of("y = MatMul (adj, x)", nodes, edges, x="float[N,4] x, float[N,N] adj")
    assert next(usual_shapes(found)) == {"x": (32, 4), "adj": (32, 32)}


PICTURE = tensor("image", "float32", 1, 3, 32, 32)


@pytest.mark.parametrize(
    ("body", "span"),
    [
        ("n = Div (image, c255) y = Conv (n, w)", Span(low=0, high=255)),
        ("n = Sub (image, mean) m = Div (n, std) y = Conv (m, w)", Span(low=0, high=1)),
        ("n = Sub (image, mean255) y = Conv (n, w)", Span(low=0, high=255)),
        ("n = Mul (image, two) m = Sub (n, one) y = Conv (m, w)", Span(low=0, high=1)),
        ("n = BatchNormalization (image, three, zeros, mean3, var3) y = Conv (n, w)",
         Span(low=0, high=255)),
        ("n = Mul (image, forty) m = Add (n, c128) y = Conv (m, w)", None),
        ("y = Conv (image, w)", None),
        ("r = Relu (image) n = Div (r, c255) y = Conv (n, w)", None),
    ],
)  # fmt: skip
def test_the_first_constants_tell_the_range_of_pictures(body: str, span: Span | None) -> None:
    def channels(*values: float) -> Any:
        return np.array(values, np.float32).reshape(1, 3, 1, 1)

    (image,) = facts_of(
        body, PICTURE, x="float[1,3,32,32] image", w=np.ones((4, 3, 3, 3), np.float32), c255=255.0,
        forty=40.0, c128=128.0,
        mean=channels(0.485, 0.456, 0.406), std=channels(0.229, 0.224, 0.225), two=2.0, one=1.0,
        mean255=channels(123.7, 116.3, 103.5), three=np.ones(3, np.float32),
        zeros=np.zeros(3, np.float32), mean3=np.full(3, 120, np.float32),
        var3=np.full(3, 60**2, np.float32),
    )  # fmt: skip
    assert image.span == span
    if span is not None:
        seen = np.stack([feed["image"] for feed in feeds_of(image)])
        assert seen.min() >= span.low
        assert seen.max() <= span.high
        assert seen.std() > 0.1 * (span.high - span.low)


def test_where_the_graph_does_not_tell_each_distribution_is_calibrated_and_validated() -> None:
    """Standard normal, 0 to 1, -1 to 1 and normalised pictures: the error is that of the worst."""
    workload = generate(model_of(PICTURE), {})
    for samples in (workload.calibration, workload.validation):
        ranges = [(f["image"].min(), f["image"].max()) for f in samples]
        assert len(samples) == 4
        assert ranges[0][0] < -2.5
        assert ranges[1][0] >= 0 and ranges[1][1] <= 1  # noqa: PT018
        assert -1 <= ranges[2][0] < -0.5 < ranges[2][1] <= 1
        assert -2.1 < ranges[3][0] < -1 < 1 < ranges[3][1] < 2.7


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
def test_pictures_and_sound_of_whole_numbers_fill_their_range(dtype: str) -> None:
    limits = np.iinfo(np.uint8 if dtype == "int32" else dtype)
    for shape in [(1, 3, 32, 32)] if dtype == "int32" else [(1, 3, 32, 32), (1, 16_000)]:
        seen = np.concatenate([f["x"] for f in feeds_of(tensor("x", dtype, *shape))], axis=None)
        assert float(seen.max()) > float(seen.min()) + 0.6 * (float(limits.max) - float(limits.min))
        assert limits.min <= seen.min() <= seen.max() <= limits.max


def test_lengths_rates_and_sizes_fit_the_other_inputs() -> None:
    feed = feeds_of(
        IDS,
        tensor("ids_lengths", "int64", "b"),
        tensor("ilens", "int64", "b"),
        tensor("num_tokens", "int64", "b"),
        tensor("sr", "int64"),
        tensor("image", "float32", 1, 3, "height", "width"),
        tensor("im_shape", "float32", 1, 2),
        tensor("orig_im_size", "float32", 2),
        tensor("position_ids", "int64", "b", "s", bound=512),
        tensor("timestep", "int64", "b"),
        tensor("scales", "float32", 3),
    )[0]
    assert feed["ids_lengths"].tolist() == [128]
    assert feed["num_tokens"].shape == (1,)
    assert feed["num_tokens"] == feed["ilens"] == 224  # the longest open dimension of all
    assert feed["sr"].item() == 16_000
    assert feed["im_shape"].tolist() == [feed["orig_im_size"].tolist()] == [[224, 224]]
    assert feed["position_ids"].tolist() == [list(range(128))]
    assert 0 <= feed["timestep"].item() < 1000
    assert np.all((feed["scales"] >= 0.25) & (feed["scales"] <= 1))


def test_masks_have_both_values_unless_the_model_refuses_them() -> None:
    mask = tensor("Attention_Mask", "float32", "b", "s")
    first, *_ = feeds_of(mask)
    assert first["Attention_Mask"].tolist() == [[1.0] * 96 + [0.0] * 32]
    shapes = next(usual_shapes([mask]))
    ones, zeros = (
        feed_of([mask], shapes, np.random.default_rng(0), variant=Variant(mask=share))
        for share in (1, 0)
    )
    assert np.all(ones["Attention_Mask"] == 1)
    assert np.all(zeros["Attention_Mask"] == 0)
    assert {variant.mask for variant in VARIANTS} == {0.75, 1, 0}


def test_texts_are_those_that_the_graph_tells_apart() -> None:
    text = tensor("text", "str", "n", 20)
    (found,) = facts_of(
        'y = ai.onnx.ml.LabelEncoder <keys_strings = ["red", "green"], values_floats = [1.0, 2.0]> '
        "(text)", text, x="string[n,20] text",
    )  # fmt: skip
    assert {word for feed in feeds_of(found) for word in feed["text"].ravel()} == {"red", "green"}
    assert len(set(feeds_of(text)[0]["text"].ravel())) > 3


@pytest.mark.parametrize(
    "inputs",
    [
        (IDS,),
        (tensor("x", "float32", "n", 3),),
        (tensor("m", "bool", 1, 64),),
        (tensor("bytes", "int32", "n", 2048),),
        (tensor("attention_mask", "int64", 1, 64), tensor("z", "float32", 1)),
    ],
)
def test_no_two_samples_are_equal(inputs: tuple[Tensor, ...]) -> None:
    workload = generate(model_of(*inputs), {})
    digests = {b"".join(array.tobytes() for array in feed.values()) for feed in workload.feeds}
    assert len(digests) == 8
    assert workload.warnings == ()


def test_equal_samples_are_said() -> None:
    (warning,) = generate(model_of(tensor("flag", "bool", 1)), {}).warnings
    assert "generated samples are equal" in warning
    assert "flag" in warning


def test_values_of_the_user_are_taken() -> None:
    model = model_of(tensor("x", "float32", 1, 4), tensor("threshold", "float32"))
    workload = generate(model, {}, values={"threshold": 0.5})
    assert all(feed["threshold"] == np.float32(0.5) for feed in workload.feeds)
    assert any("0.5 as given" in note for note in workload.notes)


def test_values_that_do_not_fit_are_refused() -> None:
    model = model_of(tensor("x", "float32", 1, 4), tensor("count", "int64"))
    with pytest.raises(RequestError, match=r"--value: model.onnx has no input 'counts'"):
        generate(model, {}, values={"counts": 1})
    with pytest.raises(RequestError, match=r"--value count=0.5: the model takes int64"):
        generate(model, {}, values={"count": 0.5})
