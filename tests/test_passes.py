"""Pre-passes: another file that computes the same, or a refusal that says why."""

from pathlib import Path

import pytest
from small_models import BUILDERS, applies, distance, write

from autotune.graph.passes import PASSES
from autotune.graph.storage_form import STORAGE_FORMS

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


def test_what_is_external_can_be_optimised_offline(tmp_path: Path) -> None:
    """ONNX Runtime's own passes take a model with external data along with its data."""
    source, feeds = write("transformer", tmp_path)
    outside = tmp_path / "outside" / "best.onnx"
    target = tmp_path / "out" / "best.onnx"
    outside.parent.mkdir()
    target.parent.mkdir()
    STORAGE_FORMS["external_data"].run(source, outside)
    PASSES["ort_extended"].run(outside, target)
    assert distance(source, target, feeds) < 1e-4
