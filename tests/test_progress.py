"""What a study says as it goes."""

from io import StringIO

import pytest
from fakes import measurement, refusal
from rich.console import Console

from autotune.measure.outcome import Outcome
from autotune.report.progress import StudyProgress, duration
from autotune.search.trial import Trial
from autotune.space.candidate import Candidate
from autotune.study.progress import Progress


def _told(outcome: Outcome) -> str:
    """Returns what a pipe gets for one trial, told twice."""
    trial = Trial(number=1, candidate=Candidate.of({"arena": "off"}), outcome=outcome)
    said = StringIO()
    with StudyProgress(Console(file=said)) as progress:
        for _ in range(2):
            progress(Progress(stage="search", done=2, total=9, latest=trial, remaining_s=61))
    return said.getvalue()


def test_a_trial_is_one_line() -> None:
    """With its numbers, what it changed, and the time left; however often it is told."""
    begin, line = _told(measurement(12.0, 50.0)).splitlines()
    assert begin == "searching ..."
    assert line.split() == "2/9 12 ms 50.0 MiB no arena (1 min 1 s left)".split()


def test_a_failure_says_why() -> None:
    """What was refused is told with the reason, without what could move a terminal's cursor."""
    line = _told(refusal("no such\x1b[2J thing")).splitlines()[1]
    assert line.strip() == "2/9  refused  no arena: no such?[2J thing  (1 min 1 s left)"


@pytest.mark.parametrize(
    ("seconds", "said"), [(45, "45 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations(seconds: float, said: str) -> None:
    """As a person says them."""
    assert duration(seconds) == said
