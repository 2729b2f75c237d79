"""A study that certifies its config for the processors that the user names."""

from pathlib import Path

import made_results
import pytest

from autotune.deploy.config import COMPARED, NOT_COMPARED, Certificate, TunedConfig
from autotune.errors import RequestError
from autotune.study import tune as certifying
from autotune.study.options import StudyOptions
from autotune.study.progress import Progress
from autotune.study.tune import certify_result, check_processors


@pytest.mark.parametrize(("name", "words"), [("avx3", "Did you mean"), ("auto,x", "Name some of")])
def test_other_words_are_refused_before_the_study(name: str, words: str) -> None:
    options = StudyOptions.of("model.onnx", certify=["avx2", name])
    with pytest.raises(RequestError, match=words):
        check_processors(options.certify)


@pytest.mark.parametrize(
    ("asked", "kinds"), [(["auto"], None), (["avx2,arm64"], ("avx2", "arm64"))]
)
def test_each_certificate_is_reported(
    asked: list[str], kinds: tuple[str, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = {"samples": 4, "batch": 1, "padding": 0}
    certificates = (
        Certificate(processor="avx2", outcome=COMPARED, how="emulated", error=0.02, **base),
        Certificate(processor="arm64", outcome=NOT_COMPARED, how="no root", error=None, **base),
    )
    folder = Path(__file__).parent / "data" / "config"
    config = TunedConfig.read(folder / "best.json")
    seen: dict[str, object] = {}

    def certify(path: Path, **named: object) -> TunedConfig:
        seen.update(named, path=path)
        return TunedConfig(**{**vars(config), "certified": certificates})

    monkeypatch.setattr(certifying, "certify", certify)
    reports: list[Progress] = []
    result = made_results.result(folder=folder)
    certify_result(StudyOptions.of("model.onnx", certify=asked), result, reports.append)
    assert seen["processors"] == kinds
    assert seen["path"] == folder / "best.json"
    notes = [report.note for report in reports if report.note]
    assert notes == [
        "avx2: error 0.02 with single samples (emulated)",
        "arm64: not compared (no root)",
    ]
