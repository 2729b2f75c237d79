"""The answer that the page begins with."""

from dataclasses import replace

import pages
import pytest

from autotune.deploy.config import Interval
from autotune.report.page.rows import rows_of
from autotune.report.page.state import StudyState
from autotune.report.page.writing import Answer, answer_of


def _answer(state: StudyState) -> Answer:
    return answer_of(state, rows_of(state))


def test_the_code_names_the_config() -> None:
    code = _answer(pages.state(pages.result())).code
    assert 'session = autotune.load("tiny.autotune/best.json")' in code
    compile(code, "page", "exec")


@pytest.mark.parametrize(
    ("low", "value", "high", "words"),
    [
        (0.991, 0.995, 0.999, "as fast as the default"),
        (0.955, 1.02, 1.097, "slower than the default by up to 4.5 %"),
        (0.900, 0.95, 0.980, "1.05× slower than the default"),
    ],
)
def test_what_is_not_proven_to_be_as_fast_says_so(
    low: float, value: float, high: float, words: str
) -> None:
    """The page has the sentence of the text, and JSON the interval that it follows from."""
    speedup = Interval(value=value, low=low, high=high)
    base, winner, *rest = pages.result().members
    evidence = replace(winner.evidence, speedup=speedup, significant=False)
    result = pages.result(members=(base, replace(winner, evidence=evidence), *rest))
    headline = _answer(pages.state(result)).headline
    assert headline.startswith(f"tiny.onnx: {words}, ")
    (written,) = (m for m in result.to_json()["members"] if m["evidence"]["trial"] == 1)
    assert written["evidence"]["speedup"]["low"] == low


def test_what_a_busy_machine_measured_is_not_confirmed() -> None:
    base, winner, *rest = pages.result().members
    busy = replace(winner, evidence=replace(winner.evidence, undisturbed=False))
    answer = _answer(pages.state(pages.result(members=(base, busy, *rest))))
    assert ", on a busy machine." in answer.headline
    assert "this is not confirmed" in str(answer.blocks)


def test_a_running_study_promises_nothing() -> None:
    answer = _answer(pages.state())
    assert answer.headline.startswith("Best so far: trial 1, 2.00× faster, 5 ms and 60.0 MiB.")
    assert answer.trial == 1
    assert not answer.code
    assert answer.blocks == ()


def test_a_study_without_a_measurement_says_so() -> None:
    answer = _answer(pages.state(trials=pages.trials()[-1:]))
    assert answer.headline == "tiny.onnx: no trial has ended yet."
