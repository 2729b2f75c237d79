"""Traffic of one model: shapes with their shares become samples."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import small_models
from command_line import run

from autotune.applications import traffic
from autotune.applications.recording import Fed, Shape
from autotune.applications.traffic import write_traffic
from autotune.errors import RequestError
from autotune.facts.model import Model, describe
from autotune.storage.locks import exclusive_use


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """A text encoder whose inputs have a batch and a sequence."""
    return describe(small_models.write("transformer", tmp_path)[0])


def lengths_of(folder: Path) -> list[tuple[int, ...]]:
    return [np.load(file)["input_ids"].shape for file in sorted(folder.glob("*.npz"))]


def written(data: object, model: Model, folder: Path) -> list[tuple[int, ...]]:
    """Writes the traffic of a JSON file; returns the shapes of its samples."""
    (folder / "lengths.json").write_text(json.dumps(data))
    write_traffic(model, folder / "lengths.json", folder / "traffic")
    return lengths_of(folder / "traffic")


def test_lengths_are_as_frequent_as_stated(model: Model, tmp_path: Path) -> None:
    parts = [
        {"dimensions": {"batch": 2, "sequence": 64}, "share": 1},
        {"dimensions": {"batch": 2, "sequence": 8}, "share": 3},
    ]
    shapes = written(parts, model, tmp_path)
    assert (shapes.count((2, 8)), shapes.count((2, 64))) == (24, 8)
    assert shapes == sorted(shapes)
    parts = [
        {"dimensions": {"batch": 1, "sequence": 4}, "share": 0.5},
        {"dimensions": {"batch": 8, "sequence": 4}, "share": 0.5},
    ]
    assert written(parts, model, tmp_path) == [(1, 4)] * 16 + [(8, 4)] * 16


@pytest.mark.parametrize(
    ("data", "phrase"),
    [
        ([{"dimensions": {"sequnce": 8}, "share": 1}], "Did you mean 'sequence'"),
        ([], "must not be empty"),
        ([{"dimensions": {"sequence": 0}, "share": 1}], "sequence"),
        ([{"shapes": 1}], "unknown key"),
    ],
)
def test_a_wrong_file_is_refused(data: object, phrase: str, model: Model, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--traffic") as refusal:
        written(data, model, tmp_path)
    assert phrase in str(refusal.value)
    assert "dimensions" in str(refusal.value)


def test_what_a_running_study_reads_stays(model: Model, tmp_path: Path) -> None:
    """The same command, typed once more, is refused before it writes the samples anew."""
    written([{"dimensions": {"sequence": 8}, "share": 1}], model, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "traffic").iterdir()}
    options = ["--traffic", "lengths.json", "--out", "."]
    with exclusive_use(tmp_path, cores=False):
        done = run(tmp_path, "study", str(model.path), *options)
    assert "another autotune is at work" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "traffic").iterdir()} == before


def test_calls_that_are_fed_outputs_are_no_traffic(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(inputs=(), fed={"input_ids": Fed(session=0, place=0)}, calls=3)
    session = SimpleNamespace(
        name="m", opened=SimpleNamespace(sha256=model.sha256), shapes={"": shape}
    )
    recording = SimpleNamespace(sessions=[session])
    monkeypatch.setattr(traffic, "Recording", SimpleNamespace(read=lambda _: recording))
    with pytest.raises(RequestError, match="type autotune study"):
        write_traffic(model, tmp_path, tmp_path / "traffic")
