"""Trials of a study measured once more."""

import json
import math
import sqlite3
from pathlib import Path

import numpy as np
import optuna
import pytest
from fakes import measurement
from test_compare import make_fake, save_model

from autotune.errors import RequestError, StudyError
from autotune.facts.inputs import workload_for
from autotune.facts.model import describe
from autotune.measure.outcome import Outcome
from autotune.results.compare import Comparison, MakeMeasurer
from autotune.storage.database import VARIABLE
from autotune.study.again import measure_again


def _again(
    folder: Path,
    *numbers: int,
    make: MakeMeasurer,
    source: Path | None,
    data: Path | None = None,
    max_error: float | None = 0.05,
) -> Comparison:
    return measure_again(
        folder,
        numbers,
        source=source,
        data=data,
        max_error=max_error,
        on_step=lambda _done, _total: None,
        make_measurer=make,
    )


def _cost(_: str, threads: int) -> Outcome:
    return measurement({0: 10.0, 1: 5.0, 2: 20.0}[threads])


@pytest.fixture(autouse=True)
def _same_inputs(frozen_study: Path) -> None:
    """The version that wrote the study generated other inputs; the copy names those of today."""
    workload = workload_for(describe(frozen_study.parent / "lstm.onnx"), None, {})
    database = frozen_study / "study.db"
    with sqlite3.connect(database) as connection:
        connection.execute(
            "UPDATE study_user_attributes SET value_json = ? WHERE key = 'workload'",
            [json.dumps(workload.signature())],
        )


def test_any_trials_of_a_study(frozen_study: Path) -> None:
    before = (frozen_study / "study.db").read_bytes()
    fake, make = make_fake(_cost)
    comparison = _again(frozen_study, 3, 0, make=make, source=frozen_study.parent / "lstm.onnx")
    assert [config.name for config in comparison.configs] == ["trial 3", "trial 0"]
    assert [config.numbers.speedup.value for config in comparison.configs] == pytest.approx(
        [0.5, 1.0]
    )
    assert comparison.untouched
    assert fake.closed
    assert (frozen_study / "study.db").read_bytes() == before


def test_what_is_no_trial_is_refused(frozen_study: Path) -> None:
    _, make = make_fake(_cost)
    model = frozen_study.parent / "lstm.onnx"
    with pytest.raises(StudyError, match="no trial 12; its last one is 3"):
        _again(frozen_study, 12, make=make, source=model)
    other = save_model(frozen_study.parent, "other.onnx", width=16)
    with pytest.raises(StudyError, match="is not the model of the study"):
        _again(frozen_study, 3, make=make, source=other)
    with pytest.raises(RequestError, match="say where it is with --set model="):
        _again(frozen_study, 3, make=make, source=frozen_study / "absent.onnx")
    inputs = frozen_study.parent / "inputs.npz"
    np.savez(inputs, frames=np.ones((2, 1, 1, 4), np.float32), state=np.ones((2, 1, 1, 8), "f"))
    with pytest.raises(StudyError, match="the inputs are not those of the study"):
        _again(frozen_study, 3, make=make, source=model, data=inputs)
    empty = frozen_study.parent / "empty"
    empty.mkdir()
    with pytest.raises(StudyError, match="holds no study"):
        _again(empty, 3, make=make, source=model)


def test_the_study_is_the_one_that_show_shows(frozen_study: Path) -> None:
    """A larger study in the same storage is not taken: its trial 7 is none of the shown one's."""
    storage = f"sqlite:///{frozen_study / 'study.db'}"
    shown = json.loads((frozen_study / "front.json").read_text(encoding="utf-8"))["study"]
    optuna.copy_study(
        from_study_name=shown, from_storage=storage, to_storage=storage, to_study_name="larger"
    )
    larger = optuna.load_study(study_name="larger", storage=storage)
    larger.add_trials(larger.trials)
    _, make = make_fake(_cost)
    with pytest.raises(StudyError, match="no trial 7; its last one is 3"):
        _again(frozen_study, 7, make=make, source=frozen_study.parent / "lstm.onnx")


def test_a_study_on_another_storage_whose_metric_alone_decides(
    frozen_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable names the storage, and no error is too large."""
    database = (frozen_study / "study.db").rename(frozen_study.parent / "elsewhere.db")
    name = json.loads((frozen_study / "front.json").read_text(encoding="utf-8"))["study"]
    study = optuna.load_study(study_name=name, storage=f"sqlite:///{database}")
    study.set_user_attr("metric", "judge:top1")
    study.set_user_attr("request", {**study.user_attrs["request"], "max_error": None})
    _, make = make_fake(_cost)
    source = frozen_study.parent / "lstm.onnx"
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(StudyError, match=f"URL of its storage in {VARIABLE}"):
        _again(frozen_study, 3, make=make, source=source)
    monkeypatch.setenv(VARIABLE, f"sqlite:///{database}")
    (own,) = _again(frozen_study, 3, make=make, source=source, max_error=None).configs
    assert own.max_error == math.inf
