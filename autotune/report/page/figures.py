"""How the search went and the effect of each value, as figures."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.deploy.options import Value
from autotune.measure.outcome import Measurement
from autotune.report.page.figure import Figure, Plot, axis, dots, plot, wrapped
from autotune.report.page.rows import Row
from autotune.report.page.state import StudyState
from autotune.search.beliefs import Effect
from autotune.search.hypervolume import hypervolume
from autotune.search.objective import values
from autotune.space.candidate import Candidate

CORNER = 1.5
"""The corner of the hypervolume, in the default's value of each objective."""

# A trial that is that many times slower than the default would press all others together.
_FARTHEST = 1.6
_MOST_EFFECTS = 18
_TICKS = [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.4, 2, 3, 5, 10]
_COLOURS = ("@accent", "@second", "@good", "@bad", "@faint")


@dataclass(frozen=True, kw_only=True)
class Course:
    """How the search went, a number for each measured trial.

    Attributes:
        trials: Numbers of the trials.
        first: Each trial's value of the first objective over the default's; the inverse of an
            objective that is maximised.
        best: The least of them so far within the limits; None while there is none.
        volumes: Hypervolume so far, in per cent of all up to :data:`CORNER`.
    """

    trials: tuple[int, ...]
    first: tuple[float, ...]
    best: tuple[float | None, ...]
    volumes: tuple[float, ...]


def course_of(state: StudyState, rows: Sequence[Row], base: Measurement) -> Course:
    """Returns how the search went; `base` has the numbers of the default."""
    scale = values(base, state.objectives)
    corner = (CORNER,) * len(state.objectives)
    trials, first, best, volumes = [], [], [], []
    front: list[tuple[float, ...]] = []
    least, volume = math.inf, 0.0
    for row in rows:
        if row.measurement is None:
            continue
        own = values(row.measurement, state.objectives)
        point = tuple(o.cost(own[o.name]) / o.cost(scale[o.name]) for o in state.objectives)
        if row.state != "rejected":
            least = min(least, point[0])
            if not any(all(map(operator.le, other, point)) for other in front):
                front = [o for o in front if not all(map(operator.le, point, o))] + [point]
                volume = 100 * hypervolume(front, corner) / CORNER ** len(corner)
        trials.append(row.trial)
        first.append(point[0])
        best.append(least if math.isfinite(least) else None)
        volumes.append(volume)
    return Course(
        trials=tuple(trials), first=tuple(first), best=tuple(best), volumes=tuple(volumes)
    )


def search_figure(state: StudyState, rows: Sequence[Row]) -> Figure | None:
    """Returns the best so far and the hypervolume by trial; None without trials."""
    objective, base = state.objectives[0], state.baseline
    if base is None:
        return None
    course = course_of(state, rows, base)
    measured = [row for row in rows if row.measurement is not None]
    traces = [
        _line("best so far", course.trials, course.best, "@accent"),
        {
            **dots("a trial", course.trials, course.first, "@faint"),
            "text": [wrapped(row.words) for row in measured],
            "hovertemplate": "trial %{x}: %{y:.4g}<br>%{text}<extra></extra>",
        },
        {**_line("hypervolume", course.trials, course.volumes, "@second"), "yaxis": "y2"},
    ]
    inside = [value for value in course.first if value <= _FARTHEST]
    layout = {
        "xaxis": axis("trial", anchor="y2"),
        "yaxis": axis(
            f"default / {objective.word}" if objective.maximised else f"{objective.word} / default",
            domain=[0.46, 1],
            range=[0.94 * min(inside), 1.03 * max(inside)],
        ),
        "yaxis2": axis("hypervolume, %", domain=[0, 0.38]),
    }
    return Figure(
        name="search",
        title="How the search went",
        caption="Estimates of the search. The hypervolume is the share of the space up to "
        f"{CORNER:g} times the default in every objective that the front so far dominates; it "
        "flattens where further trials find nothing new.",
        plot=plot(traces, **layout),
        height_px=460,
    )


def _line(name: str, x: Sequence[object], y: Sequence[object], colour: str) -> Plot:
    line = {"color": colour, "width": 2, "shape": "hv"}
    return {
        **dots(name, x, y, colour),
        "mode": "lines",
        "line": line,
        "hovertemplate": f"{name}: %{{y:.4g}}<extra></extra>",
    }


def value_in_words(parameter: str, value: Value) -> str:
    """Returns one value of a parameter in words."""
    words = Candidate(((parameter, value),)).in_words()
    return words if words != "the default" else f"{parameter}={value}"


def effects_figure(state: StudyState) -> Figure | None:
    """Returns the effect of each value with its interval; None where there is no clear one."""
    effects = state.result.effects if state.result else ()
    clear = list(dict.fromkeys((e.parameter, e.value) for e in effects if e.is_known))
    shown = clear[:_MOST_EFFECTS]
    if not shown:
        return None
    labels = [wrapped(value_in_words(name, value), 26) for name, value in shown]
    count = len(state.objectives)
    traces = []
    for number, objective in enumerate(state.objectives):
        by_value = {(e.parameter, e.value): e for e in effects if e.objective == objective.name}
        mine = [(place, by_value[key]) for place, key in enumerate(shown) if key in by_value]
        offset = (number - (count - 1) / 2) * 0.28
        traces.append(_effect_trace(objective.word, mine, offset, _COLOURS[number]))
    left_out = len(clear) - len(shown)
    rest = f" {left_out} more are in the table below." if left_out else ""
    return Figure(
        name="effects",
        title="The effect of each value",
        caption="How much one value alone changes an objective: 0.8 means 80 % of the default's. "
        "The bars are 95 % intervals of a model of all trials of the search. "
        f"Values without a clear effect are left out.{rest}",
        plot=plot(
            traces,
            xaxis=axis(
                "relative to the default",
                type="log",
                tickvals=_TICKS,
                ticktext=list(map(str, _TICKS)),
            ),
            yaxis=axis(
                "",
                tickvals=list(range(len(shown))),
                ticktext=labels,
                range=[len(shown) - 0.4, -0.6],
                zeroline=False,
            ),
            shapes=[_at_one()],
        ),
        height_px=110 + 44 * len(shown),
    )


def _effect_trace(name: str, effects: Sequence[tuple[int, Effect]], offset: float, c: str) -> Plot:
    factors = [effect.factor for _, effect in effects]
    return {
        **dots(name, [f.value for f in factors], [place + offset for place, _ in effects], c),
        "marker": {"color": c, "size": 9},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [f.high - f.value for f in factors],
            "arrayminus": [f.value - f.low for f in factors],
            "color": c,
            "thickness": 1.5,
            "width": 0,
        },
        "text": [
            f"{wrapped(value_in_words(e.parameter, e.value))}<br>{name}: ×{e.factor.value:.2f} "
            f"({e.factor.low:.2f}–{e.factor.high:.2f}), {e.trials} trials"
            for _, e in effects
        ],
        "hovertemplate": "%{text}<extra></extra>",
    }


def _at_one() -> Plot:
    """Returns the line of no effect."""
    line = {"color": "@muted", "width": 1, "dash": "dot"}
    return {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "line": line}
