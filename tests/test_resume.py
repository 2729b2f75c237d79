"""Studies that go on: what a storage holds, and the command that continues one of them."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import optuna
import pytest
from command_line import run
from factories import everything_in
from fakes import FakeWorld
from shared_worker import cost
from test_cli import refused

import autotune
from autotune.errors import RequestError, StudyError
from autotune.facts import sample_models
from autotune.space.configuration import Configuration
from autotune.storage.database import Place, open_storage, quiet_optuna
from autotune.study.options import StudyOptions
from autotune.study.resume import (
    StoredStudy,
    choose,
    entries,
    options_of,
    options_to_continue,
    place_of,
)
from autotune.study.run import run_study


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of four trials."""
    place = tmp_path_factory.mktemp("studies")
    sample_models.write("lstm", place / "model.onnx")
    FakeWorld(cost, on_disk=True).tune(
        place / "model.onnx", trials=4, space="session", out=place / "model.autotune"
    )
    return place


def test_studies_are_listed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By URL, or by the variable: so that no password is typed."""
    url = f"sqlite:///{place}/model.autotune/study.db"
    done = run(place, "show", url)
    assert done.returncode == 0, done.stderr
    assert re.search(r"model-[0-9a-f]{12}", done.stdout)
    assert "4 of 4" in done.stdout
    (only,) = json.loads(run(place, "show", url, "--json").stdout)["studies"]
    assert only["trials"] == only["budget"] == 4
    assert only["machine"]["ONNX Runtime"]
    assert "name a model (.onnx), or the folder" in refused(place, "study")
    monkeypatch.setenv("AUTOTUNE_STORAGE", url)
    assert run(place, "show").stdout == done.stdout


def _resumed(folder: Path, **changes: Any) -> list[Configuration]:
    """Goes on with the study in `folder`; returns the configurations that were measured."""
    world = FakeWorld(cost, on_disk=True)
    where, _ = place_of(str(folder))
    (only,) = entries(where)
    changes |= {"out": folder, "storage": f"sqlite:///{where.file}"}
    run_study(options_of(only, **changes), lambda _: None, world.seams())
    return world.searched


def test_a_study_goes_on_as_it_was_asked_for(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "model.autotune", tmp_path / "copy")
    assert len(_resumed(tmp_path / "copy", trials=6)) == 2
    where, _ = place_of(str(tmp_path / "copy"))
    assert [(entry.trials, entry.budget) for entry in entries(where)] == [(6, 6)]


def test_a_study_moves_with_its_folder(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "model.autotune", tmp_path / "moved")
    (place / "model.onnx").rename(tmp_path / "elsewhere.onnx")
    try:
        assert "--set model=PATH" in refused(tmp_path, "study", "moved")
        again = _resumed(tmp_path / "moved", model=tmp_path / "elsewhere.onnx")
    finally:
        (tmp_path / "elsewhere.onnx").rename(place / "model.onnx")
    assert again == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["."], "name one of them: model.onnx"),
        (["nonsense://host"], "--storage"),
        (["model.autotune", "--set", "study_name=other"], "there is none called 'other'"),
    ],
)
def test_wrong_places(place: Path, arguments: list[str], message: str) -> None:
    assert message in refused(place, "study", *arguments)


def test_a_study_on_a_storage_goes_on_in_its_folder(tmp_path: Path) -> None:
    sample_models.write("lstm", tmp_path / "model.onnx")
    url = f"sqlite:///{tmp_path / 'kept.db'}"
    folder, world = tmp_path / "elsewhere", FakeWorld(cost, on_disk=True)
    asked: dict[str, Any] = {"space": "session", "trials": 3, "out": folder, "storage": url}
    world.tune(tmp_path / "model.onnx", **asked, study_name="mine")
    assert options_to_continue(url, study_name="mine").folder == folder
    (folder / "front.json").unlink()
    assert options_to_continue(url).out is None


def test_a_name_is_of_one_study(tmp_path: Path) -> None:
    sample_models.write("lstm", tmp_path / "model.onnx")
    world = FakeWorld(cost, on_disk=True)
    asked: dict[str, Any] = {"space": "session", "out": tmp_path / "out", "study_name": "mine"}
    assert world.tune(tmp_path / "model.onnx", trials=3, **asked).study == "mine"
    assert world.tune(tmp_path / "model.onnx", trials=4, **asked).trials == 4
    assert len(world.searched) == 4
    with pytest.raises(StudyError, match=r"differs from this one in its space.*study_name"):
        world.tune(tmp_path / "model.onnx", trials=4, **asked, fix={"arena": "off"})


def test_a_named_study_goes_on_after_an_upgrade(tmp_path: Path) -> None:
    """Beside its older self, whose numbers may have been measured in another way."""
    sample_models.write("lstm", tmp_path / "model.onnx")
    world, out = FakeWorld(cost, on_disk=True), tmp_path / "out"
    asked: dict[str, Any] = {"space": "session", "out": out, "study_name": "mine"}
    world.tune(tmp_path / "model.onnx", trials=3, **asked)
    with quiet_optuna(), open_storage(Place.of(None, out)) as database:
        study = optuna.load_study(study_name="mine", storage=database)
        study.set_user_attr("autotune", "0.0.9")
    for trials in (3, 4):
        result = world.tune(tmp_path / "model.onnx", trials=trials, **asked)
        assert result.study == f"mine-{autotune.__version__}"
        assert result.trials == trials


def test_a_study_folder_of_another_model_is_refused(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "model.autotune", tmp_path / "taken")
    sample_models.write("cnn", tmp_path / "cnn.onnx")
    before = everything_in(tmp_path)
    said = refused(tmp_path, "study", "cnn.onnx", "--out", "taken")
    assert "taken holds a study of another model (model.onnx" in said
    assert "--out DIR" in said
    after = everything_in(tmp_path)
    assert {name: data for name, data in after.items() if not name.endswith(".lock")} == before


def _options(model: Path = Path("/m/model.onnx"), **changes: Any) -> StudyOptions:
    return StudyOptions(model=model, trials=10, objectives=("latency_ms",), **changes)


def _entry(**changes: Any) -> StoredStudy:
    defaults: dict[str, Any] = {
        "name": "model-1",
        "model": "model.onnx",
        "facts": {},
        "objectives": ("latency_ms",),
        "trials": 3,
        "options": _options(),
    }
    return StoredStudy(**{**defaults, **changes})


def test_one_of_several_models_is_chosen_by_name() -> None:
    where = Place.of("sqlite:///x.db", Path())
    one, two = _entry(), _entry(name="model-2", trials=7)
    other = _entry(name="other-3", options=_options(Path("/m/other.onnx")))
    assert choose([one, two], None, where) is two
    assert choose([one, two, other], "other-3", where) is other
    with pytest.raises(RequestError, match="several studies"):
        choose([one, two, other], None, where)
    with pytest.raises(RequestError, match="holds no study"):
        choose([], None, where)


def test_code_is_never_taken_from_a_storage(tmp_path: Path) -> None:
    """A storage may be a stranger's: the metric has to be named again."""
    model = tmp_path / "m.onnx"
    model.touch()
    entry = _entry(options=_options(model, metric="theirs:judge"))
    with pytest.raises(RequestError, match="add --metric"):
        options_of(entry)
    assert options_of(entry, metric="mine:judge").metric == "mine:judge"
    assert options_of(_entry(options=_options(model))).metric is None


def test_what_is_missing_is_asked_for(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.touch()
    with pytest.raises(RequestError, match="--set model=PATH"):
        options_of(_entry())
    with pytest.raises(RequestError, match="--data PATH"):
        options_of(_entry(options=_options(model, data=Path("/gone.npz"))))
    with pytest.raises(RequestError, match="cannot be read"):
        options_of(_entry(options=None))
    assert options_of(_entry(options=_options(model)), trials=50).trials == 50
