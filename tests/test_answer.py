"""The answer that the page begins with."""

from dataclasses import replace

import pages

from autotune.deploy.config import Interval
from autotune.report.page.answer import Answer, answer_of
from autotune.report.page.rows import rows_of
from autotune.report.page.state import StudyState


def _answer(state: StudyState) -> Answer:
    return answer_of(state, rows_of(state))


def test_gains_have_intervals() -> None:
    """Speed-up and memory stand beside the default with the final comparison's intervals."""
    answer = _answer(pages.state(pages.result()))
    speed, memory, error, agreement = answer.cards
    assert speed.value == "1.82×"
    assert speed.details == ("95 % interval 1.64–2.00", "5.5 ms, default 10 ms")
    assert memory.value == "39 % less"
    assert memory.details == ("95 % interval 32–45 %", "61.0 MiB, default 100.0 MiB")
    assert error.details == ("limit 0.05", "measured on generated inputs")
    assert agreement.value == "100 %"
    assert answer.confirmed


def test_what_changed_is_told_by_where_it_is() -> None:
    """Changes of the model's file and of the session are apart; what is unchanged is not named."""
    answer = _answer(pages.state(pages.result()))
    assert answer.file_changes == "int8 static, external data"
    assert answer.session_changes == ""
    other = _answer(pages.state(pages.result(picked=2)))
    assert (other.file_changes, other.session_changes) == ("", "no arena")


def test_the_code_names_the_config() -> None:
    """The line that loads the config can be run as it stands."""
    code = _answer(pages.state(pages.result())).code
    assert 'session = autotune.load("tiny.autotune/best.json")' in code
    compile(code, "page", "exec")


def test_more_memory_is_no_gain() -> None:
    """A config that needs more memory says so, and its interval has the right ends."""
    fast = pages.member(1, pages.WINNER, 5.5, 125.0)
    base = pages.result().members[0]
    memory = _answer(pages.state(pages.result(members=(base, fast)))).cards[1]
    assert (memory.value, memory.good) == ("25 % more", False)
    assert memory.details[0] == "95 % interval 14–39 %"


def test_memory_within_its_noise_floor_is_the_same() -> None:
    """The ranges of both peaks stand beside the numbers."""
    fast = pages.member(1, pages.WINNER, 5.5, 90.0)
    expected = Interval(value=90.0, low=81.0, high=99.0)
    evidence = replace(fast.evidence, memory_noise_floor=0.2, peak_memory_interval_mib=expected)
    base = pages.result().members[0]
    state = pages.state(pages.result(members=(base, replace(fast, evidence=evidence))))
    memory = _answer(state).cards[1]
    assert memory.value == "the same"
    assert memory.details == ("90.0 (81.0–99.0) MiB, default 100.0 MiB",)


def test_a_result_of_an_earlier_version_has_no_interval_for_memory() -> None:
    """Only what was recorded is shown."""
    members = [replace(member, gains={}) for member in pages.result().members]
    answer = _answer(pages.state(pages.result(members=tuple(members))))
    assert answer.cards[1].details == ("61.0 MiB, default 100.0 MiB",)


def test_a_running_study_promises_nothing() -> None:
    """The best so far is an estimate, has no code, and breaks no limit."""
    answer = _answer(pages.state())
    assert answer.headline.startswith("Best so far: trial 1.")
    assert answer.trial == 1
    assert not answer.confirmed
    assert not answer.code
    assert all("search estimate" in card.title for card in answer.cards)


def test_a_study_without_a_measurement_says_so() -> None:
    """Nothing is shown where every trial failed."""
    answer = _answer(pages.state(trials=pages.trials()[-1:]))
    assert answer.headline == "tiny.onnx: no trial has ended yet."
    assert answer.cards == ()
