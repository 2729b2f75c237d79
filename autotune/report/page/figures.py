"""How the search went, the effect of each value, memory by phase and noise, as figures."""

import math
from collections.abc import Sequence
from itertools import accumulate

from autotune.deploy.options import Value
from autotune.measure.outcome import Measurement
from autotune.report.page.figure import (
    FARTHEST,
    Figure,
    Label,
    Point,
    Scale,
    Series,
    Stroke,
    steps,
)
from autotune.report.page.rows import Row
from autotune.report.page.state import StudyState
from autotune.report.text import interval
from autotune.search.objective import values
from autotune.space.configuration import Configuration

_MOST_EFFECTS = 18
_TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.4, 2, 3, 5, 10)
_COLOURS = ("accent", "second", "good", "bad", "faint")
# Names of a row stand above its marks.
_NAME_AT, _FIRST_AT, _NEXT = 0.3, 0.5, 0.2


def search_figure(state: StudyState, rows: Sequence[Row]) -> Figure | None:
    """Returns the first objective by trial, relative to the default; None without trials."""
    objective, base = state.objectives[0], state.baseline
    if base is None:
        return None
    scale = objective.cost(values(base)[objective.name])
    relative = {
        row.trial: objective.cost(values(row.measurement)[objective.name]) / scale
        for row in rows
        if row.measurement is not None
    }
    rejected = {row.trial for row in rows if row.state == "rejected"}
    kept = [math.inf if trial in rejected else cost for trial, cost in relative.items()]
    best = zip(relative, accumulate(kept, min), strict=True)
    inside = {trial: cost for trial, cost in relative.items() if cost <= FARTHEST}
    far = len(relative) - len(inside)
    left_out = f" {far} trials above {FARTHEST:g} are left out." if far else ""
    word = objective.word
    return Figure(
        name="search",
        title="How the search went",
        caption=f"Estimates of the search, relative to the default; lower is better.{left_out}",
        x=Scale.of("trial", relative),
        y=Scale.of(
            f"default / {word}" if objective.maximised else f"{word} / default", inside.values()
        ),
        series=[
            Series(
                name="a trial",
                look="faint",
                shape="small",
                marks=[
                    Point(x=trial, y=cost, text=f"trial {trial}: {cost:.4g}", trial=trial)
                    for trial, cost in inside.items()
                ],
            ),
            Series(
                name="best so far",
                look="accent",
                shape="dash",
                strokes=steps([point for point in best if point[1] <= FARTHEST]),
            ),
        ],
    )


def value_in_words(parameter: str, value: Value) -> str:
    """Returns one value of a parameter in words."""
    words = Configuration(((parameter, value),)).in_words()
    return words if words != "the default" else f"{parameter}={value}"


def effects_figure(state: StudyState) -> Figure | None:
    """Returns the effect of each value with its interval; None where there is no clear one."""
    effects = state.result.effects if state.result else ()
    clear = list(dict.fromkeys((e.parameter, e.value) for e in effects if e.is_known))
    shown = {key: place for place, key in enumerate(clear[:_MOST_EFFECTS])}
    if not shown:
        return None
    series = [Series(name="", look="muted dotted", strokes=[Stroke(1, 0, 1, len(shown))])]
    for number, objective in enumerate(state.objectives):
        marks, strokes = [], []
        for effect in effects:
            place = shown.get((effect.parameter, effect.value))
            if place is None or effect.objective != objective.name:
                continue
            y, factor = place + _FIRST_AT + _NEXT * number, effect.factor
            text = f"{objective.word}: ×{factor.value:.2f} ({interval(factor)})"
            marks.append(Point(x=factor.value, y=y, text=text))
            strokes.append(Stroke(factor.low, y, factor.high, y))
        series.append(
            Series(name=objective.word, look=_COLOURS[number], marks=marks, strokes=strokes)
        )
    ends = [1.0, *(end for each in series for s in each.strokes for end in (s.x1, s.x2))]
    low, high = max(0.1, 0.95 * min(ends)), min(10.0, 1.05 * max(ends))
    left_out = len(clear) - len(shown)
    rest = f" {left_out} more have one." if left_out else ""
    return Figure(
        name="effects",
        title="The effect of each value",
        caption="How much one value alone changes an objective: 0.8 means 80 % of the default's. "
        "The bars are 95 % intervals of a model of all trials of the search. "
        f"Values without a clear effect are left out.{rest}",
        x=Scale(
            title="relative to the default",
            low=low,
            high=high,
            ticks=[tick for tick in _TICKS if low <= tick <= high],
            is_log=True,
        ),
        y=Scale(title="", low=len(shown), high=0),
        series=series,
        labels=[Label(low, place + _NAME_AT, value_in_words(*key)) for key, place in shown.items()],
        height_px=30 + 48 * len(shown),
    )


