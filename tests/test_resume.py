"""Studies that go on: what a storage holds, and the command that continues one of them."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeMeasurer
from shared_worker import cost
from test_cli import refused, run

from autotune.errors import RequestError
from autotune.facts import sample_models
from autotune.space.candidate import Candidate
from autotune.storage.database import Place
from autotune.study import job
from autotune.study.request import Request
from autotune.study.resume import Entry, choose, entries, place_of, request_of
from autotune.study.tune import tune

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of four trials."""
    place = tmp_path_factory.mktemp("studies")
    sample_models.write("lstm", place / "model.onnx")
    worker = Path(__file__).parent / "shared_worker.py"
    command = [sys.executable, str(worker), "model.onnx", "model.autotune", "4", "0"]
    subprocess.run(command, cwd=place, check=True, capture_output=True)
    return place


def test_studies_are_listed(place: Path) -> None:
    """With their models, machines and trials, for people and for programs."""
    done = run(place, "resume", "model.autotune", "--list")
    assert done.returncode == 0, done.stderr
    assert re.search(r"model-[0-9a-f]{12}\s+model.onnx", done.stdout)
    assert "4 of 4" in done.stdout
    told = json.loads(run(place, "resume", "model.autotune", "--list", "--json").stdout)
    (only,) = told["studies"]
    assert only["trials"] == only["budget"] == 4
    assert only["machine"]["ONNX Runtime"]


def _resumed(monkeypatch: pytest.MonkeyPatch, folder: Path, **wishes: Any) -> list[Candidate]:
    """Goes on with the study in `folder`; returns what was measured."""
    measurer = FakeMeasurer(cost)
    monkeypatch.setattr(job, "DuetMeasurer", lambda *_, **__: measurer)
    where, _ = place_of(str(folder))
    (only,) = entries(where)
    tune(**_asked(only, **wishes), out=folder, storage=f"sqlite:///{where.file}")
    return measurer.searched


def test_a_study_goes_on_as_it_was_asked_for(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same space and model; only the trials that are missing are measured."""
    shutil.copytree(place / "model.autotune", tmp_path / "copy")
    assert len(_resumed(monkeypatch, tmp_path / "copy", trials=6)) == 2
    where, _ = place_of(str(tmp_path / "copy"))
    assert [(entry.trials, entry.budget) for entry in entries(where)] == [(6, 6)]


def test_a_study_moves_with_its_folder(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the model is not where it was, it is asked for; nothing is measured again."""
    shutil.copytree(place / "model.autotune", tmp_path / "moved")
    (place / "model.onnx").rename(tmp_path / "elsewhere.onnx")
    try:
        assert "--model PATH" in refused(tmp_path, "resume", "moved")
        again = _resumed(monkeypatch, tmp_path / "moved", model=tmp_path / "elsewhere.onnx")
    finally:
        (tmp_path / "elsewhere.onnx").rename(place / "model.onnx")
    assert again == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["absent"], "absent holds no study"),
        (["nonsense://host"], "--storage"),
        (["model.autotune", "--study", "other"], "there is none called 'other'"),
        (["postgresql://me:secret-word@127.0.0.1:9/none"], ""),
    ],
)
def test_wrong_places(place: Path, arguments: list[str], told: str) -> None:
    """They are refused in words, and without a secret."""
    done = run(place, "resume", *arguments)
    assert done.returncode in {2, 75}
    assert told in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert "secret-word" not in done.stderr + done.stdout


def _request(model: Path = Path("/m/model.onnx"), data: Path | None = None) -> Request:
    return Request(
        model=model,
        trials=10,
        timeout_s=None,
        space="default",
        fix={},
        data=data,
        shapes={},
        max_error=0.05,
        max_drop=0.01,
        max_memory_mib=None,
        max_latency_ms=None,
        objectives=("latency_ms",),
        prefer="latency",
        seed=0,
        sampler="effects",
        early_stop=True,
    )


def _entry(**changes: Any) -> Entry:
    told: dict[str, Any] = {
        "name": "model-1",
        "model": "model.onnx",
        "facts": {},
        "objectives": ("latency_ms",),
        "trials": 3,
        "request": _request(),
        "has_metric": False,
    }
    return Entry(**{**told, **changes})


def test_one_of_several_models_is_chosen_by_name() -> None:
    """Of several studies of one model the one that is farthest goes on."""
    where = Place.of("sqlite:///x.db", Path())
    one, two = _entry(), _entry(name="model-2", trials=7)
    other = _entry(name="other-3", request=_request(Path("/m/other.onnx")))
    assert choose([one, two], None, where) is two
    assert choose([one, two, other], "other-3", where) is other
    with pytest.raises(RequestError, match="several studies"):
        choose([one, two, other], None, where)
    with pytest.raises(RequestError, match="holds no study"):
        choose([], None, where)


def _asked(entry: Entry, **changes: Any) -> dict[str, Any]:
    wishes: dict[str, Any] = {"model": None, "data": None, "trials": None, "metric": None}
    return request_of(entry, **{**wishes, **changes})


def test_code_is_never_taken_from_a_storage(tmp_path: Path) -> None:
    """A storage may be a stranger's: the metric has to be named again."""
    model = tmp_path / "m.onnx"
    model.touch()
    entry = _entry(has_metric=True, request=_request(model))
    with pytest.raises(RequestError, match="add --metric"):
        _asked(entry)
    assert _asked(entry, metric="mine:judge")["metric"] == "mine:judge"
    assert _asked(_entry(request=_request(model)))["metric"] is None


def test_what_is_missing_is_asked_for(tmp_path: Path) -> None:
    """Model and inputs by name, and a study that never said what it was asked for."""
    model = tmp_path / "m.onnx"
    model.touch()
    with pytest.raises(RequestError, match="--model PATH"):
        _asked(_entry())
    with pytest.raises(RequestError, match="--data PATH"):
        _asked(_entry(request=_request(model, Path("/gone.npz"))))
    with pytest.raises(RequestError, match="does not say"):
        _asked(_entry(request=None))
    assert _asked(_entry(request=_request(model)), trials=50)["trials"] == 50


def test_the_variable_says_where(place: Path) -> None:
    """So that no password is typed; without it the command says what to type."""
    assert "set AUTOTUNE_STORAGE" in refused(place, "resume")
    url = f"sqlite:///{place / 'model.autotune' / 'study.db'}"
    command = [sys.executable, "-m", "autotune", "resume", "--list"]
    variables = {**os.environ, "AUTOTUNE_STORAGE": url}
    done = subprocess.run(
        command, env=variables, cwd=place, capture_output=True, text=True, check=True, timeout=60
    )
    assert "4 of 4" in done.stdout
