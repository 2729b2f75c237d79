"""Nothing that a study reads is overwritten by what it writes."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from factories import everything_in
from fakes import FakeWorld, thread_cost

from autotune.errors import StudyError
from autotune.facts import sample_models
from autotune.results.result import StudyResult
from autotune.results.writing import pick_member

NAME = "best-01234567.onnx"

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in which nothing may have changed when a study is refused."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def _model(path: Path) -> Path:
    onnx.save(sample_models.lstm(features=4, width=8), path)
    return path


def _inputs(path: Path, *samples: int) -> Path:
    """Writes inputs for the model: so many samples, or one feed if there is no number."""
    frames, state = (np.ones((*samples, 1, 1, size), np.float32) for size in (4, 8))
    np.savez(path, frames=frames, state=state)
    return path


def _refused(folder: Path, name: str, model: Path | str, **options: Any) -> None:
    """Runs a study that must be refused because of the file `name`, with nothing written."""
    before = everything_in(folder.parent)
    with pytest.raises(StudyError, match="would be overwritten") as refusal:
        FakeWorld(thread_cost).tune(model, trials=2, space="session", **options)
    assert name in str(refusal.value)
    assert "--out DIR" in str(refusal.value)
    assert everything_in(folder.parent) == before


@pytest.mark.parametrize("out", [".", "../here", "below/.."])
def test_a_model_in_the_place_of_the_result(folder: Path, out: str) -> None:
    (folder / "below").mkdir()
    _refused(folder, NAME, _model(folder / NAME), out=out)


def test_links_do_not_hide_the_model(folder: Path) -> None:
    model = _model(folder / "net.onnx")
    (folder / "out").mkdir()
    (folder / "out" / NAME).symlink_to(model)
    _refused(folder, "net.onnx", "net.onnx", out="out")
    (folder / "link").symlink_to(folder / "out")
    _refused(folder, "net.onnx", "net.onnx", out="link")
    (folder / "out" / NAME).unlink()
    os.link(model, folder / "out" / NAME)
    _refused(folder, "net.onnx", "net.onnx", out="out")


@pytest.mark.parametrize("name", ["best.json", f"{NAME}.data", "study.db", ".lock"])
def test_a_data_file_in_the_place_of_the_record(folder: Path, name: str) -> None:
    model = sample_models.lstm(features=4, width=8)
    onnx.save(model, folder / "net.onnx", save_as_external_data=True, location=name)
    _refused(folder, name, "net.onnx", out=".")


def test_inputs_spaces_and_configurations_stay(folder: Path) -> None:
    model = _model(folder / "net.onnx")
    (folder / "out" / "samples").mkdir(parents=True)
    _inputs(folder / "out" / "samples" / "inputs.npz")
    _refused(folder, "samples", model, out="out", data=folder / "out" / "samples")
    data = _inputs(folder / "out" / "samples" / "inputs.npz", 2)
    _refused(folder, "inputs.npz", model, out="out", data=data)
    tried = folder / "out" / "best.json"
    tried.write_text('{"intra_op_num_threads": 2}', encoding="ascii")
    _refused(folder, "best.json", model, out="out", first=[tried])
    space = folder / "out" / "front.json"
    values = "[parameters.intra_op_num_threads]\nvalues = [0, 1]\ndefault = 0\n"
    space.write_text(f'description = "threads"\n{values}', encoding="ascii")
    before = everything_in(folder.parent)
    with pytest.raises(StudyError, match=r"front\.json would be overwritten"):
        FakeWorld(thread_cost).tune(model, trials=2, space=str(space), out="out")
    assert everything_in(folder.parent) == before


@pytest.mark.parametrize("name", ["best.json", "front.json", "report.html", NAME, "cache"])
def test_files_of_another_program_are_not_taken(folder: Path, name: str) -> None:
    """They have the names of a study's files, and no study wrote them."""
    model = _model(folder / "net.onnx")
    if name == "cache":
        (folder / name).mkdir()
    else:
        (folder / name).write_text('{"a": 1}', encoding="ascii")
    before = everything_in(folder.parent)
    with pytest.raises(StudyError, match=f"{name} is there already.* --out DIR"):
        FakeWorld(thread_cost).tune(model, trials=2, space="session", out=".")
    assert everything_in(folder.parent) == before


def test_a_folder_of_inputs_that_links_to_the_database(folder: Path) -> None:
    model = _model(folder / "net.onnx")
    (folder / "inputs").mkdir()
    (folder / "out").mkdir()
    _inputs(folder / "one.npz").rename(folder / "out" / "study.db")
    (folder / "inputs" / "one.npz").symlink_to(folder / "out" / "study.db")
    _refused(folder, "one.npz", model, out="out", data=folder / "inputs")


def test_a_database_in_the_place_of_the_model(folder: Path) -> None:
    model = _model(folder / "net.onnx")
    _refused(folder, "net.onnx", model, out="out", storage=f"sqlite:///{model}")
    assert not (folder / "out").exists()


def test_files_beside_the_result_are_no_obstacle(folder: Path) -> None:
    """A study may write to the folder of its model and inputs where the names differ."""
    model = _model(folder / "net.onnx")
    data = _inputs(folder / "inputs.npz", 2)
    before = everything_in(folder.parent)
    result = FakeWorld(thread_cost).tune(model, trials=2, space="session", out=".", data=data)
    assert (folder / "best.json").is_file()
    assert before.items() <= everything_in(folder.parent).items()
    again = FakeWorld(thread_cost).tune(model, trials=3, space="session", out=".", data=data)
    assert again.trials > result.trials


def test_picking_does_not_overwrite_the_model(folder: Path) -> None:
    model = _model(folder / "net.onnx")
    FakeWorld(thread_cost).tune(model, trials=2, space="session", out="out")
    model.replace(folder / "out" / NAME)
    model.symlink_to(folder / "out" / NAME)
    with pytest.raises(StudyError, match=r"net\.onnx would be overwritten"):
        pick_member(StudyResult.read(folder / "out"), 0)
