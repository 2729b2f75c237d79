"""The page of a tuned application: ``report.html`` in its folder."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from secrets import token_urlsafe

from autotune import __version__
from autotune.applications.joint import choices_in_words
from autotune.applications.result import ApplicationResult, SearchedPoint, SessionResult
from autotune.errors import StudyError
from autotune.process.durable import replacing
from autotune.report.application import comparison_table, outcome, reasons_table, sessions_table
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
from autotune.report.page.sections import Section
from autotune.report.page.writing import check_packages, environment_of
from autotune.report.text import interval, latency, percent
from autotune.report.view import Table, lines
from autotune.results.result import StudyResult
from autotune.results.writing import PAGE

_HEIGHT_PX = 420
_LOOKS: dict[str, Plot] = {
    "search": HOLLOW,
    "front of the search": {"symbol": "circle", "size": 8, "color": "@faint"},
    "final comparison": FILLED,
    "today": DIAMOND,
    "chosen": STAR,
}


def write_application_report(folder: Path) -> Path:
    """Writes the page of the tuned application in `folder`; returns its path.

    Raises:
        StudyError: the folder holds no result of an application.
        MissingPackageError: the packages of the extra ``report`` are not installed.
        OSError: the file cannot be written.
    """
    check_packages()
    text = render_application(ApplicationResult.read(folder))
    with replacing(folder / PAGE) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return folder / PAGE


def render_application(result: ApplicationResult) -> str:
    """Returns the page as HTML."""
    from plotly.offline import get_plotlyjs

    environment = environment_of()
    sections = list(_sections(result))
    figures = {s.figure.name: s.figure.plot for s in sections if s.figure is not None}
    return environment.get_template("application.html").render(
        data={"figures": figures, "trials": {}, "selected": None},
        headline=outcome(result),
        name=Path(result.folder).name,
        nonce=token_urlsafe(16),
        plotly=environment.filters["literal"](get_plotlyjs()),
        result=result,
        sections=sections,
        version=__version__,
    )


def _sections(result: ApplicationResult) -> Iterator[Section]:
    yield Section(
        name="comparison",
        title="Today against tuned",
        note="Each arrangement of all sessions replayed the recorded calls in turns with the "
        "sessions as the application opens them today, in five rounds of fresh processes. The "
        "interval is that of its time over today's, with 95 %. Memory is what all sessions add "
        "to the process: at most, and at the end.",
        blocks=[comparison_table(result), reasons_table(result)],
    )
    yield Section(
        name="sessions",
        title="Sessions",
        note="What the application runs, and what is opened in its place.",
        blocks=[sessions_table(result, has_calls=True)],
        summary="Shapes of the inputs",
        folded=_shapes_table(result.sessions),
    )
    if studies := _studies_table(result.sessions):
        yield Section(
            name="studies",
            title="Each model alone",
            note="The study of each model for itself, on its recorded inputs, against ONNX "
            "Runtime's defaults. The command autotune report shows the folder of a study in full.",
            blocks=[studies],
        )
    front = _front_figure(result)
    yield Section(
        name=front.name,
        title=front.title,
        note=front.caption,
        figure=front,
        summary=f"All {len(result.searched)} arrangements that the search measured",
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


def _studies_table(sessions: Sequence[SessionResult]) -> Table | None:
    rows = []
    for session in sessions:
        if not session.study:
            continue
        try:
            study = StudyResult.read(Path(session.study))
        except StudyError:  # it may have been removed since
            continue
        best = study.best
        gain = best.evidence.gains.get("latency_ms")
        rows.append(
            (
                *(session.name, best.words, str(study.trials)),
                f"{gain.value:.2f} ({interval(gain)})" if gain is not None else "",
                f"{best.evidence.peak_memory_mib:.0f}",
                f"{study.baseline.evidence.peak_memory_mib:.0f}",
                session.study,
            )
        )
    if not rows:
        return None
    headings = ("session", "best", "trials", "speed-up", "peak MiB", "default", "study")
    return Table(headings=headings, rows=rows, words=(0, 1, 6))


def _searched_table(result: ApplicationResult) -> Table:
    front = result.front
    names = [session.name for session in result.sessions]
    rows = []
    for point in sorted(result.searched, key=lambda point: point.ratio or float("inf")):
        words = choices_in_words(point.choices, names)
        if point.ratio is None:
            rows.append((words, "failed", "", "", point.failure))
        else:
            _, peak_mib, held_mib = point.costs
            mark = "on the front" if point in front else ""
            rows.append((words, f"{point.ratio:.2f}", f"{peak_mib:.0f}", f"{held_mib:.0f}", mark))
    headings = ("arrangement", "of today's time", "peak MiB", "held MiB", "")
    return Table(headings=headings, rows=rows, words=(0, 4))


def _front_figure(result: ApplicationResult) -> Figure:
    front = result.front
    searched = [point for point in result.searched if point.ratio is not None]
    names = [session.name for session in result.sessions]
    best = result.best

    def of_points(name: str, points: Sequence[SearchedPoint]) -> Plot:
        texts = [wrapped(choices_in_words(point.choices, names)) for point in points]
        return _dots(name, [(p.ratio or 0.0, p.peak_mib or 0.0) for p in points], texts)

    confirmed = _dots(
        "final comparison",
        [(item.ratio.value, item.peak_mib) for item in result.confirmed],
        [wrapped(f"{item.label}: {item.words}") for item in result.confirmed],
    )
    ratios = [item.ratio for item in result.confirmed]
    confirmed["error_x"] = bars(
        [ratio.value - ratio.low for ratio in ratios],
        [ratio.high - ratio.value for ratio in ratios],
    )
    traces = [
        of_points("search", [point for point in searched if point not in front]),
        of_points("front of the search", front),
        confirmed,
        _dots("today", [(1.0, result.today.peak_mib)], ["today"]),
        _dots("chosen", [] if best is None else [(best.ratio.value, best.peak_mib)], ["chosen"]),
    ]
    ends = [1.0, *(p.ratio for p in searched if p.ratio)]
    ends += [end for ratio in ratios for end in (ratio.low, ratio.high)]
    slowest = max(end for end in ends if end <= FARTHEST)
    return Figure(
        name="together",
        title="All sessions together",
        caption="Lower left is better. Filled blue points are confirmed in fresh processes, with "
        "their 95 % intervals; the others are estimates of the search, of which the best are "
        "likely to be too good. The front is that of time, peak and held memory.",
        plot=plot(
            [trace for trace in traces if trace["x"]],
            xaxis=axis("time of a replay, of today's", range=[min(ends) - 0.03, slowest + 0.03]),
            yaxis=axis("peak memory of all sessions, MiB", rangemode="tozero"),
        ),
        height_px=_HEIGHT_PX,
    )


def _dots(name: str, points: Sequence[tuple[float, float]], texts: Sequence[str]) -> Plot:
    return {
        **dots(name, [x for x, _ in points], [y for _, y in points], _LOOKS[name]),
        "text": list(texts),
        "hovertemplate": "%{text}<br>%{x:.2f} of today's time · %{y:.0f} MiB<extra></extra>",
    }


def _untried(result: ApplicationResult) -> Iterator[str]:
    """Yields what the study left out, a sentence each."""
    if result.point_count:
        yield (
            f"The joint search measured {len(result.searched)} of {result.point_count:,} "
            "arrangements: the best that it found need not be the best that there is."
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
