"""Where the time goes: one session, or the default and a tuned config side by side."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.inspection.headroom import Headroom, Peaks
from autotune.inspection.profile import Profile, TimeShare
from autotune.report.tables import plain_table
from autotune.report.text import latency, percent
from autotune.results.profiling import ProfiledSession, Profiling

_MOST_OPERATORS = 10
_MOST_NODES = 5
_LONGEST_NAME = 60
_LEAST_SHOWN_MS = 0.001


def render_profiling(profiling: Profiling) -> RenderableType:
    """Returns the headline, the operators, the overheads, the slowest nodes and the memory."""
    sessions = profiling.sessions
    parts: list[RenderableType] = [Text(line, style="bold") for line in headlines(profiling)]
    parts += ["", _table("operator", sessions, operators(sessions))]
    parts += ["", _overheads(sessions), *(Text(remark(session)) for session in sessions)]
    parts += ["", Text(peaks_sentence(profiling.peaks))]
    parts += [Text(headroom_sentence(s.headroom, f"The {s.name}")) for s in sessions]
    for session in sessions:
        parts += ["", Text(f"Slowest nodes, {session.name}:"), _nodes(session.profile)]
    return Group(*parts)


def headroom_sentence(room: Headroom, what: str) -> str:
    """Returns how far a session is from the roof, in a sentence.

    Args:
        room: The headroom.
        what: The session, as the sentence begins.
    """
    roof = latency(room.roof_ms) if room.roof_ms >= _LEAST_SHOWN_MS else "less than 0.001"
    limit = "arithmetic" if room.bound == "arithmetic" else "memory traffic"
    sentence = (
        f"{what} takes {latency(room.latency_ms)} ms; {limit} alone takes "
        f"{roof} ms at the machine's peak, so it reaches "
        f"{percent(room.share)} of the roof."
    )
    return sentence if room.is_complete else f"{sentence} Nodes of unknown shapes are not counted."


def peaks_sentence(peaks: Peaks) -> str:
    """Returns the machine's peaks in a sentence."""
    return (
        "Machine's peaks, measured in the same run: "
        f"{peaks.float_per_s / 1e9:.0f} GFLOP/s in fp32, "
        f"{peaks.int8_per_s / 1e9:.0f} GOP/s in int8, {peaks.bytes_per_s / 1e9:.1f} GB/s in a "
        f"copy of {peaks.moved_bytes / 2**20:.1f} MiB."
    )


def headlines(profiling: Profiling) -> list[str]:
    """Returns the latency of each session and its most costly operator, in a sentence."""
    return [_headline(session, profiling.batch) for session in profiling.sessions]


def _headline(session: ProfiledSession, batch: int | None) -> str:
    run = "run" if batch is None else f"run of {batch} sample{'s' if batch > 1 else ''}"
    profile = session.profile
    first = profile.operators[0] if profile.operators else None
    most = f"; {percent(first.share)} of it in {first.name}" if first else ""
    return (
        f"{session.name} ({session.file}): {latency(profile.run_ms)} ms a {run}, "
        f"{profile.executed:.0f} nodes{most}."
    )


Rows = Mapping[str, Sequence[TimeShare | None]]
"""By name a time for each session; None where a session has none."""


def operators(sessions: Sequence[ProfiledSession]) -> Rows:
    """Returns the operator types that take longest in some session."""
    return _side_by_side([session.profile.operators for session in sessions])


def overheads(sessions: Sequence[ProfiledSession]) -> Rows:
    """Returns the nodes that only move or convert numbers, by what they do."""
    return _side_by_side([session.profile.overheads for session in sessions])


def _side_by_side(columns: Sequence[Sequence[TimeShare]]) -> Rows:
    """Returns each name that is among the first of some column."""
    names = dict.fromkeys(row.name for column in columns for row in column[:_MOST_OPERATORS])
    by_name = [{row.name: row for row in column} for column in columns]
    return {name: [column.get(name) for column in by_name] for name in names}


def _table(heading: str, sessions: Sequence[ProfiledSession], rows: Rows) -> Table:
    table = plain_table()
    table.add_column(heading)
    for session in sessions:
        for column in ("nodes", "ms", "share"):
            table.add_column(f"{session.name}: {column}", justify="right")
    for name, times in rows.items():
        table.add_row(Text(name), *(cell for time in times for cell in _cells(time)))
    return table


def _cells(row: TimeShare | None) -> tuple[str, str, str]:
    if row is None:
        return "", "", ""
    return f"{row.nodes:.0f}", f"{row.time_ms:.3f}", percent(row.share)


def _overheads(sessions: Sequence[ProfiledSession]) -> RenderableType:
    """Returns the table of nodes that compute nothing, if there are any."""
    rows = overheads(sessions)
    if not rows:
        return Text("No node only moves or converts numbers.")
    return _table("moves and conversions", sessions, rows)


def remark(session: ProfiledSession) -> str:
    """Returns waiting, execution providers and memory of a session, in a sentence."""
    profile = session.profile
    parts = [f"waiting for threads {profile.waiting_ms:.3f} ms"]
    if len(profile.providers) > 1:
        names = ", ".join(f"{row.name} {percent(row.share)}" for row in profile.providers)
        parts.append(f"{profile.provider_changes:.0f} changes of provider ({names})")
    if profile.arena_mib is None:
        parts.append("no arena, so no counters of memory")
    else:
        parts.append(
            f"arena {profile.arena_mib:.1f} MiB: weights {profile.weights_mib:.1f}, "
            f"activations {profile.activations_mib:.1f} at their peak"
        )
    parts.append(f"{profile.profiled_ms / max(profile.run_ms, 1e-9):.2f}x with the profiler")
    return f"{session.name}: {'; '.join(parts)}."


def _nodes(profile: Profile) -> Table:
    table = plain_table()
    table.add_column("node")
    table.add_column("operator")
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    for row in profile.slowest[:_MOST_NODES]:
        table.add_row(
            Text(_shortened(row.name)), Text(row.operator), f"{row.time_ms:.3f}", percent(row.share)
        )
    return table


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}"
