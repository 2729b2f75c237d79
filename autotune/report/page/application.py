"""The page of a tuned application: ``report.html`` in its folder."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from secrets import token_urlsafe

from autotune import __version__
from autotune.applications.joint import JointTrial
from autotune.applications.result import ApplicationResult, SessionResult
from autotune.errors import typed
from autotune.process.durable import replacing
from autotune.report.application import comparison_table, outcome, sessions_table
from autotune.report.page.figure import FARTHEST, Figure, Point, Scale, Series, Stroke
from autotune.report.page.sections import Section
from autotune.report.page.writing import environment_of
from autotune.report.text import latency, percent
from autotune.report.view import Table, lines
from autotune.results.writing import PAGE


def write_application_report(folder: Path) -> Path:
    """Writes the page of the tuned application in `folder`; returns its path.

    Raises:
        StudyError: the folder holds no result of an application.
        OSError: the file cannot be written.
    """
    text = render_application(ApplicationResult.read(folder))
    with replacing(folder / PAGE) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return folder / PAGE


def render_application(result: ApplicationResult) -> str:
    """Returns the page as HTML."""
    return (
        environment_of()
        .get_template("application.html")
        .render(
            data={"trials": {}, "selected": None},
            folder=typed(result.folder),
            headline=outcome(result),
            name=Path(result.folder).name,
            nonce=token_urlsafe(16),
            result=result,
            sections=list(_sections(result)),
            version=__version__,
        )
    )


def _sections(result: ApplicationResult) -> Iterator[Section]:
    yield Section(
        name="comparison",
        title="The application as it is, and tuned",
        note="Each configuration of all sessions replayed the recorded calls in turns with the "
        "application as it is, in five rounds of fresh processes. Brackets hold 95 % intervals. "
        "Memory is what all sessions add to the process: at most, and at the end.",
        blocks=[comparison_table(result)],
    )
    yield Section(
        name="sessions",
        title="Sessions",
        note="What the application runs, and what is opened in its place. The study of each model "
        f"alone is in {result.folder}/studies; `autotune report` shows it in full.",
        blocks=[sessions_table(result, has_calls=True)],
        summary="Shapes of the inputs",
        folded=_shapes_table(result.sessions),
    )
    front = _front_figure(result)
    yield Section(
        name=front.name,
        title=front.title,
        note=front.caption,
        figure=front,
        summary=f"All {len(result.searched)} configurations that the search measured",
        folded=_searched_table(result),
    )
    yield Section(
        name="untried",
        title="What was not tried",
        blocks=lines(*_untried(result)),
    )
    yield Section(name="notes", title="Conditions", blocks=lines(*result.notes))


def _shapes_table(sessions: Sequence[SessionResult]) -> Table:
    rows = []
    for session in sessions:
        for shape in session.shapes:
            inputs = ", ".join(
                f"{name} {'×'.join(map(str, size)) or 'scalar'}"
                for name, size in shape.inputs.items()
            )
            mean = latency(1e3 * shape.seconds / shape.calls) if shape.calls else "-"
            rows.append((session.name, inputs, f"{shape.calls:,}", mean, str(shape.kept)))
        missing = session.shape_count - len(session.shapes)
        if missing > 0:
            rows.append((session.name, f"and {missing} others, with less time", "", "", ""))
    headings = ("session", "inputs", "calls", "ms a call", "inputs kept")
    return Table(headings=headings, rows=rows, words=(0, 1))


def _searched_table(result: ApplicationResult) -> Table:
    front = result.front
    rows = []
    for point in sorted(result.measured, key=lambda point: point.costs):
        ratio, peak_mib, held_mib = point.costs
        words = result.words(point)
        mark = "on the Pareto front" if point in front else ""
        rows.append((words, f"{ratio:.2f}", f"{peak_mib:.0f}", f"{held_mib:.0f}", mark))
    for point in result.searched:
        if point.failure:
            words = result.words(point)
            rows.append((words, "failed", "", "", point.failure))
    headings = ("configuration", "of the time", "peak MiB", "held MiB", "")
    return Table(headings=headings, rows=rows, words=(0, 4))


def _front_figure(result: ApplicationResult) -> Figure:
    front, best = result.front, result.best
    near = [point for point in result.measured if point.costs[0] <= FARTHEST]

    def of_points(name: str, look: str, points: Sequence[JointTrial]) -> Series:
        marks = [_mark(result.words(p), *p.costs[:2]) for p in points]
        return Series(name=name, look=look, shape="small", marks=marks)

    series = [
        of_points("search", "faint hollow", [point for point in near if point not in front]),
        of_points("Pareto front of the search", "muted", [p for p in near if p in front]),
        Series(
            name="final comparison",
            look="accent",
            marks=[
                _mark(f"{item.label}: {result.words(item)}", item.ratio.value, item.peak_mib)
                for item in result.confirmed
                if item is not best
            ],
            strokes=[
                Stroke(item.ratio.low, item.peak_mib, item.ratio.high, item.peak_mib)
                for item in result.confirmed
            ],
        ),
        Series(
            name="as it is",
            look="bad",
            shape="diamond",
            marks=[_mark("as it is", 1.0, result.today.peak_mib)],
        ),
    ]
    if best is not None:
        marks = [_mark(f"{best.label}: {result.words(best)}", best.ratio.value, best.peak_mib)]
        series.append(Series(name="chosen", look="good", shape="star", marks=marks))
    marks = [mark for each in series for mark in each.marks]
    ends = [end for each in series for stroke in each.strokes for end in (stroke.x1, stroke.x2)]
    return Figure(
        name="together",
        title="All sessions together",
        caption="Lower left is better. Filled blue points are confirmed in fresh processes, with "
        "their 95 % intervals; the others are estimates of the search, of which the best are "
        "likely to be too good. The Pareto front is what no other point is ahead of in time, peak "
        "and held memory.",
        x=Scale.of(
            "time of a replay, over that of the application as it is", [m.x for m in marks] + ends
        ),
        y=Scale.of("peak memory of all sessions, MiB", [mark.y for mark in marks], low=0.0),
        series=series,
        height_px=400,
    )


def _mark(words: str, ratio: float, mib: float) -> Point:
    text = f"{words}\n{ratio:.2f} of the time, {mib:.0f} MiB"
    return Point(x=ratio, y=mib, text=text)


def _untried(result: ApplicationResult) -> Iterator[str]:
    """Yields what the study left out, a sentence each."""
    yield (
        f"The joint search measured {len(result.searched)} of {result.point_count:,} "
        "configurations: the best that it found need not be the best that there is."
    )
    for session in result.sessions:
        if session.reason:
            yield f"{session.name} was not tuned: {session.reason}."
    whole = sum(session.calls for session in result.sessions)
    if whole > result.replayed_calls:
        share = percent(result.replayed_calls / whole)
        yield (
            f"Of {whole:,} recorded calls {result.replayed_calls:,} were replayed ({share}); "
            "the others were not measured."
        )
    yield (
        "What the application computes beside its sessions is left as it is, and only its time is "
        "replayed, not its memory. Dimensions were not fixed, because other shapes may come."
    )
    yield (
        "A session that is closed and opened again is replayed as one that stays open. Weights of "
        "two sessions of one model are shared only where they are stored as external data, which "
        "the system maps once."
    )
