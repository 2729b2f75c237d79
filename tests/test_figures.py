"""The figures of the page, as Plotly gets them."""

import json
from dataclasses import replace
from typing import Any

import pages
import pytest

from autotune.report.page.figure import markup, wrapped
from autotune.report.page.figures import (
    effects_figure,
    memory_figure,
    noise_figure,
    search_figure,
)
from autotune.report.page.front_figure import front_figure
from autotune.report.page.rows import rows_of
from autotune.report.page.state import StudyState
from autotune.search.objective import find


def _front(state: StudyState) -> dict[str, Any]:
    figure = front_figure(state, rows_of(state))
    return {trace.get("name", "line"): trace for trace in figure.plot["data"]}


def test_confirmed_and_estimated_points_are_apart() -> None:
    traces = _front(pages.state(pages.result()))
    assert traces["search estimate"]["customdata"] == [3]
    assert traces["search estimate, over a limit"]["customdata"] == [4]
    assert traces["final comparison"]["customdata"] == [1, 2]
    assert traces["the default"]["customdata"] == [0]
    assert traces["chosen"]["customdata"] == [1]
    assert traces["search estimate"]["marker"]["symbol"].endswith("open")


def test_a_running_study_confirms_no_point() -> None:
    traces = _front(pages.state())
    assert set(traces) == {"search estimate", "search estimate, over a limit", "the default"}
    assert traces["the default"]["error_x"]["array"] == [0.0]


def test_intervals_are_those_of_the_gains() -> None:
    """The bars reach from the default's value over one end of the gain to that over the other."""
    bars = _front(pages.state(pages.result()))["final comparison"]["error_x"]
    assert 5.5 - bars["arrayminus"][0] == pytest.approx(5.5 / 1.1)
    assert 5.5 + bars["array"][0] == pytest.approx(5.5 / 0.9)


def test_other_objectives_span_the_figure() -> None:
    state = pages.state(pages.result(), objectives=find(("cpu_s",)))
    titles = front_figure(state, rows_of(state)).plot["layout"]
    assert titles["xaxis"]["title"]["text"] == "CPU time of a run, s"
    assert titles["yaxis"]["title"]["text"] == "latency of a run, ms"


def test_the_line_joins_the_front_alone() -> None:
    line = _front(pages.state(pages.result()))["line"]
    assert line["x"] == [5.5, 9.0]


def test_what_lies_far_away_does_not_decide_the_axes() -> None:
    state = pages.state(pages.result())
    low, high = front_figure(state, rows_of(state)).plot["layout"]["xaxis"]["range"]
    assert low < 5.0
    assert 10.0 < high < 30.0


def test_the_best_so_far_keeps_the_limits() -> None:
    state = pages.state()
    figure = search_figure(state, rows_of(state))
    assert figure is not None
    best, each = figure.plot["data"]
    assert each["x"] == [0, 1, 2, 3, 4]
    assert each["y"] == [1.0, 0.5, 0.9, 3.0, 0.4]
    assert best["y"] == [1.0, 0.5, 0.5, 0.5, 0.5]


def test_clear_effects_are_drawn() -> None:
    effect = pages.result().effects[0]
    unclear = replace(
        effect, parameter="arena", value="off", factor=replace(effect.factor, high=1.5)
    )
    figure = effects_figure(pages.state(pages.result(effects=(effect, unclear))))
    assert figure is not None
    assert figure.plot["layout"]["yaxis"]["ticktext"] == ["external data"]
    assert effects_figure(pages.state(pages.result(effects=(unclear,)))) is None
    assert effects_figure(pages.state()) is None


def test_memory_of_default_and_choice_stand_side_by_side() -> None:
    figure = memory_figure(pages.state(pages.result()))
    assert figure is not None
    assert [trace["x"] for trace in figure.plot["data"]] == [
        [0.0, 100.0, 100.0, 0.0],
        [0.0, 60.0, 60.0, 0.0],
    ]
    alone = memory_figure(pages.state(pages.result(picked=0)))
    assert alone is not None
    assert len(alone.plot["data"]) == 1


def test_every_figure_is_plain_json() -> None:
    state = pages.state(pages.result())
    rows = rows_of(state)
    for figure in (
        front_figure(state, rows),
        search_figure(state, rows),
        effects_figure(state),
        memory_figure(state),
        noise_figure(rows),
    ):
        assert figure is not None
        json.dumps(figure.plot, allow_nan=False)


def test_text_of_strangers_is_no_markup() -> None:
    assert markup("<a href='x'>&amp;\x1b") == "&lt;a href='x'&gt;&amp;amp;?"
    assert wrapped("one two three", 7) == "one two<br>three"
