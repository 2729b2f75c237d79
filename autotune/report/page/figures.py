"""How the search went, the effect of each value, memory by phase and noise, as figures."""

import math
from collections.abc import Sequence
from itertools import accumulate

from autotune.deploy.options import Value
from autotune.report.page.figure import FARTHEST, Figure, Plot, axis, bars, dots, plot, wrapped
from autotune.report.page.rows import PHASES, Row, memory_by_phase
from autotune.report.page.state import StudyState
from autotune.search.effects import Effect
from autotune.search.objective import values
from autotune.space.configuration import Configuration

_MOST_EFFECTS = 18
_TICKS = [0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.4, 2, 3, 5, 10]
_COLOURS = ("@accent", "@second", "@good", "@bad", "@faint")


def search_figure(state: StudyState, rows: Sequence[Row]) -> Figure | None:
    """Returns the first objective by trial, relative to the default; None without trials."""
    objective, base = state.objectives[0], state.baseline
    if base is None:
        return None
    measured = [
        (row, values(row.measurement)[objective.name])
        for row in rows
        if row.measurement is not None
    ]
    scale = objective.cost(values(base)[objective.name])
    trials = [row.trial for row, _ in measured]
    relative = [objective.cost(value) / scale for _, value in measured]
    admitted = [
        math.inf if row.state == "rejected" else cost
        for (row, _), cost in zip(measured, relative, strict=True)
    ]
    best = [cost if math.isfinite(cost) else None for cost in accumulate(admitted, min)]
    traces = [
        {
            **dots("best so far", trials, best, "@accent"),
            "mode": "lines",
            "line": {"color": "@accent", "width": 2, "shape": "hv"},
            "hovertemplate": "best so far: %{y:.4g}<extra></extra>",
        },
        {
            **dots("a trial", trials, relative, "@faint"),
            "text": [wrapped(row.words) for row, _ in measured],
            "hovertemplate": "trial %{x}: %{y:.4g}<br>%{text}<extra></extra>",
        },
    ]
    inside = [cost for cost in relative if cost <= FARTHEST]
    word = objective.word
    return Figure(
        name="search",
        title="How the search went",
        caption=f"Estimates of the search, relative to the default; lower is better. Trials above "
        f"{FARTHEST:g} lie outside; a double-click shows them.",
        plot=plot(
            traces,
            xaxis=axis("trial"),
            yaxis=axis(
                f"default / {word}" if objective.maximised else f"{word} / default",
                range=[0.94 * min(inside), 1.03 * max(inside)],
            ),
        ),
        height_px=340,
    )


def value_in_words(parameter: str, value: Value) -> str:
    """Returns one value of a parameter in words."""
    words = Configuration(((parameter, value),)).in_words()
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
        **dots(
            name,
            [f.value for f in factors],
            [place + offset for place, _ in effects],
            {"color": c, "size": 9},
        ),
        "error_x": bars(
            [f.value - f.low for f in factors],
            [f.high - f.value for f in factors],
            color=c,
            thickness=1.5,
            width=0,
        ),
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


# A trial that was stopped at once has a wider interval.
_WIDEST_PERCENT = 60


def memory_figure(state: StudyState) -> Figure | None:
    """Returns the memory of default and chosen configuration by phase; None if not at hand."""
    pairs = [("the default", state.baseline, "@bad"), ("chosen", state.chosen, "@good")]
    traces = []
    for name, measurement, colour in pairs:
        if measurement is None or (name == "chosen" and measurement is state.baseline):
            continue
        sizes = memory_by_phase(measurement)
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "x": sizes,
                "y": [wrapped(phase, 22) for phase in PHASES],
                "text": [f"{mib:.1f}" for mib in sizes],
                "textposition": "auto",
                "marker": {"color": colour},
                "hovertemplate": "%{y}: %{x:.1f} MiB<extra></extra>",
            }
        )
    if not traces:
        return None
    return Figure(
        name="memory",
        title="Memory by phase",
        caption="Memory that a session adds to its process, as the search measured it. The first "
        "two are high-water marks; their larger one, with any growth, is the peak memory.",
        plot=plot(
            traces,
            xaxis=axis("MiB"),
            yaxis=axis("", autorange="reversed"),
            barmode="group",
            bargap=0.3,
        ),
        height_px=340,
    )


def noise_figure(rows: Sequence[Row]) -> Figure | None:
    """Returns how undisturbed each trial was; None without trials."""
    measured = [(row.trial, row.measurement) for row in rows if row.measurement is not None]
    if not measured:
        return None
    numbers = [trial for trial, _ in measured]
    quiet = [100 * m.undisturbed_turns / m.turns if m.turns else 0.0 for _, m in measured]
    widths = [100 * (m.ratio.high - m.ratio.low) / 2 / m.ratio.value for _, m in measured]
    traces = [
        {
            **dots("undisturbed", numbers, quiet, "@accent"),
            "type": "bar",
            "hovertemplate": "trial %{x}: %{y:.0f} % were undisturbed<extra></extra>",
        },
        {
            **dots("half of the interval", numbers, widths, "@second"),
            "yaxis": "y2",
            "hovertemplate": "trial %{x}: ± %{y:.1f} %<extra></extra>",
        },
    ]
    return Figure(
        name="noise",
        title="Noise of the machine",
        caption="Above: the share of a trial's time slices that nothing disturbed; its "
        "latency rests on these. Below: half of the 95 % interval of its latency. Trials that "
        "were stopped early have wide ones.",
        plot=plot(
            traces,
            xaxis=axis("trial", anchor="y2"),
            yaxis=axis("undisturbed, %", domain=[0.54, 1], range=[0, 105]),
            yaxis2=axis(
                "± %", domain=[0, 0.44], range=[0, 1.1 * min(max(widths), _WIDEST_PERCENT)]
            ),
        ),
        height_px=380,
    )
