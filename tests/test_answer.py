"""The answer that the page begins with."""

import pages

from autotune.report.page.rows import rows_of
from autotune.report.page.state import StudyState
from autotune.report.page.writing import Answer, answer_of


def _answer(state: StudyState) -> Answer:
    return answer_of(state, rows_of(state))


def test_the_code_names_the_config() -> None:
    code = _answer(pages.state(pages.result())).code
    assert 'session = autotune.load("tiny.autotune/best.json")' in code
    compile(code, "page", "exec")


def test_a_running_study_promises_nothing() -> None:
    answer = _answer(pages.state())
    assert answer.headline.startswith("Best so far: trial 1, 2.00× faster, 5 ms and 60.0 MiB.")
    assert answer.trial == 1
    assert not answer.confirmed
    assert not answer.code
    assert answer.blocks == ()


def test_a_study_without_a_measurement_says_so() -> None:
    answer = _answer(pages.state(trials=pages.trials()[-1:]))
    assert answer.headline == "tiny.onnx: no trial has ended yet."
