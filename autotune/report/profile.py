"""Where the time of a run goes: one session, or the default and a tuned config side by side."""

from collections.abc import Mapping, Sequence

from autotune.inspection.headroom import Headroom, Peaks
from autotune.inspection.profile import TimeShare
from autotune.report.text import latency, percent
from autotune.report.view import BLANK, Block, Line, Table, View, lines
from autotune.results.profiling import ProfiledSession, Profiling

_MOST_OPERATORS = 10
_FEW_NODES = 5
_LONGEST_NAME = 60
_LEAST_SHOWN_MS = 0.001

Rows = Mapping[str, Sequence[TimeShare | None]]
"""By name a time for each session; None where a session has none."""


def view_profile(profiling: Profiling) -> View:
    """Returns the headline, the operators, the overheads, the slowest nodes and the memory."""
    sessions = profiling.sessions
    operators = _side_by_side([session.profile.operators for session in sessions])
    blocks: list[Block] = [
        *lines(*(_headline(each, profiling.batch) for each in sessions), tone="title"),
        BLANK,
        _times("operator", sessions, operators),
        BLANK,
        _overheads(sessions) or Line("No node only moves or converts numbers."),
        *lines(*map(_memory, sessions)),
        BLANK,
        Line(peaks_sentence(profiling.peaks)),
        *(Line(headroom_sentence(each.headroom, f"The {each.name}")) for each in sessions),
    ]
    for session in sessions:
        blocks += [BLANK, Line(f"Slowest nodes, {session.name}:"), _slowest_nodes(session)]
    return View(blocks=blocks, data=profiling.to_json())


def headroom_sentence(room: Headroom, what: str) -> str:
    """Returns how far a session is from the machine's peak, in a sentence."""
    roof = latency(room.roof_ms) if room.roof_ms >= _LEAST_SHOWN_MS else "less than 0.001"
    limit = "arithmetic" if room.bound == "arithmetic" else "memory traffic"
    sentence = (
        f"{what} takes {latency(room.latency_ms)} ms. The {limit} alone would take {roof} ms at "
        f"the machine's peak: {percent(room.share)} of the peak is reached."
    )
    return sentence if room.is_complete else f"{sentence} Some products could not be counted."


def peaks_sentence(peaks: Peaks) -> str:
    """Returns the machine's peaks in a sentence."""
    return (
        "The machine's peaks, measured in the same run: "
        f"{peaks.float_per_s / 1e9:.0f} GFLOP/s in fp32, "
        f"{peaks.int8_per_s / 1e9:.0f} GOP/s in int8, {peaks.bytes_per_s / 1e9:.1f} GB/s in a "
        f"copy of {peaks.moved_bytes / 2**20:.1f} MiB."
    )


def _overheads(sessions: Sequence[ProfiledSession]) -> Table | None:
    """Returns the nodes that only move or convert numbers; None if there are none."""
    rows = _side_by_side([session.profile.overheads for session in sessions])
    return _times("moves and conversions", sessions, rows) if rows else None


def _slowest_nodes(session: ProfiledSession) -> Table:
    """Returns the slowest nodes of a session."""
    return Table(
        headings=("node", "operator", "ms", "share"),
        rows=[
            (_shortened(row.name), row.operator, f"{row.time_ms:.3f}", percent(row.share))
            for row in session.profile.slowest[:_FEW_NODES]
        ],
        words=(0, 1),
    )


def _headline(session: ProfiledSession, batch: int | None) -> str:
    run = "run" if batch is None else f"run of {batch} sample{'s' if batch > 1 else ''}"
    profile = session.profile
    first = profile.operators[0] if profile.operators else None
    most = f"; {percent(first.share)} of the time is spent in {first.name}" if first else ""
    return (
        f"{session.name} ({session.file}): {latency(profile.run_ms)} ms a {run}, "
        f"{profile.executed:.0f} nodes{most}."
    )


def _side_by_side(columns: Sequence[Sequence[TimeShare]]) -> Rows:
    """Returns each name that is among the first of some column."""
    names = dict.fromkeys(row.name for column in columns for row in column[:_MOST_OPERATORS])
    by_name = [{row.name: row for row in column} for column in columns]
    return {name: [column.get(name) for column in by_name] for name in names}


def _times(heading: str, sessions: Sequence[ProfiledSession], rows: Rows) -> Table:
    return Table(
        headings=(heading, *(h for s in sessions for h in (f"{s.name}: nodes", "ms", "share"))),
        rows=[
            (name, *(cell for time in times for cell in _cells(time)))
            for name, times in rows.items()
        ],
    )


def _cells(row: TimeShare | None) -> tuple[str, str, str]:
    if row is None:
        return "", "", ""
    return f"{row.nodes:.0f}", f"{row.time_ms:.3f}", percent(row.share)


def _memory(session: ProfiledSession) -> str:
    """Returns execution providers and memory of a session, in a sentence."""
    profile = session.profile
    parts = []
    if len(profile.providers) > 1:
        names = ", ".join(f"{row.name} {percent(row.share)}" for row in profile.providers)
        parts.append(f"{profile.provider_changes:.0f} changes of provider ({names})")
    if profile.arena_mib is None:
        parts.append("no arena, so no memory counters")
    else:
        parts.append(
            f"an arena of {profile.arena_mib:.1f} MiB (weights {profile.weights_mib:.1f}, "
            f"activations {profile.activations_mib:.1f} at their peak)"
        )
    slower = profile.profiled_ms / max(profile.run_ms, 1e-9)
    parts.append(f"with the profiler a run takes {slower:.2f} times as long")
    return f"{session.name}: {'; '.join(parts)}."


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"
