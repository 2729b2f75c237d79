"""The Pareto front as a figure: configurations, the default, intervals of the final comparison."""

from collections.abc import Iterator, Sequence

from autotune.report.page.figure import FARTHEST, Figure, Point, Scale, Series, Stroke, steps
from autotune.report.page.rows import Row
from autotune.report.page.state import StudyState
from autotune.report.text import interval, latency
from autotune.search import pareto
from autotune.search.objective import DEFAULT, Objective, find

_HEIGHT_PX = 440


def front_figure(state: StudyState, rows: Sequence[Row]) -> Figure | None:
    """Returns the figure of the study's first two objectives; None where nothing was measured."""
    names = [objective.name for objective in state.objectives]
    across, up = find(tuple([*names, *(name for name in DEFAULT if name not in names)][:2]))
    known = [row for row in rows if across.name in row.values and up.name in row.values]
    default = next((row for row in known if row.state == "default"), None)
    points = [row for row in known if _is_near(row, default, (across, up))]
    if not points:
        return None
    outside = len(known) - len(points)
    return Figure(
        name="front",
        title="The Pareto front",
        caption=_caption(across, up, outside, has_confirmed=any(row.confirmed for row in points)),
        x=_axis(points, across),
        y=_axis(points, up),
        series=[series for series in _series(points, across, up) if series.marks or series.strokes],
        height_px=_HEIGHT_PX,
    )


def _is_near(row: Row, default: Row | None, objectives: Sequence[Objective]) -> bool:
    """Returns whether a configuration is not far worse than the default."""
    return default is None or all(
        o.cost(row.values[o.name]) <= FARTHEST * o.cost(default.values[o.name]) for o in objectives
    )


def _series(points: Sequence[Row], across: Objective, up: Objective) -> Iterator[Series]:
    """Yields estimates below, then the line of the front, and confirmed points above."""
    confirmed = [row for row in points if row.confirmed]
    searched = [row for row in points if not row.confirmed and row.state != "default"]
    front = pareto.front(confirmed, lambda row: row.values, (across, up))

    def of(name: str, look: str, shape: str, shown: Sequence[Row]) -> Series:
        return Series(
            name=name,
            look=look,
            shape=shape,
            marks=[
                Point(
                    x=row.values[across.name],
                    y=row.values[up.name],
                    text=_text(row),
                    trial=row.trial,
                )
                for row in shown
            ],
            strokes=[stroke for row in shown for stroke in _intervals(row, across, up)],
        )

    kept = [row for row in searched if row.state != "rejected"]
    rejected = [row for row in searched if row.state == "rejected"]
    yield of("search estimate", "faint hollow", "small", kept)
    yield of("search estimate, over a limit", "faint hollow", "cross", rejected)
    corners = sorted((row.values[across.name], row.values[up.name]) for row in front)
    yield Series(name="", look="accent dotted", strokes=steps(corners))
    others = [row for row in confirmed if row.state not in {"default", "chosen"}]
    yield of("final comparison", "accent", "dot", others)
    yield of("the default", "bad", "diamond", [row for row in points if row.state == "default"])
    yield of("chosen", "good", "star", [row for row in points if row.state == "chosen"])


def _caption(across: Objective, up: Objective, outside: int, *, has_confirmed: bool) -> str:
    corner = f"{'Upper' if up.maximised else 'Lower'} {'right' if across.maximised else 'left'}"
    source = (
        "The final comparison measured filled points side by side with the default; their bars are "
        "95 % intervals, and the dotted line joins those that no other is ahead of. Hollow points "
        "are estimates of the search; the best of them are likely to be too good."
        if has_confirmed
        else "No point is confirmed: there was no final comparison, or other programs disturbed it."
    )
    left_out = f" {outside} that are far worse than the default are left out." if outside else ""
    return f"Each point is a configuration. {corner} is better. {source}{left_out}"


def _axis(points: Sequence[Row], objective: Objective) -> Scale:
    ends = [end for row in points for end in _ends(row, objective)]
    return Scale.of(objective.heading, ends)


def _text(row: Row) -> str:
    """Returns what the pointer shows: the configuration, its numbers and their source."""
    source = "final comparison" if row.confirmed else "search estimate"
    lines = [f"trial {row.trial}, {source}: {row.words}"]
    if row.speedup is not None and row.state != "default":
        lines.append(f"{row.speedup.value:.2f}× the default's speed ({interval(row.speedup)})")
    memory = row.values["peak_memory_mib"]
    error = "" if row.error is None else f", error {row.error:.1g}"
    lines.append(f"{latency(row.values['latency_ms'])} ms, {memory:.1f} MiB{error}")
    return "\n".join(filter(None, [*lines, row.reason]))


def _intervals(row: Row, across: Objective, up: Objective) -> Iterator[Stroke]:
    """Yields the intervals of a confirmed configuration, across and up."""
    if row.confirmed and row.state != "default":
        x, y = row.values[across.name], row.values[up.name]
        left, right = _ends(row, across)
        lower, upper = _ends(row, up)
        yield Stroke(left, y, right, y)
        yield Stroke(x, lower, x, upper)


def _ends(row: Row, objective: Objective) -> tuple[float, float]:
    """Returns the ends of an objective's interval, from those of the gain; the value without."""
    value, gain = row.values[objective.name], row.gains.get(objective.name)
    if not row.confirmed or gain is None or gain.low <= 0:
        return value, value
    if objective.maximised:
        return value * gain.low / gain.value, value * gain.high / gain.value
    return value * gain.value / gain.high, value * gain.value / gain.low
