"""The state of a study that a page shows, read from its folder."""

import math
from pathlib import Path
from typing import Any

import optuna
import pytest

from autotune.errors import RequestError, StudyError
from autotune.report.page.state import read_state
from autotune.search.trial import Limits
from autotune.study.options import StudyOptions

pytestmark = pytest.mark.usefixtures("quiet")


def test_a_study_of_an_earlier_version_is_read(frozen_study: Path) -> None:
    state = read_state(frozen_study)
    assert state.result is not None
    assert [trial.number for trial in state.trials] == [0, 1, 2, 3]
    assert state.options is not None
    assert state.options.trials == 4
    assert state.facts["ONNX Runtime"]
    assert state.baseline is not None
    assert state.chosen is not None
    assert state.limits.max_error == 0.05


def test_a_study_without_a_result_is_read(frozen_study: Path) -> None:
    (frozen_study / "front.json").unlink()
    state = read_state(frozen_study)
    assert state.result is None
    assert len(state.trials) == 4


def test_a_result_without_a_storage_is_read(
    frozen_study: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AUTOTUNE_STORAGE", raising=False)
    (frozen_study / "study.db").unlink()
    state = read_state(frozen_study)
    assert state.result is not None
    assert state.trials == ()
    assert not (frozen_study / "study.db").exists()


def test_a_storage_elsewhere_is_read(frozen_study: Path) -> None:
    database = (frozen_study / "study.db").rename(frozen_study.parent / "elsewhere.db")
    state = read_state(frozen_study, f"sqlite:///{database}")
    assert len(state.trials) == 4


def test_a_missing_storage_is_not_made(frozen_study: Path) -> None:
    with pytest.raises(StudyError, match="there is no storage"):
        read_state(frozen_study, f"sqlite:///{frozen_study / 'absent.db'}")
    assert not (frozen_study / "absent.db").exists()


def test_another_study_has_no_result(frozen_study: Path) -> None:
    name = read_state(frozen_study).name
    assert read_state(frozen_study, name=name).result is not None
    with pytest.raises(RequestError, match="there is none called 'other'"):
        read_state(frozen_study, name="other")


@pytest.mark.parametrize(
    ("asked", "limits"),
    [
        ({"max_memory_mib": 5.0}, Limits(max_memory_mib=5.0)),
        ({"metric": "judge:top1"}, Limits(max_error=math.inf, max_drop=0.01)),
        ({"max_error": 0.02}, Limits(max_error=0.02)),
    ],
)
def test_limits_are_those_asked_for(
    frozen_study: Path, asked: dict[str, Any], limits: Limits
) -> None:
    """Before there is a result the storage says them."""
    (frozen_study / "front.json").unlink()
    study = optuna.load_study(
        study_name=read_state(frozen_study).name, storage=f"sqlite:///{frozen_study / 'study.db'}"
    )
    study.set_user_attr("request", StudyOptions.of("m.onnx", **asked).to_record())
    study.set_user_attr("metric", asked.get("metric", ""))
    assert read_state(frozen_study).limits == limits
