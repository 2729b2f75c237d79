"""Storage forms: weights elsewhere, the same answers."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from factories import save_onnx
from onnx import numpy_helper
from small_models import distance, write

from autotune.graph import int8
from autotune.graph.entries import StepRefusedError
from autotune.graph.storage_form import STORAGE_FORMS

_RELEASE = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("kind", ["cnn", "transformer"])
@pytest.mark.parametrize("form", STORAGE_FORMS)
def test_a_storage_form_keeps_the_answers(tmp_path: Path, kind: str, form: str) -> None:
    source, feeds = write(kind, tmp_path)
    target = tmp_path / "out" / "best.onnx"
    target.parent.mkdir()
    if (kind, form) == ("cnn", "prepacked") and _RELEASE < (1, 32):
        with pytest.raises(StepRefusedError, match="does not align"):
            STORAGE_FORMS[form].run(source, target)
        return
    STORAGE_FORMS[form].run(source, target)
    assert distance(source, target, feeds) < 1e-4
    names = {file.name for file in target.parent.iterdir()}
    assert names == {"best.onnx", "best.onnx.data"}


def test_packed_weights_are_aligned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases before 1.32 write blocks at any byte, and end in a segmentation fault on them."""

    def write_optimised(source: Path, target: Path, *_: object) -> None:
        model = onnx.load(source)
        weight = model.graph.initializer[0]
        weight.external_data.add(key="prepacked_0", value=f"Gemm+1|{offset};2048;0")
        onnx.save(model, target)

    source, _ = write("cnn", tmp_path)
    monkeypatch.setattr("autotune.graph.model_file.write_optimised", write_optimised)
    offset = 64
    STORAGE_FORMS["prepacked"].run(source, tmp_path / "best.onnx")
    offset = 96
    with pytest.raises(StepRefusedError, match="does not align"):
        STORAGE_FORMS["prepacked"].run(source, tmp_path / "best.onnx")


def test_a_weight_whose_packed_form_cannot_be_read_is_packed_again(tmp_path: Path) -> None:
    """ONNX Runtime 1.32 writes an empty block for the depthwise one of these two convolutions."""
    normal = np.random.default_rng(0).normal
    weights = {"w": normal(size=(88, 1, 5, 5)), "v": normal(size=(22, 88, 1, 1))}
    path = save_onnx(
        tmp_path / "model.onnx",
        "h = Conv <group=88> (x, w) y = Conv (h, v)",
        {name: weight.astype("f4") for name, weight in weights.items()},
        x="float[1,88,9,9] x",
        y="float[1,22,5,5] y",
    )
    feeds = [{"x": normal(size=(1, 88, 9, 9)).astype("f4")} for _ in range(2)]
    int8.static(path, tmp_path / "int8.onnx", feeds)
    target = tmp_path / "out" / "best.onnx"
    target.parent.mkdir()
    if _RELEASE < (1, 32):
        pytest.skip("packed weights are refused before 1.32")
    STORAGE_FORMS["prepacked"].run(tmp_path / "int8.onnx", target)
    assert distance(tmp_path / "int8.onnx", target, feeds) < 1e-4


def test_weights_that_are_numbers_in_the_model_move_too(tmp_path: Path) -> None:
    """Some exporters write weights as a list of numbers; they are stored outside like any other."""
    source, feeds = write("transformer", tmp_path)
    model = onnx.load(source)
    for item in model.graph.initializer:
        if item.data_type == onnx.TensorProto.FLOAT:
            numbers = numpy_helper.to_array(item).ravel().tolist()
            item.CopyFrom(onnx.helper.make_tensor(item.name, item.data_type, item.dims, numbers))
    onnx.save(model, source)
    target = tmp_path / "out" / "best.onnx"
    target.parent.mkdir()
    STORAGE_FORMS["external_data"].run(source, target)
    assert target.with_name("best.onnx.data").stat().st_size > 40_000
    assert distance(source, target, feeds) == 0
