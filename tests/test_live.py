"""The page of a study that still runs."""

from pathlib import Path
from typing import Any

import pages
import pytest

from autotune.report.page.live import LivePage
from autotune.study.options import StudyOptions
from autotune.study.progress import Progress


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _live(folder: Path, clock: Clock, announced: list[Path] | None = None) -> LivePage:
    live = LivePage((announced if announced is not None else []).append, clock)
    options = StudyOptions.of("/models/tiny.onnx", trials=20, out=folder)
    live(Progress(stage="baseline", options=options))
    return live


def _progress(**changes: Any) -> Progress:
    return Progress(
        **{"stage": "search", "done": 6, "total": 20, "trials": pages.trials(), **changes}
    )


def test_the_first_trial_makes_a_page(tmp_path: Path, clock: Clock) -> None:
    announced: list[Path] = []
    live = _live(tmp_path, clock, announced)
    live(_progress(trials=()))
    assert announced == []
    live(_progress())
    clock.now_s += 1000
    live(_progress())
    assert announced == [tmp_path / "report.html"]
    assert "searching, 6/20" in announced[0].read_text(encoding="utf-8")


def test_the_page_is_written_seldom(tmp_path: Path, clock: Clock) -> None:
    live = _live(tmp_path, clock)
    live(_progress())
    clock.now_s += 29
    live(_progress(done=7))
    assert "6/20" in (tmp_path / "report.html").read_text(encoding="utf-8")
    clock.now_s += 2
    live(_progress(done=8))
    assert "8/20" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_slow_disk_is_used_less(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[float] = []

    def write_slowly(_: object) -> Path:
        written.append(clock.now_s)
        clock.now_s += 10
        return tmp_path

    monkeypatch.setattr("autotune.report.page.live.write_page", write_slowly)
    live = _live(tmp_path, clock)
    for _ in range(1200):
        live(_progress())
        clock.now_s += 1
    assert written == [100.0, 610.0, 1120.0]


def test_a_full_disk_ends_no_study(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:

    def fail(_: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("autotune.report.page.live.write_page", fail)
    announced: list[Path] = []
    _live(tmp_path, clock, announced)(_progress())
    assert announced == []


def test_the_final_comparison_is_followed(tmp_path: Path, clock: Clock) -> None:
    """It reports no trials; those of the search stay on the page."""
    live = _live(tmp_path, clock)
    live(_progress())
    clock.now_s += 60
    live(Progress(stage="final comparison", done=3, total=9))
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "final comparison, 3/9" in page
    assert 'data-trial="4"' in page
