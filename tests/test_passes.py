"""Pre-passes: another file that computes the same, or a refusal that says why."""

import shutil
from pathlib import Path

import onnx
import pytest
from onnxruntime.transformers import optimizer
from small_models import distance, write

from autotune.graph.entries import StepRefusedError
from autotune.graph.passes import PASSES
from autotune.graph.storage_form import STORAGE_FORMS

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("kind", ["transformer", "cnn"])
@pytest.mark.parametrize("name", PASSES)
def test_a_pass_keeps_the_answers(tmp_path: Path, name: str, kind: str) -> None:
    if PASSES[name].missing:
        pytest.skip(f"needs {', '.join(PASSES[name].missing)}")
    source, feeds = write(kind, tmp_path)
    outside, target = tmp_path / "outside" / "best.onnx", tmp_path / "out" / "best.onnx"
    outside.parent.mkdir()
    target.parent.mkdir()
    STORAGE_FORMS["external_data"].run(source, outside)
    before = outside.read_bytes()
    if (name, kind) == ("ort_transformers", "cnn"):
        with pytest.raises(StepRefusedError, match="no pattern of a transformer"):
            PASSES[name].run(outside, target)
        return
    PASSES[name].run(outside, target)
    assert outside.read_bytes() == before
    shutil.rmtree(outside.parent)
    assert distance(source, target, feeds) < 1e-4


@pytest.mark.parametrize(
    ("fused", "kinds"),
    [
        ("BiasGelu", ["bert", "gpt2", "clip", "t5", "conformer"]),
        ("Attention", ["bert", "gpt2", "vit", "clip", "t5", "swin", "conformer"]),
    ],
)
def test_kinds_that_differ_in_their_masks_alone_are_tried_where_there_are_masks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fused: str, kinds: list[str]
) -> None:
    source, _ = write("transformer", tmp_path)
    tried = []

    class Optimised:
        model = onnx.load(source)

        @staticmethod
        def get_fused_operator_statistics() -> dict[str, int]:
            return {"Attention": 0, fused: 1}

    def optimize_model(_: str, *, model_type: str, opt_level: int) -> Optimised:
        tried.append(model_type)
        return Optimised()

    monkeypatch.setattr(optimizer, "optimize_model", optimize_model)
    PASSES["ort_transformers"].run(source, tmp_path / "best.onnx")
    assert tried == kinds
