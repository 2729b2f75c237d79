"""The figures of the page, and the SVG that it has of them."""

import re
from dataclasses import replace

import pages
import pytest

from autotune.report.page.figure import Figure, Scale, Series, Stroke
from autotune.report.page.figures import (
    effects_figure,
    memory_figure,
    noise_figure,
    search_figure,
)
from autotune.report.page.front_figure import front_figure
from autotune.report.page.rows import rows_of
from autotune.report.page.state import StudyState
from autotune.report.page.writing import render_page
from autotune.search.objective import find


def _front(state: StudyState) -> Figure:
    figure = front_figure(state, rows_of(state))
    assert figure is not None
    return figure


def _by_name(figure: Figure) -> dict[str, Series]:
    return {series.name: series for series in figure.series}


def _trials(figure: Figure) -> dict[str, list[int | None]]:
    return {series.name: [mark.trial for mark in series.marks] for series in figure.series}


def test_confirmed_and_estimated_points_are_apart() -> None:
    """What is three times as slow as the default is left out, and counted."""
    figure = _front(pages.state(pages.result()))
    assert _trials(figure) == {
        "search estimate, over a limit": [4],
        "": [],
        "final comparison": [2],
        "the default": [0],
        "chosen": [1],
    }
    assert " 1 that are far worse than the default are left out." in figure.caption
    assert _by_name(figure)["search estimate, over a limit"].look == "faint hollow"
    assert figure.x.high < 30.0


def test_a_running_study_confirms_no_point() -> None:
    figure = _front(pages.state())
    assert set(_trials(figure)) == {
        "search estimate",
        "search estimate, over a limit",
        "the default",
    }
    assert not any(series.strokes for series in figure.series)


def test_intervals_are_those_of_the_gains() -> None:
    """They reach from the default's value over one end of the gain to that over the other."""
    across, up = _by_name(_front(pages.state(pages.result())))["chosen"].strokes
    assert [across.x1, across.x2] == pytest.approx([5.5 / 1.1, 5.5 / 0.9])
    assert across.y1 == across.y2 == 61.0
    assert up.x1 == up.x2 == 5.5


def test_other_objectives_span_the_figure() -> None:
    figure = _front(pages.state(pages.result(), objectives=find(("cpu_s",))))
    assert figure.x.title == "CPU s"
    assert figure.y.title == "latency ms"


def test_the_line_joins_the_front_alone() -> None:
    line = _by_name(_front(pages.state(pages.result())))[""].strokes
    assert line == [Stroke(5.5, 61.0, 9.0, 61.0), Stroke(9.0, 61.0, 9.0, 50.0)]


def test_the_best_so_far_keeps_the_limits() -> None:
    state = pages.state()
    figure = search_figure(state, rows_of(state))
    assert figure is not None
    each, best = figure.series
    assert [(mark.x, mark.y) for mark in each.marks] == [(0, 1.0), (1, 0.5), (2, 0.9), (4, 0.4)]
    assert [(stroke.x2, stroke.y2) for stroke in best.strokes][-1] == (4, 0.5)
    assert " 1 trials above 1.6 are left out." in figure.caption


def test_clear_effects_are_drawn() -> None:
    effect = pages.result().effects[0]
    unclear = replace(
        effect, parameter="arena", value="off", factor=replace(effect.factor, high=1.5)
    )
    figure = effects_figure(pages.state(pages.result(effects=(effect, unclear))))
    assert figure is not None
    assert [label.text for label in figure.labels] == ["external data"]
    assert effects_figure(pages.state(pages.result(effects=(unclear,)))) is None
    assert effects_figure(pages.state()) is None


def test_memory_of_default_and_choice_stand_side_by_side() -> None:
    figure = memory_figure(pages.state(pages.result()))
    assert figure is not None
    assert [[stroke.x2 for stroke in series.strokes] for series in figure.series] == [
        [0.0, 100.0, 100.0, 0.0],
        [0.0, 60.0, 60.0, 0.0],
    ]
    alone = memory_figure(pages.state(pages.result(picked=0)))
    assert alone is not None
    assert [series.name for series in alone.series] == ["the default"]


def test_each_trial_has_its_share_of_undisturbed_slices() -> None:
    figure = noise_figure(rows_of(pages.state()))
    assert figure is not None
    (series,) = figure.series
    assert [stroke.x1 for stroke in series.strokes] == [0, 1, 2, 3, 4]
    assert noise_figure([]) is None


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 100.0, [0, 20, 40, 60, 80, 100]),
        (0.52, 1.31, [0.6, 0.8, 1.0, 1.2]),
        (1234.0, 1236.0, [1234, 1234.5, 1235, 1235.5, 1236]),
    ],
)
def test_an_axis_has_a_few_round_ticks(low: float, high: float, ticks: list[float]) -> None:
    axis = Scale.of("ms", [low, high], low=low, high=high)
    assert axis.ticks == pytest.approx(ticks)
    assert (axis.place(low), axis.place(high), axis.place(2 * high)) == (0, 100, 100)
    assert not axis.holds(2 * high)


def test_one_value_has_an_axis_and_an_axis_may_be_logarithmic_or_run_down() -> None:
    assert Scale.of("ms", [0.0]).holds(0.0)
    assert Scale(title="", low=0.1, high=10, is_log=True).place(1) == pytest.approx(50)
    assert Scale(title="", low=4, high=0).place(1) == 75


def test_a_figure_is_an_svg_whose_marks_say_what_they_are() -> None:
    page = render_page(pages.state(pages.result()))
    (front,) = re.findall(r'<figure id="figure-front".*?</figure>', page, re.DOTALL)
    (chosen,) = re.findall(r'<use href="#star"[^>]*data-trial[^>]*>.*?</use>', front, re.DOTALL)
    assert 'data-trial="1"' in chosen
    assert "trial 1, final comparison: int8 static, external data\n" in chosen
    assert "1.82× the default&#39;s speed (1.64–2.00)\n" in chosen
    for name in ("search", "effects", "memory", "noise"):
        assert f'<figure id="figure-{name}"' in page


def test_the_page_is_small() -> None:
    """Also that of a long study: a page that a mail may carry."""
    trials = [replace(pages.trials()[number % 6], number=number) for number in range(300)]
    page = render_page(pages.state(pages.result(), trials=tuple(trials)))
    assert len(page.encode()) < 1 << 20
