"""Files that ONNX Runtime optimises: right on other processors than the one that wrote them."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from autotune.facts import sample_models
from autotune.graph import model_file
from autotune.graph.entries import StepRefusedError
from autotune.graph.passes import PASSES
from autotune.graph.storage_form import STORAGE_FORMS

pytestmark = pytest.mark.filterwarnings("ignore")

_WRITERS = {
    **{name: step for name, step in PASSES.items() if step.late},
    "prepacked": STORAGE_FORMS["prepacked"],
}


@pytest.fixture
def cnn(tmp_path: Path) -> Path:
    """A network whose channels fill the blocks of every processor."""
    path = tmp_path / "cnn.onnx"
    onnx.save(sample_models.cnn(channels=32, size=16), path)
    return path


def _answer(path: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    image = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    output: np.ndarray = session.run(None, {"image": image})[0]
    return output


@pytest.mark.parametrize("name", _WRITERS)
def test_no_file_has_the_blocks_of_one_processor(cnn: Path, tmp_path: Path, name: str) -> None:
    target = tmp_path / "best.onnx"
    _WRITERS[name].run(cnn, target)
    written = onnx.load(target, load_external_data=False)
    assert {"Conv", "FusedConv"} & {node.op_type for node in written.graph.node}
    assert "com.microsoft.nchwc" not in {node.domain for node in written.graph.node}
    assert np.abs(_answer(target) - _answer(cnn)).max() < 1e-4


def test_blocks_that_were_written_all_the_same_are_refused(
    cnn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime passes over the names of optimisers that it does not know."""
    monkeypatch.setattr(model_file, "_BLOCKED_LAYOUT", "RenamedTransformer")
    with pytest.raises(StepRefusedError, match="blocks of this processor"):
        model_file.write_optimised(cnn, tmp_path / "best.onnx", "ORT_ENABLE_ALL")


def test_weights_that_were_packed_for_other_kernels_are_packed_again(tmp_path: Path) -> None:
    """Packed weights have the digest of their bytes; one that is not this machine's is not used."""
    source, target = tmp_path / "cnn.onnx", tmp_path / "best.onnx"
    onnx.save(sample_models.cnn(channels=32, size=16), source)
    STORAGE_FORMS["prepacked"].run(source, target)
    model = onnx.load(target, load_external_data=False)
    data = target.with_name("best.onnx.data")
    contents = bytearray(data.read_bytes())
    changed = 0
    for entry in (e for item in model.graph.initializer for e in item.external_data):
        if entry.key.startswith("prepacked"):
            # OPERATOR+DIGEST|START;BYTES;...
            digest, *places = entry.value.split("|")
            entry.value = "|".join([f"{digest}1", *places])
            for start, size in (map(int, place.split(";")[:2]) for place in places):
                contents[start : start + size] = bytes(size)
            changed += 1
    assert changed
    data.write_bytes(contents)
    onnx.save(model, target)
    assert np.abs(_answer(target) - _answer(source)).max() < 1e-4
