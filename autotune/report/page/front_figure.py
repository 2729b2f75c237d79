"""The Pareto front as a figure: configurations, the default, intervals of the final comparison."""

from collections.abc import Sequence

from autotune.report.page.figure import (
    DIAMOND,
    FARTHEST,
    FILLED,
    HOLLOW,
    STAR,
    Figure,
    Plot,
    axis,
    bars,
    dots,
    plot,
    wrapped,
)
from autotune.report.page.rows import Row
from autotune.report.page.state import StudyState
from autotune.report.text import interval, latency
from autotune.search import pareto
from autotune.search.objective import DEFAULT, Objective, find

_HEIGHT_PX = 460
_MARGIN = 0.06
_CROSSED: Plot = {"symbol": "x-thin-open", "size": 7, "color": "@faint", "line": {"width": 1.2}}


def axes_of(state: StudyState) -> tuple[Objective, Objective]:
    """Returns the two objectives that span the figure: the study's first two."""
    names = [objective.name for objective in state.objectives]
    x, y = [*names, *(name for name in DEFAULT if name not in names)][:2]
    across, up = find((x, y))
    return across, up


def front_figure(state: StudyState, rows: Sequence[Row]) -> Figure:
    """Returns the figure; each point's ``customdata`` is the number of its trial."""
    across, up = axes_of(state)
    points = [row for row in rows if across.name in row.values and up.name in row.values]
    default = [row for row in points if row.state == "default"]
    return Figure(
        name="front",
        title="The Pareto front",
        caption=_caption(across, up, has_confirmed=any(row.confirmed for row in points)),
        plot=plot(
            [trace for trace in _traces(points, across, up) if trace["x"]],
            xaxis=axis(_title(across), range=_range(points, default, across)),
            yaxis=axis(_title(up), range=_range(points, default, up)),
        ),
        height_px=_HEIGHT_PX,
    )


def _traces(points: Sequence[Row], across: Objective, up: Objective) -> list[Plot]:
    """Returns estimates below, then the line of the front, and confirmed points above."""
    confirmed = [row for row in points if row.confirmed]
    searched = [row for row in points if not row.confirmed and row.state != "default"]
    kept = [row for row in searched if row.state != "rejected"]
    rejected = [row for row in searched if row.state == "rejected"]
    members = [row for row in confirmed if row.state != "default"]
    default = [row for row in points if row.state == "default"]
    chosen = [row for row in points if row.state == "chosen"]

    def trace(name: str, shown: Sequence[Row], marker: Plot, **more: object) -> Plot:
        x, y = ([row.values[objective.name] for row in shown] for objective in (across, up))
        return {
            **dots(name, x, y, marker),
            "text": [_hover(row) for row in shown],
            "customdata": [row.trial for row in shown],
            "hovertemplate": "%{text}<extra></extra>",
            **more,
        }

    def with_intervals(name: str, shown: Sequence[Row], marker: Plot) -> Plot:
        ends = {"error_x": _error_bars(shown, across), "error_y": _error_bars(shown, up)}
        return trace(name, shown, marker, **ends)

    return [
        trace("search estimate", kept, HOLLOW),
        trace("search estimate, over a limit", rejected, _CROSSED),
        _line(pareto.front(confirmed, lambda row: row.values, (across, up)), across, up),
        with_intervals("final comparison", members, FILLED),
        with_intervals("the default", default, DIAMOND),
        trace("chosen", chosen, STAR),
        # Plotly gives the pointer to the smallest point near it, which would be an estimate's
        trace("confirmed", confirmed, {"size": 1, "opacity": 0}, showlegend=False),
    ]


def _line(front: Sequence[Row], across: Objective, up: Objective) -> Plot:
    """Returns the line that joins the members of the front."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [row.values[across.name] for row in front],
        "y": [row.values[up.name] for row in front],
        "line": {"color": "@accent", "width": 1.5, "shape": "hv", "dash": "dot"},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _caption(across: Objective, up: Objective, *, has_confirmed: bool) -> str:
    corner = f"{'Upper' if up.maximised else 'Lower'} {'right' if across.maximised else 'left'}"
    source = (
        "Filled points are confirmed: the final comparison measured them side by side with the "
        "default, and the bars are its 95 % intervals. Hollow points are estimates of the search, "
        "relative to the default; the best of them are likely to be too good."
        if has_confirmed
        else "All points are estimates of the search. No final comparison has confirmed them."
    )
    return (
        f"{corner} is better. {source} Configurations far beyond the default lie outside; a "
        "double-click shows them."
    )


def _title(objective: Objective) -> str:
    return {
        "latency_ms": "latency of a run, ms",
        "peak_memory_mib": "peak memory of the session, MiB",
        "held_memory_mib": "memory held after all runs, MiB",
        "cpu_s": "CPU time of a run, s",
        "load_ms": "time to create the session, ms",
        "p99_ms": "99th percentile of the latency, ms",
        "peak_device_memory_mib": "peak memory of the device, MiB",
        "throughput_per_s": "throughput, runs per second",
        "tokens_per_s": "new tokens per second",
        "ttft_ms": "time to the first token, ms",
    }[objective.name]


def _hover(row: Row) -> str:
    """Returns what the pointer shows: the configuration, its numbers and their source."""
    source = "final comparison" if row.confirmed else "search estimate"
    lines = [f"<b>trial {row.trial}</b> · {source}", wrapped(row.words)]
    if row.speedup is not None and row.state != "default":
        lines.append(f"{row.speedup.value:.2f}× the default's speed ({interval(row.speedup)})")
    memory = row.values["peak_memory_mib"]
    lines.append(f"{latency(row.values['latency_ms'])} ms · {memory:.1f} MiB")
    if row.error is not None:
        lines.append(f"error {row.error:.1g}")
    if row.reason:
        lines.append(wrapped(row.reason))
    return "<br>".join(lines)


def _error_bars(rows: Sequence[Row], objective: Objective) -> Plot:
    """Returns the ends of the intervals of an objective, from those of the gains."""
    reaches = [_reach(row, objective) for row in rows]
    below, above = ([reach[end] for reach in reaches] for end in (0, 1))
    return bars(below, above, thickness=1.5, width=4)


def _reach(row: Row, objective: Objective) -> tuple[float, float]:
    """Returns how far the interval of an objective reaches below and above its value."""
    name = objective.name
    gain = row.gains.get(name)
    if not row.confirmed or gain is None or gain.low <= 0:
        return 0.0, 0.0
    value = row.values[name]
    if objective.maximised:
        return value * (1 - gain.low / gain.value), value * (gain.high / gain.value - 1)
    return value * (1 - gain.value / gain.high), value * (gain.value / gain.low - 1)


def _range(
    points: Sequence[Row], default: Sequence[Row], objective: Objective
) -> list[float] | None:
    """Returns the range of an axis: all that lies not far beyond the default."""
    if not default:
        return None
    name, base = objective.name, default[0].values[objective.name]
    inside = [row for row in points if objective.gain(row.values[name], base) >= 1 / FARTHEST]
    low = min(row.values[name] - _reach(row, objective)[0] for row in inside)
    high = max(row.values[name] + _reach(row, objective)[1] for row in inside)
    space = _MARGIN * (high - low) or _MARGIN * high or 1.0
    return [low - space, high + space]