_PHASES = (
    "peak while the session is created",
    "peak in the first runs",
    "held at the end",
    "growth in the timed runs",
)


def _memory_by_phase(measurement: Measurement) -> list[float]:
    """Returns what a session adds in each of the phases, in MiB."""
    memory = measurement.memory
    added = [memory.load_peak_mib, memory.run_peak_mib, memory.resident_mib]
    return [*(max(0.0, mib - memory.base_mib) for mib in added), memory.growth_mib]


def memory_figure(state: StudyState) -> Figure | None:
    """Returns the memory of default and chosen configuration by phase; None if not at hand."""
    pairs = [("the default", state.baseline, "bad"), ("chosen", state.chosen, "good")]
    if state.chosen is state.baseline:
        del pairs[1]
    series, labels = [], [Label(0, place + _NAME_AT, phase) for place, phase in enumerate(_PHASES)]
    for number, (name, measurement, colour) in enumerate(pairs):
        if measurement is None:
            continue
        sizes = _memory_by_phase(measurement)
        at = [place + _FIRST_AT + _NEXT * number for place in range(len(_PHASES))]
        labels += [Label(mib, y + 0.06, f"{mib:.1f}") for mib, y in zip(sizes, at, strict=True)]
        strokes = [Stroke(0, y, mib, y) for mib, y in zip(sizes, at, strict=True)]
        series.append(Series(name=name, look=f"{colour} bar", shape="square", strokes=strokes))
    if not series:
        return None
    most = max(stroke.x2 for each in series for stroke in each.strokes)
    return Figure(
        name="memory",
        title="Memory by phase",
        caption="Memory that a session adds to its process, as the search measured it. The first "
        "two are high-water marks; their larger one, with any growth, is the peak memory.",
        x=Scale.of("MiB", [0.0, most], low=0.0, high=1.15 * most or 1.0),
        y=Scale(title="", low=len(_PHASES), high=0),
        series=series,
        labels=labels,
        height_px=260,
    )


def noise_figure(rows: Sequence[Row]) -> Figure | None:
    """Returns how undisturbed each trial was; None without trials."""
    strokes = []
    for row in rows:
        if (own := row.measurement) is None:
            continue
        quiet = 100 * own.undisturbed_turns / own.turns if own.turns else 0.0
        width = 100 * (own.ratio.high - own.ratio.low) / 2 / own.ratio.value
        text = f"trial {row.trial}: {quiet:.0f} % were undisturbed, latency ± {width:.1f} %"
        strokes.append(Stroke(row.trial, 0, row.trial, quiet, text))
    if not strokes:
        return None
    return Figure(
        name="noise",
        title="Noise of the machine",
        caption="The share of a trial's time slices that nothing disturbed; its latency rests on "
        "these.",
        x=Scale.of("trial", [stroke.x1 for stroke in strokes]),
        y=Scale.of("undisturbed, %", [0.0, 100.0], low=0.0, high=100.0),
        series=[Series(name="", look="accent column", strokes=strokes)],
        height_px=200,
    )
