"""Sizes of generated inputs whose dimensions a model leaves open."""

from pathlib import Path

import pytest
from factories import model_of, save_onnx, tensor

from autotune.facts.generated import generate
from autotune.facts.model import describe
from autotune.facts.model_facts import Tensor
from autotune.facts.usual_sizes import completed, usual_shapes

IDS = tensor("ids", "int64", "batch", "length")
MASK = tensor("mask", "float32", "batch", "length")


@pytest.mark.parametrize(
    ("inputs", "shapes"),
    [
        ([tensor("x", "float32", "n", 3, "h", "w")], [(1, 3, 224, 224)]),
        ([tensor("x", "uint8", None, None, None, 3)], [(1, 224, 224, 3)]),
        ([tensor("x", "float32", "?", 3, "?", "?")], [(1, 3, 224, 224)]),
        ([tensor("line", "float32", "n", 1, 64, "w")], [(1, 1, 64, 224)]),
        ([MASK, IDS], [(1, 128), (1, 128)]),
        ([tensor("sound", "float32", "n", "time")], [(1, 16_000)]),
        ([tensor("sound", "float32", "n", 1, "time")], [(1, 1, 16_000)]),
        ([tensor("frames", "float32", None, None, 80)], [(1, 128, 80)]),
        ([IDS, tensor("past_key", "float32", "batch", 3, "past", 64)], [(1, 128), (1, 3, 1, 64)]),
    ],
)
def test_open_dimensions_have_the_sizes_of_their_kind(
    inputs: list[Tensor], shapes: list[tuple[int, ...]]
) -> None:
    """Images, lines of text, tokens, sounds and sequences; the batch and caches are 1."""
    first = next(usual_shapes(inputs))
    assert [first[item.name] for item in inputs] == shapes


@pytest.mark.parametrize(
    "inputs", [[tensor("x", "float32", "n", 3, 8, 8)], [tensor("state", "float32", 2, None, 128)]]
)
def test_nothing_is_tried_where_only_batches_and_states_are_open(inputs: list[Tensor]) -> None:
    assert not list(usual_shapes(inputs))


def test_a_given_shape_sets_dimensions_of_the_same_name() -> None:
    """With ``--shape ids=2,7`` the mask has 2 x 7 values as well, and not the usual number."""
    usual = {"ids": (1, 128), "mask": (1, 128)}
    assert completed([IDS, MASK], {"ids": (2, 7)}, usual) == {"ids": (2, 7), "mask": (2, 7)}
    assert completed([IDS, MASK], {}, {}) == {"ids": (1, 1), "mask": (1, 1)}
    feed = generate(model_of(IDS, MASK), {"mask": (1, 5)}).feeds[0]
    assert feed["ids"].shape == (1, 5)


@pytest.mark.process
@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("y = Relu (x)", (1, 3, 224, 224)),
        # 3 x 640 x 640 values are a multiple of this, and 3 x 224 x 224 are not
        ("s = Constant <value_ints = [-1, 409600]> () y = Reshape (x, s)", (1, 3, 640, 640)),
        ("s = Constant <value_ints = [-1, 46080]> () y = Reshape (x, s)", (1, 3, 48, 320)),
        ("s = Constant <value_ints = [3]> () y = Reshape (x, s)", (1, 3, 1, 1)),
    ],
)
def test_the_sizes_are_those_with_which_the_model_runs(
    tmp_path: Path, body: str, shape: tuple[int, ...]
) -> None:
    """A model that does not run with one size is tried with the next, and with 1 in the end."""
    path = save_onnx(tmp_path / "m.onnx", body, x="float[n,3,h,w] x", y="float[] y")
    workload = generate(describe(path), {})
    assert workload.feeds[0]["x"].shape == shape
    assert any(f"--shape x={','.join(map(str, shape))}" in note for note in workload.notes)
