"""What a study says as it goes."""

import math
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from fakes import measurement, refusal
from rich.console import Console

from autotune.cli.progress import StudyProgress
from autotune.measure.outcome import Outcome
from autotune.report.progress import bar, stage, standing
from autotune.report.text import duration, percent
from autotune.search.trial import Trial
from autotune.space.configuration import BASELINE, Configuration
from autotune.study.progress import Progress, TimeLeft, final_s

DEFAULT = Trial(number=0, configuration=BASELINE, outcome=measurement(14.2, 57.0))


def _trial(outcome: Outcome) -> Trial:
    return Trial(number=1, configuration=Configuration.of({"arena": "off"}), outcome=outcome)


def _search(outcome: Outcome, **state: Any) -> Progress:
    """Returns the progress of a search that has just measured this."""
    return Progress(
        stage="search", done=2, total=9, trials=(_trial(outcome),), remaining_s=61, **state
    )


def _lines(progress: Progress) -> list[str]:
    """Returns the lines that a pipe gets for one trial that is reported twice."""
    text = StringIO()
    with StudyProgress(Console(file=text)) as show:
        show(replace(progress, done=0, trials=()))
        for _ in range(2):
            show(replace(progress, note=""))
    return text.getvalue().splitlines()


def _screen(progress: Progress, width: int = 80) -> str:
    text = StringIO()
    console = Console(file=text, force_terminal=True, width=width, color_system=None)
    with StudyProgress(console) as show:
        show(progress)
    return text.getvalue()


def test_a_trial_is_one_line() -> None:
    begin, line = _lines(_search(measurement(12.0, 50.0)))
    assert begin == "searching ..."
    assert line.split() == "2/9 12 ms 50.0 MiB no arena | 1 min 1 s left".split()


def test_a_line_has_the_best_so_far() -> None:
    best = _trial(measurement(10.0, 36.4))
    line = _lines(_search(measurement(12.0, 50.0), best=best, baseline=DEFAULT))[1]
    assert line.endswith("no arena | best 1.42×, 36 MiB (default 57) | 1 min 1 s left")


def test_a_terminal_shows_the_best_so_far() -> None:
    best = _trial(measurement(10.0, 36.4))
    screen = _screen(_search(measurement(12.0, 50.0), best=best, baseline=DEFAULT))
    assert "searching" in screen
    assert "2/9 1 min 1 s left best 1.42×, 36 MiB (default 57)" in screen


def test_the_default_may_be_the_best() -> None:
    progress = _search(measurement(14.2, 57.0), best=DEFAULT, baseline=DEFAULT)
    assert standing(progress) == "best so far: the default"
    assert standing(_search(refusal("no"), baseline=DEFAULT)) == ""
    # below 10 MiB a whole number would hide the difference
    small = Trial(number=0, configuration=BASELINE, outcome=measurement(10.0, 9.6))
    near = _search(measurement(12.0), best=_trial(measurement(10.0, 9.4)), baseline=small)
    assert standing(near) == "best 1.00×, 9.4 MiB (default 9.6)"
    assert standing(Progress(stage="final comparison", best=DEFAULT, baseline=DEFAULT)) == ""


def test_a_failure_says_why() -> None:
    line = _lines(_search(refusal("no such\x1b[2J thing")))[1]
    assert line.strip() == "2/9  refused  no arena: no such?[2J thing | 1 min 1 s left"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model", "reading the model"),
        ("baseline", "measuring the default"),
        ("search", "searching"),
        ("final comparison", "final comparison"),
        ("done", ""),
    ],
)
def test_stages_in_plain_words(name: str, words: str) -> None:
    assert stage(Progress(stage=name)) == words
    assert _lines(Progress(stage=name)) == ([f"{words} ..."] if words else [])


def test_notes_are_no_markup() -> None:
    assert _lines(Progress(stage="done", note="input net[red]x")) == ["input net[red]x"]
    text = StringIO()
    console = Console(file=text, force_terminal=True, width=80, color_system=None)
    with bar(console) as live:
        live.add_task("net[red]x", total=None, count="[b]", left="[i]", standing="[/]")
    assert "net[red]x" in text.getvalue()
    assert "[b] [i] [/]" in text.getvalue()


@pytest.mark.parametrize(
    ("words_of", "number", "words"),
    [
        (duration, 45, "45 s"),
        (duration, 200, "3 min 20 s"),
        (duration, 7500, "2 h 5 min"),
        (percent, 0.98, "98 %"),
        (percent, 0.0063, "0.6 %"),
        (percent, 1.0, "100 %"),
    ],
)
def test_numbers_in_words(words_of: Callable[[float], str], number: float, words: str) -> None:
    assert words_of(number) == words


class _Heard:
    """What a study that began at 0 says at moments of a clock."""

    def __init__(self, deadline_s: float = math.inf) -> None:
        self.clock_s = 0.0
        self._latest = Progress(stage="model")
        self._report = TimeLeft(self._hear, lambda: self.clock_s, 0.0, deadline_s)

    def _hear(self, progress: Progress) -> None:
        self._latest = progress

    def left_s(self, clock_s: float, stage: str, remaining_s: float | None = None) -> float | None:
        """Returns the time left that is reported of a stage."""
        self.clock_s = clock_s
        self._report(Progress(stage=stage, remaining_s=remaining_s))
        return self._latest.remaining_s


def test_the_search_counts_what_follows_it() -> None:
    heard = _Heard()
    assert heard.left_s(10, "search", 90) == 90 + final_s(100) == 140
    assert heard.left_s(100, "search", 0) == 50


def test_the_final_comparison_counts_leave_one_out() -> None:
    heard = _Heard()
    assert heard.left_s(100, "final comparison") == 50
    assert heard.left_s(120, "final comparison", 5) == 30
    assert heard.left_s(140, "simplification") == 10
    # more steps than there was time for
    assert heard.left_s(145, "simplification", 8) == 8
    assert heard.left_s(170, "simplification") is None  # later than expected, and nothing known


@pytest.mark.parametrize(("stage", "remaining_s"), [("search", 90.0), ("final comparison", None)])
def test_no_more_than_the_deadline_leaves(stage: str, remaining_s: float | None) -> None:
    assert _Heard(deadline_s=130).left_s(100, stage, remaining_s) == 30


def test_what_is_unknown_stays_unknown() -> None:
    assert _Heard().left_s(1, "baseline") is None
    assert _Heard().left_s(1, "search") is None
