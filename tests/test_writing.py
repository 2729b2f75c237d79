"""The page as it is written."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pages
import pytest
from fakes import measurement, refusal

from autotune.inspection.profile import TimeShare
from autotune.report.page.state import StudyState
from autotune.report.page.writing import prose, render_page, script_json, write_page
from autotune.search.trial import Trial
from autotune.space.configuration import BASELINE
from autotune.study.options import StudyOptions

EVIL = (
    "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>'\"&\u202e\udc80"
)


def hostile_state() -> StudyState:
    """Returns a study in which every text that a stranger can choose is an attack."""
    made = pages.result()
    members = [replace(member, words=EVIL) for member in made.members]
    result = pages.result(
        members=tuple(members),
        model=Path(f"/models/{EVIL}"),
        folder=Path(EVIL),
        left_out={EVIL: EVIL},
        notes=(EVIL,),
        environment=replace(made.environment, cpu=EVIL),
    )
    node = TimeShare(name=EVIL, operator=EVIL, nodes=1, time_ms=1.0, share=0.5)
    outcome = measurement(10.0)
    fidelity = replace(outcome.fidelity, errors={EVIL: (0.1, None)})
    default = Trial(number=0, configuration=BASELINE, outcome=replace(outcome, fidelity=fidelity))
    return pages.state(
        result,
        model=EVIL,
        name=EVIL,
        options=StudyOptions.of("tiny.onnx", metric=EVIL),
        facts={EVIL: EVIL},
        profiling=pages.profiling(node),
        trials=(default, replace(pages.trials()[-1], outcome=refusal(EVIL))),
    )


def test_names_of_strangers_are_text() -> None:
    page = render_page(hostile_state())
    page.encode()
    ours = re.sub(r"<script nonce=.*?</script>", "", page, flags=re.DOTALL)
    assert "owned" in ours
    assert "<script>" not in ours
    assert "<img" not in ours
    assert "\u202e" not in page
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert set(json.loads(data[1])) == {"trials", "selected"}


def test_json_cannot_end_its_script() -> None:
    value = {"a": EVIL, "b": "<!-- <script>"}
    text = script_json(value)
    assert not set("<>&") & set(text)
    assert json.loads(text) == value


def test_the_page_loads_nothing() -> None:
    page = render_page(pages.state(pages.result()))
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    nonce = re.search(r"script-src 'nonce-([\w-]+)'", policy[1])
    assert nonce is not None
    assert "default-src 'none'" in policy[1]
    assert page.count(f'<script nonce="{nonce[1]}">') == 1
    assert not re.search(r"<(link|img|iframe)\b|<script[^>]*\bsrc=", page.split("<script nonce")[0])


def test_a_running_study_loads_its_page_again() -> None:
    running = render_page(pages.state())
    assert 'http-equiv="refresh"' in running
    assert "The study runs: searching, 6/20." in running
    finished = render_page(pages.state(pages.result()))
    assert 'http-equiv="refresh"' not in finished


def test_estimates_are_marked_in_the_table() -> None:
    page = render_page(pages.state(pages.result())).split('id="table"')[1]
    rows = re.findall(r'<tr data-trial="(\d+)".*?</tr>', page, re.DOTALL)
    assert rows == ["0", "1", "2", "3", "4", "5"]
    cells = {
        number: re.search(
            rf'data-trial="{number}".*?data-label="latency ms">([^<]*)<', page, re.DOTALL
        )
        for number in rows
    }
    texts = {number: match[1] for number, match in cells.items() if match}
    assert texts == {"0": "10", "1": "5.5", "2": "9", "3": "~30", "4": "~4", "5": ""}


def test_a_study_that_was_cut_short_says_so() -> None:
    page = render_page(pages.state(pages.result(complete=False)))
    assert "No final comparison has confirmed this: " in page
    assert "~" in page.split('id="table"')[1]


def test_what_each_change_brings_is_shown() -> None:
    page = render_page(pages.state(pages.result(simplification=pages.simplification())))
    answer = page.split("<main>")[0]
    verdicts = re.findall(r'data-label="verdict">(.*?)</td>', answer)
    assert verdicts == ["kept", "kept", "no clear effect, dropped"]
    assert "1.80× (1.78–1.82)" in answer


def test_a_sentence_has_its_code_as_code() -> None:
    """A backtick without a second one stays, and nothing of a stranger is markup."""
    assert prose("type `a <b>` or `c`") == "type <code>a &lt;b&gt;</code> or <code>c</code>"
    assert prose("a ` b") == "a ` b"
    assert prose("`a` ` b") == "<code>a</code> ` b"
    assert prose("1.2–1.4") == "1.2\u2060–\u20601.4"


@pytest.mark.parametrize("made", [None, pages.result()], ids=["no result", "no trials"])
def test_little_is_enough_for_a_page(made: Any) -> None:
    trials = () if made else pages.trials()[:1]
    page = render_page(pages.state(made, trials=trials, options=None, stage=""))
    assert "<h1>" in page


def test_a_kept_profile_is_shown() -> None:
    node = TimeShare(name="conv_7", operator="Conv", nodes=1, time_ms=1.25, share=0.625)
    page = render_page(pages.state(pages.result(), profiling=pages.profiling(node)))
    assert '<section id="profile">' in page
    assert (
        'data-label="node">conv_7</td><td class="wrap" data-label="operator">Conv</td>'
        '<td class="number" data-label="ms">1.250</td>' in page
    )
    assert "The default takes 4 ms" in page
    assert '<section id="profile">' not in render_page(pages.state(pages.result()))


def test_the_page_is_replaced_whole(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("earlier", encoding="utf-8")
    path = write_page(pages.state(pages.result(), folder=tmp_path))
    assert path == tmp_path / "report.html"
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
