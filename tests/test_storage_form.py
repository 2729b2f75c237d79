"""Storage forms: weights elsewhere, the same answers."""

from pathlib import Path

import onnx
import pytest
from small_models import applies, distance, write

from autotune.graph.storage_form import STORAGE_FORMS

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("kind", ["cnn", "transformer"])
@pytest.mark.parametrize("form", STORAGE_FORMS)
def test_a_storage_form_keeps_the_answers(tmp_path: Path, kind: str, form: str) -> None:
    """Weights stored in another way give the same answers."""
    source, feeds = write(kind, tmp_path)
    target = tmp_path / "out" / "best.onnx"
    target.parent.mkdir()
    if not applies(lambda: STORAGE_FORMS[form].run(source, target)):
        return
    assert distance(source, target, feeds) < 1e-4
    names = {file.name for file in target.parent.iterdir()}
    assert names == {"best.onnx", "best.onnx.data"}


def test_external_data_is_where_the_model_says(tmp_path: Path) -> None:
    """The weights leave the model's file, and it names them by their bare name."""
    source, _ = write("transformer", tmp_path)
    target = tmp_path / "best.onnx"
    STORAGE_FORMS["external_data"].run(source, target)
    assert target.stat().st_size < source.stat().st_size / 2
    model = onnx.load(target, load_external_data=False)
    places = {
        e.value for w in model.graph.initializer for e in w.external_data if e.key == "location"
    }
    assert places == {"best.onnx.data"}
