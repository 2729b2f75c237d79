"""Sizes of generated inputs whose dimensions a model leaves open."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from factories import model_of, onnx_model, save_onnx, tensor

from autotune.errors import RequestError
from autotune.facts import tried_inputs
from autotune.facts.generated import generate
from autotune.facts.inputs import workload_for
from autotune.facts.model import describe
from autotune.facts.model_facts import Tensor, TriedRun
from autotune.facts.tried_inputs import Choice, first_that_runs
from autotune.facts.usual_sizes import usual_shapes
from autotune.process.child import ChildFailure

IDS = tensor("ids", "int64", "batch", "length")
MASK = tensor("mask", "float32", "batch", "length")


@pytest.mark.parametrize(
    ("inputs", "shapes"),
    [
        ([tensor("x", "float32", "n", 3, "h", "w")], [(1, 3, 224, 224)]),
        ([tensor("x", "uint8", None, None, None, 3)], [(1, 224, 224, 3)]),
        ([tensor("x", "float32", "?", 3, "?", "?")], [(1, 3, 224, 224)]),
        ([tensor("line", "float32", "n", 1, 64, "w")], [(1, 1, 64, 224)]),
        (
            [tensor("pixel_values", "float32", "batch_size", "num_channels", "height", "width")],
            [(1, 3, 224, 224)],
        ),
        ([tensor("sample", "float32", "batch", 4, "height", "width")], [(1, 4, 64, 64)]),
        ([MASK, IDS], [(1, 128), (1, 128)]),
        ([tensor("sound", "float32", "n", "time")], [(1, 100)]),
        ([tensor("sound", "float32", None, None)], [(1, 16_000)]),
        ([tensor("input_values", "float32", "batch_size", "sequence_length")], [(1, 16_000)]),
        ([tensor("sound", "float32", "n", 1, "samples")], [(1, 1, 16_000)]),
        ([tensor("frames", "float32", None, None, 80)], [(1, 100, 80)]),
        (
            [tensor("encoder_hidden_states", "float32", "b", "encoder_sequence_length", 64)],
            [(1, 128, 64)],
        ),
        (
            [tensor("x", "float32", "nodes", 16), tensor("edge_index", "int64", 2, "edges")],
            [(32, 16), (2, 64)],
        ),
        ([IDS, tensor("past_key", "float32", "batch", 3, "past", 64)], [(1, 128), (1, 3, 1, 64)]),
        (
            [
                IDS,
                tensor("past_key", "float32", "batch", 3, "past", 64),
                tensor("attention_mask", "int64", "batch", "past + length"),
            ],
            [(1, 128), (1, 3, 1, 64), (1, 129)],
        ),
        ([tensor("features", "float32", "n_samples", 9)], [(1, 9)]),
        ([tensor("state", "float32", 2, None, 128)], [(2, 1, 128)]),
        ([tensor("ids", "float32", None, None, bound=9)], [(1, 128)]),
        (
            [tensor("pixel_values", "float32", "b", "num_frames", "num_channels", "h", "w")],
            [(1, 16, 3, 224, 224)],
        ),
        ([tensor("x", "float32", "b", "num_images", 3, "h", "w")], [(1, 1, 3, 224, 224)]),
        ([tensor("volume", "float32", "b", 1, "d", "h", "w")], [(1, 1, 16, 224, 224)]),
    ],
)
def test_open_dimensions_have_the_sizes_of_their_kind(
    inputs: list[Tensor], shapes: list[tuple[int, ...]]
) -> None:
    """Pictures, lines of text, tokens, sounds, sequences and graphs; batches and caches are 1."""
    first = next(usual_shapes(inputs))
    assert [first[item.name] for item in inputs] == shapes


def test_there_is_always_one_choice_and_more_only_where_a_size_is_guessed() -> None:
    assert list(usual_shapes([])) == [{}]
    assert list(usual_shapes([tensor("x", "float32", "n", 3, 8, 8)])) == [{"x": (1, 3, 8, 8)}]
    sizes = [shapes["x"] for shapes in usual_shapes([tensor("x", "float32", 1, 3, "h", "w")])]
    assert sizes[:2] == [(1, 3, 224, 224), (1, 3, 256, 256)]
    assert (1, 3, 48, 320) in sizes


def test_a_given_shape_sets_dimensions_of_the_same_name() -> None:
    """With ``--shape ids=2,7`` the mask has 2 x 7 values as well, and not the usual number."""
    assert list(usual_shapes([IDS, MASK], {"ids": (2, 7)})) == [{"ids": (2, 7), "mask": (2, 7)}]
    feed = generate(model_of(IDS, MASK), {"mask": (1, 5)}).feeds[0]
    assert feed["ids"].shape == (1, 5)


VISION = "float[batch_size,num_channels,height,width] pixel_values"
C = {"w": np.ones((8, 4, 16, 16), np.float32), "m": np.ones((48, 8), np.float32)}


@pytest.mark.parametrize(
    ("body", "x", "shapes"),
    [
        ("y = Conv (pixel_values, w)", VISION, {"pixel_values": (1, 4, 64, 64)}),
        ("y = Conv <group = 2> (pixel_values, w)", VISION, {"pixel_values": (1, 8, 224, 224)}),
        ("t = Transpose <perm = [0, 3, 1, 2]> (x) y = Conv (t, w)", "float[a,b,c,d] x",
         {"x": (1, 64, 64, 4)}),
        ("y = MatMul (x, m)", "float[n,features] x", {"x": (1, 48)}),
        ("r = Relu (x) y = Gemm (r, m)", "float[n,features] x", {"x": (1, 48)}),
        ("y = Add (x, m)", "float[batch,s,d] x", {"x": (1, 48, 8)}),
        ('y = Einsum <equation = "bsd, de -> bse"> (x, m)', "float[b,s,d] x", {"x": (1, 128, 48)}),
        ('y = Einsum <equation = "...d,de"> (x, m)', "float[b,s,d] x", {"x": (1, 128, 48)}),
    ],
)  # fmt: skip
def test_weights_tell_the_sizes_of_inputs_that_reach_them(
    tmp_path: Path, body: str, x: str, shapes: Mapping[str, tuple[int, ...]]
) -> None:
    path = save_onnx(tmp_path / "m.onnx", body, C, x=x, y="float[] y")
    assert next(usual_shapes(describe(path).inputs)) == shapes


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("y = Conv (x, w)", (1, 4, 64, 64)),
        ("r = Relu (x) y = Gemm (r, m)", (1, 48)),
        ("y = Relu (x)", (1, 16_000)),
    ],
)
def test_an_input_without_a_rank_takes_any(
    tmp_path: Path, body: str, shape: tuple[int, ...]
) -> None:
    """The rank is guessed, and the user may give another one."""
    model = onnx_model(body, C, x="float[1] x", y="float[] y")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "m.onnx")
    found = describe(tmp_path / "m.onnx")
    assert workload_for(found, None, {}).feeds[0]["x"].shape == shape
    assert workload_for(found, None, {"x": (2, 3, 4)}).feeds[0]["x"].shape == (2, 3, 4)
    np.savez(tmp_path / "d.npz", x=np.zeros((3, 2, 5, 7), np.float32))
    assert workload_for(found, tmp_path / "d.npz", {}).feeds[0]["x"].shape == (2, 5, 7)


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("y = Relu (x)", (1, 3, 224, 224)),
        # 3 x 640 x 640 values are a multiple of this, and 3 x 224 x 224 are not
        ("s = Constant <value_ints = [-1, 409600]> () y = Reshape (x, s)", (1, 3, 640, 640)),
        ("s = Constant <value_ints = [-1, 46080]> () y = Reshape (x, s)", (1, 3, 48, 320)),
    ],
)
def test_the_sizes_are_those_with_which_the_model_runs(
    tmp_path: Path, body: str, shape: tuple[int, ...]
) -> None:
    """A model that does not run with one size is tried with the next."""
    path = save_onnx(tmp_path / "m.onnx", body, x="float[n,3,h,w] x", y="float[] y")
    workload = workload_for(describe(path), None, {})
    assert workload.feeds[0]["x"].shape == shape
    assert any(f"--shape x={','.join(map(str, shape))}" in note for note in workload.notes)


def test_a_model_that_runs_with_no_usual_size_is_refused_with_what_to_type(tmp_path: Path) -> None:
    body = "c = Conv (pixel_values, w) s = Constant <value_ints = [7]> () y = Reshape (c, s)"
    path = save_onnx(tmp_path / "m.onnx", body, C, x=VISION, y="float[] y")
    model = describe(path)
    with pytest.raises(RequestError, match=r"m\.onnx runs on no inputs.*Reshape") as refused:
        workload_for(model, None, {})
    text = str(refused.value)
    assert "pixel_values has 4 in dimension 2" in text
    assert "--shape pixel_values=1,4,64,64" in text


def test_sizes_that_autotune_chose_are_not_fixed() -> None:
    """A config that fixes a size takes no other one: only sizes that the user gave are fixed."""
    model = model_of(IDS, MASK, tensor("x", "float32", "batch", "other"))
    assert generate(model, {}).dimensions(model) == {}
    given = generate(model, {"ids": (1, 7)})
    assert given.dimensions(model) == {"batch": 1, "length": 7}


def test_a_size_that_takes_too_long_rules_out_larger_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 tokens with one mask, 77, 32: a size is not tried again with other values."""
    tried: list[int] = []

    def run(_: object, choice: Choice) -> TriedRun:
        length = choice.shapes["ids"][1]
        tried.append(length)
        if length > 32:
            raise ChildFailure("timeout", "no reply")
        return TriedRun(nan=("y",) if choice.variant.mask < 1 else ())

    monkeypatch.setattr(tried_inputs._Tries, "_run", run)
    choice = first_that_runs(model_of(IDS, MASK), {})
    assert choice.shapes["ids"] == (1, 32)
    assert choice.variant.mask == 1  # with both values the answers hold NaN
    assert tried == [128, 77, 32, 32]
