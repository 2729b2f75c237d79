"""Where the time of a run goes: the kept profile of default and chosen configuration."""

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.inspection.profile import TimeShare
from autotune.report.page.figure import Figure, axis, plot, wrapped
from autotune.report.page.state import StudyState
from autotune.report.profile import (
    headlines,
    headroom_sentence,
    operators,
    overheads,
    peaks_sentence,
    remark,
)
from autotune.results.profiling import DEFAULT, ProfiledSession

_ROW_PX = 44
_FRAME_PX = 100
_MOST_NODES = 10
_COLOURS = {DEFAULT: "@bad"}


@dataclass(frozen=True, kw_only=True)
class TimeOfRun:
    """What the page says of a profile beside its figure.

    Attributes:
        sentences: Latency, headroom and waiting of each session, and the machine's peaks.
        sessions: The sessions, the default first.
        overheads: Nodes that only move or convert numbers: what they do, and the time in each
            session; None where a session has none.
        slowest: The slowest nodes of each session.
    """

    sentences: tuple[str, ...]
    sessions: tuple[str, ...]
    overheads: tuple[tuple[str, tuple[TimeShare | None, ...]], ...]
    slowest: tuple[tuple[str, tuple[TimeShare, ...]], ...]


def time_of_run(state: StudyState) -> TimeOfRun | None:
    """Returns what the page says of the kept profile; None without one."""
    profiling = state.profiling
    if profiling is None:
        return None
    sessions = profiling.sessions
    return TimeOfRun(
        sentences=(
            *headlines(profiling),
            peaks_sentence(profiling.peaks),
            *(headroom_sentence(s.headroom, f"The {s.name}") for s in sessions),
            *(remark(session) for session in sessions),
        ),
        sessions=tuple(session.name for session in sessions),
        overheads=tuple((name, tuple(times)) for name, times in overheads(sessions).items()),
        slowest=tuple((s.name, s.profile.slowest[:_MOST_NODES]) for s in sessions),
    )


def profile_figure(state: StudyState) -> Figure | None:
    """Returns the time of each operator type in default and chosen config; None if not kept."""
    profiling = state.profiling
    if profiling is None:
        return None
    rows = operators(profiling.sessions)
    traces = [
        _bars(session, list(rows), [times[index] for times in rows.values()])
        for index, session in enumerate(profiling.sessions)
    ]
    return Figure(
        name="profile",
        title="Where the time of a run goes",
        caption="Time of each operator type in a run, by ONNX Runtime's profiler, in a process of "
        "its own after the study. The profiler slows a run down: compare shares, not sums.",
        plot=plot(
            traces,
            xaxis=axis("ms"),
            yaxis=axis("", autorange="reversed", automargin=True),
            barmode="group",
            bargap=0.3,
        ),
        height_px=_FRAME_PX + _ROW_PX * len(rows),
    )


def _bars(
    session: ProfiledSession, names: Sequence[str], times: Sequence[TimeShare | None]
) -> dict[str, object]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": session.name,
        "x": [0.0 if time is None else time.time_ms for time in times],
        "y": [wrapped(name, 26) for name in names],
        "customdata": [0.0 if time is None else 100 * time.share for time in times],
        "marker": {"color": _COLOURS.get(session.name, "@good")},
        "hovertemplate": "%{y}: %{x:.3f} ms, %{customdata:.0f} %<extra></extra>",
    }
