"""Configs, results and storages that earlier versions wrote are still read (tests/data)."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import optuna
import pytest
from export_cases import FEED

import autotune
from autotune.deploy import loader
from autotune.deploy.config import TunedConfig
from autotune.deploy.loader import check_files
from autotune.results.result import StudyResult
from autotune.results.writing import pick_member
from autotune.search.optuna_trials import read_trials
from autotune.search.trial import Trial
from autotune.storage.database import Place, open_storage, quiet_optuna
from autotune.study.options import StudyOptions

DATA = Path(__file__).parent / "data"
# another machine, with another ONNX Runtime, tuned the frozen configs
_tuned_elsewhere = pytest.mark.filterwarnings("ignore:.* was tuned elsewhere")


def _trials(folder: Path) -> list[Trial]:
    """Returns the trials of the only study in a folder's storage."""
    with quiet_optuna(), open_storage(Place.of(None, folder)) as database:
        (only,) = database.get_all_studies()
        return read_trials(optuna.load_study(study_name=only.study_name, storage=database))


@_tuned_elsewhere
@pytest.mark.parametrize("name", ["study", "config"])
def test_a_config_loads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "WAS_IMPORTED", False)  # no other allocator is here
    session = autotune.load(DATA / name / "best.json")
    model = onnxruntime.InferenceSession(
        DATA / "study" / "best.onnx", providers=["CPUExecutionProvider"]
    )
    for output, expected in zip(session.run(None, FEED), model.run(None, FEED), strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["study", "config"])
def test_a_config_is_written_as_it_was_read(name: str) -> None:
    path = DATA / name / "best.json"
    check_files(path, TunedConfig.read(path), read_all=True)
    written = json.loads(json.dumps(TunedConfig.read(path).to_json()))
    assert written == json.loads(path.read_text(encoding="utf-8"))


def test_a_result_is_written_as_it_was_read(frozen_study: Path) -> None:
    data = json.loads((frozen_study / "front.json").read_text(encoding="utf-8"))
    written = json.loads(json.dumps(StudyResult.read(frozen_study).to_json()))
    assert written == {**data, "folder": str(frozen_study)}


@_tuned_elsewhere
def test_another_member_is_picked(frozen_study: Path) -> None:
    result = pick_member(StudyResult.read(frozen_study), 3)
    assert result.picked == 3
    config = TunedConfig.read(frozen_study / "best.json")
    assert config.session.options["intra_op_num_threads"] == 2
    assert config.session.options["enable_cpu_mem_arena"] is False
    assert config.session.free_dimensions == {"time": 1, "batch": 1}
    assert len(autotune.load(frozen_study / "best.json").run(None, FEED)) > 0


def test_the_storage_holds_the_trials_and_the_options(frozen_study: Path) -> None:
    trials = _trials(frozen_study)
    assert [trial.number for trial in trials] == [0, 1, 2, 3]
    assert all(trial.measurement is not None for trial in trials)
    assert trials[3].configuration.to_json()["arena"] == "off"
    with quiet_optuna(), open_storage(Place.of(None, frozen_study)) as database:
        (only,) = database.get_all_studies()
    assert StudyOptions.from_record(only.user_attrs["request"]) == StudyOptions.of(
        "/tmp/tests/frozen2/lstm.onnx",
        trials=4,
        space="session",
        max_error=0.05,
        max_drop=0.01,
        prefer="latency",
    )
