"""The state of a study that a page shows, read from its folder."""

from pathlib import Path

import pytest

from autotune.errors import RequestError, StudyError
from autotune.report.page.state import limits_of, read_state
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


def test_limits_are_those_asked_for() -> None:
    """Before there is a result the options say them; a metric alone knows no limit of the error."""
    plain = StudyOptions.of("m.onnx", max_memory_mib=5.0)
    limits = limits_of(None, plain, "")
    assert (limits.max_error, limits.max_memory_mib, limits.max_drop) == (0.05, 5.0, None)
    judged = limits_of(None, plain, "judge:top1")
    assert (judged.max_error, judged.max_drop) == (float("inf"), 0.01)
