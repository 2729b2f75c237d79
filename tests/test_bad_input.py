"""A wrong request ends in a sentence and exit code 2, before anything is written."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import command_line
import numpy as np
import onnx
import optuna
import pytest
from factories import onnx_model

import autotune
from autotune.errors import DataError, ModelError, RequestError
from autotune.facts import sample_models
from autotune.storage.database import quiet_optuna


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Gives a working directory with a sound model, ``model.onnx``."""
    monkeypatch.chdir(tmp_path)
    sample_models.write("lstm", tmp_path / "model.onnx")
    return tmp_path


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Returns everything in the folder: names, and what files hold."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def refused(kind: type[RequestError], phrases: Sequence[str], model: str, **wishes: Any) -> None:
    """Checks that the request is refused by class and words, and that nothing is written."""
    before = snapshot(Path.cwd())
    with pytest.raises(autotune.AutotuneError) as caught:
        autotune.tune(model, **wishes)
    assert type(caught.value) is kind
    assert caught.value.exit_code == 2
    for phrase in phrases:
        assert phrase in str(caught.value)
    assert snapshot(Path.cwd()) == before


def assert_refused(code: int, stdout: str, stderr: str, phrases: Sequence[str]) -> None:
    """Checks the exit code, and the phrases in what the program said."""
    said = " ".join(stderr.split())
    assert code == 2, said
    assert "Traceback" not in said
    assert stdout == ""
    for phrase in phrases:
        assert phrase in said


def test_a_folder_for_a_model(folder: Path) -> None:
    (folder / "models").mkdir()
    refused(ModelError, ["models is a folder", ".onnx file"], "models")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_model(folder: Path, share: float) -> None:
    whole = Path("model.onnx").read_bytes()
    Path("cut.onnx").write_bytes(whole[: int(len(whole) * share)])
    refused(ModelError, ["cut.onnx", "no ONNX model"], "cut.onnx")


@pytest.mark.parametrize(
    ("size_bytes", "phrases"),
    [
        (0, ["'weights.bin' is missing", "beside the model"]),
        (10, ["'weights.bin' is truncated"]),
    ],
)
def test_wrong_external_data(folder: Path, size_bytes: int, phrases: list[str]) -> None:
    weights: dict[str, Any] = {"location": "weights.bin", "size_threshold": 0}
    model = onnx_model("y = MatMul (x, w)", {"w": np.eye(3, dtype=np.float32)}, x="float[b,3] x")
    onnx.save(model, "external.onnx", save_as_external_data=True, **weights)
    Path("weights.bin").unlink()
    if size_bytes:
        Path("weights.bin").write_bytes(bytes(size_bytes))
    refused(ModelError, ["external.onnx", *phrases], "external.onnx")


@pytest.mark.parametrize(
    ("node", "opset", "phrases"),
    [
        ("Nonsense", 17, ["'Nonsense'", "opset 17"]),
        ("my.operators.Nonsense", 17, ["my.operators", "Nonsense", "custom operators"]),
        ("Relu", 99, ["opset 99", "upgrade onnxruntime"]),
    ],
    ids=["operator", "domain", "opset"],
)
def test_what_onnxruntime_lacks(folder: Path, node: str, opset: int, phrases: list[str]) -> None:
    model = onnx_model(f"y = {node} (x)", x="float[b,3] x", y="float[b,3] y", opset=opset)
    if "." in node:
        model.opset_import.add(domain="my.operators", version=1)
    Path("odd.onnx").write_bytes(model.SerializeToString())
    refused(ModelError, ["odd.onnx", *phrases], "odd.onnx")


def test_pickled_data_are_not_run(folder: Path) -> None:

    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (folder / "trapped",))

    np.savez(folder / "inputs.npz", frames=np.array([Trap()], object), state=np.zeros(1))
    refused(DataError, ["inputs.npz", "Python objects"], "model.onnx", data="inputs.npz")
    assert not (folder / "trapped").exists()


def test_a_study_folder_of_another_model(folder: Path) -> None:
    (folder / "taken").mkdir()
    database = f"sqlite:///{folder / 'taken' / 'study.db'}"
    with quiet_optuna():
        study = optuna.create_study(storage=database, directions=["minimize"] * 2)
    study.set_user_attr("model", "other.onnx")
    study.set_user_attr("model_sha256", "f" * 64)
    before = sorted(path.name for path in Path("taken").iterdir())
    done = command_line.run(folder, "study", "model.onnx", "--out", "taken")
    phrases = ["taken holds a study of another model (other.onnx", "--out DIR"]
    assert_refused(done.returncode, done.stdout, done.stderr, phrases)
    assert sorted({path.name for path in Path("taken").iterdir()} - {".lock"}) == before
    assert optuna.get_all_study_names(database) != []


@pytest.mark.process
def test_without_onnxruntime(folder: Path) -> None:
    modules = folder / "modules"
    modules.mkdir()
    (modules / "onnxruntime.py").write_text("raise ImportError('absent')\n", encoding="ascii")
    before = snapshot(Path.cwd())
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "study", "model.onnx"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(modules), "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )
    phrases = ["onnxruntime is not installed", 'pip install "ort-autotune[cpu]"']
    assert_refused(done.returncode, done.stdout, done.stderr, phrases)
    assert " ".join(done.stderr.split()).count("onnxruntime is not installed") == 1
    assert snapshot(Path.cwd()) == before
