"""Pre-passes and storage forms: another file that computes the same, or a refusal that says why."""

from pathlib import Path

import onnx
import pytest
from small_models import BUILDERS, applies, distance, write

from autotune.graph.passes import PASSES
from autotune.graph.storage_form import FORMS

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("kind", BUILDERS)
@pytest.mark.parametrize("name", PASSES)
def test_a_pass_keeps_the_answers(tmp_path: Path, kind: str, name: str) -> None:
    """Every pass yields a model that gives the same answers, or refuses with a sentence."""
    if PASSES[name].missing:
        pytest.skip(f"needs {', '.join(PASSES[name].missing)}")
    source, feeds = write(kind, tmp_path)
    before = source.read_bytes()
    target = tmp_path / "out" / "best.onnx"
    target.parent.mkdir()
    if applies(lambda: PASSES[name].run(source, target)):
        assert distance(source, target, feeds) < 1e-4
    assert source.read_bytes() == before


@pytest.mark.parametrize("kind", ["cnn", "transformer"])
@pytest.mark.parametrize("form", FORMS)
def test_a_storage_form_keeps_the_answers(tmp_path: Path, kind: str, form: str) -> None:
    """Weights stored in another way give the same answers."""
    source, feeds = write(kind, tmp_path)
    target = tmp_path / "out" / "best.onnx"
    target.parent.mkdir()
    if not applies(lambda: FORMS[form](source, target)):
        return
    assert distance(source, target, feeds) < 1e-4
    names = {file.name for file in target.parent.iterdir()}
    assert names == {"best.onnx"} if form == "inline" else {"best.onnx", "best.onnx.data"}


def test_external_data_is_where_the_model_says(tmp_path: Path) -> None:
    """The weights leave the model's file, and it names them by their bare name."""
    source, _ = write("transformer", tmp_path)
    target = tmp_path / "best.onnx"
    FORMS["external_data"](source, target)
    assert target.stat().st_size < source.stat().st_size / 2
    model = onnx.load(target, load_external_data=False)
    places = {
        e.value for w in model.graph.initializer for e in w.external_data if e.key == "location"
    }
    assert places == {"best.onnx.data"}


def test_what_is_external_can_be_optimised_offline(tmp_path: Path) -> None:
    """ONNX Runtime's own passes take a model with external data along with its data."""
    source, feeds = write("transformer", tmp_path)
    outside = tmp_path / "outside" / "best.onnx"
    target = tmp_path / "out" / "best.onnx"
    outside.parent.mkdir()
    target.parent.mkdir()
    FORMS["external_data"](source, outside)
    PASSES["ort_extended"].run(outside, target)
    assert distance(source, target, feeds) < 1e-4
