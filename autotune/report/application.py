"""What is said of a recording, and of an application that was tuned."""

from collections.abc import Sequence

from autotune.applications.confirm import Confirmed, Today, improvements
from autotune.applications.recording import RecordedSession, Recording
from autotune.applications.result import ApplicationResult
from autotune.applications.timing import CommandComparison
from autotune.deploy.config import Interval
from autotune.deploy.passed import Passed
from autotune.deploy.records import to_plain
from autotune.errors import typed
from autotune.report.text import duration, interval, latency, percent
from autotune.report.view import BLANK, Block, Line, Table, View, lines

_UNCHANGED = "ONNX Runtime's defaults"


def view_recording(recording: Recording) -> View:
    """Returns the view of a recording: its sessions, with calls, shapes and share of the time."""
    data = {
        "recording": str(recording.folder),
        "complete": recording.end is not None,
        "exit_code": None if recording.end is None else recording.end.exit_code,
        "wall_s": recording.wall_s,
        "processes": len(recording.processes),
        "sessions": [_session_data(session, recording) for session in recording.sessions],
        "unknown": list(recording.unknown),
    }
    blocks: list[Block] = [*_heading(recording)]
    reasons = "; ".join(recording.unknown)
    if recording.sessions:
        blocks += [
            _table(recording),
            BLANK,
            *_reopened(recording),
            *_chains(recording),
            *_inputs(recording),
            *lines(reasons and f"Not understood, so not recorded: {reasons}"),
        ]
        blocks += lines(f"Next: autotune study {typed(recording.folder)}", tone="hint")
    return View(blocks=blocks, data=data)


def _heading(recording: Recording) -> list[Line]:
    if not recording.sessions:
        reasons = "; ".join(recording.unknown)
        text = (
            "No session was recorded. autotune records onnxruntime.InferenceSession in the "
            "command's own Python process and its children. A process that runs Python with -I, "
            "-E or -S, or without this environment, is not seen."
        )
        return lines(text, reasons and f"These sessions were not understood: {reasons}")
    several, sessions = len(recording.processes), len(recording.sessions)
    text = (
        f"{recording.folder}: {sessions} session{'s' * (sessions > 1)} in "
        f"{several} process{'es' * (several > 1)}, {duration(recording.wall_s)}"
    )
    cut = (
        ""
        if recording.end
        else "The recording is incomplete. Everything up to its last call was read."
    )
    return [*lines(text, tone="title"), *lines(cut, tone="warning"), BLANK]


def _table(recording: Recording) -> Table:
    headings = ("session", "opened with", "opened", "calls", "shapes", "ms a call", "share of time")
    rows = [
        (
            session.name,
            options_in_words(session.opened.passed),
            f"{max(session.count, session.openings):,}",
            f"{session.calls:,}",
            str(len(session.shapes)),
            latency(1e3 * session.seconds / session.calls) if session.calls else "-",
            percent(session.seconds / recording.wall_s) if recording.wall_s else "-",
        )
        for session in recording.sessions
    ]
    return Table(headings=headings, rows=rows, words=(0, 1))


def _reopened(recording: Recording) -> list[Line]:
    """Returns which sessions are opened again and again, and what that takes."""
    return lines(
        *(
            f"{session.name} was opened {session.openings:,} times, which took "
            f"{percent(session.opening_s / max(1e-9, session.opening_s + session.seconds))} of its "
            "time; one that stays open takes none."
            for session in recording.sessions
            if session.is_reopened
        )
    )


def _chains(recording: Recording) -> list[Line]:
    """Returns which sessions are fed what was returned, such as the cache of a decoder."""
    fed = {
        session.name: max(len(shape.fed) for shape in session.shapes.values())
        for session in recording.sessions
        if any(shape.fed for shape in session.shapes.values())
    }
    return lines(
        *(
            f"{name} is fed arrays that earlier calls returned ({count} in a call); a replay makes "
            "them again, and few copies are kept."
            for name, count in fed.items()
        )
    )


def _inputs(recording: Recording) -> Sequence[Line]:
    """Returns what became of the inputs, which may be private."""
    if not recording.settings.keep_inputs:
        return lines("No inputs were kept; a study generates inputs of the recorded shapes.")
    shapes = [shape for session in recording.sessions for shape in session.shapes.values()]
    kept = sum(len(shape.files) for shape in shapes)
    without = sum(not shape.files for shape in shapes)
    size_mib = sum(file.stat().st_size for shape in shapes for file in shape.files) / 2**20
    text = (
        f"{kept} real inputs ({size_mib:.1f} MiB) were kept in {recording.folder}; "
        "--keep-inputs no keeps none."
    )
    missing = (
        f"{without} shapes have none: there was no room within --max-mib "
        f"{recording.settings.max_mib}, or their inputs lie on a device."
    )
    return lines(text, missing if without else "")


def options_in_words(passed: Passed) -> str:
    """Returns what an application passes to a session, in words."""
    words = [f"{name}={value}" for name, value in sorted(passed.options.items())]
    words += [
        f"{name.removeprefix('session.')}={text}" for name, text in sorted(passed.entries.items())
    ]
    words += [f"{name}={size}" for name, size in passed.dimensions.items()]
    words += [f"no {name}" for name in passed.disabled_optimizers]
    words += [
        item.name.removesuffix("ExecutionProvider")
        for item in passed.providers or ()
        if item.name != "CPUExecutionProvider"
    ]
    words += passed.foreign
    return ", ".join(words) or _UNCHANGED


def _session_data(session: RecordedSession, recording: Recording) -> dict[str, object]:
    return {
        "name": session.name,
        "sha256": session.opened.sha256,
        "passed": to_plain(session.opened.passed),
        "open": session.count,
        "openings": session.openings,
        "calls": session.calls,
        "seconds": session.seconds,
        "share": session.seconds / recording.wall_s if recording.wall_s else None,
        "shapes": [
            {
                "inputs": {item.name: list(item.shape) for item in shape.inputs},
                "calls": shape.calls,
                "seconds": shape.seconds,
                "kept": len(shape.files),
            }
            for shape in session.shapes.values()
        ],
    }


def view_application(result: ApplicationResult, page: str = "") -> View:
    """Returns the view of a tuned application: what was compared, and what each session becomes.

    Args:
        page: The name of the page in its folder; empty where there is none.
    """
    blocks: list[Block] = [
        *lines(outcome(result), tone="good" if result.best else "title"),
        BLANK,
        comparison_table(result),
        BLANK,
        sessions_table(result),
        BLANK,
        *lines(*result.notes),
        *lines(
            "The comparison replays the recorded calls; what the application does between them is "
            "replayed as so much work of its threads."
        ),
    ]
    if page:
        blocks += lines(f"With a figure, shapes and what was not tried: {result.folder}/{page}")
    if result.best is not None:
        folder = typed(result.folder)
        blocks += lines(
            f"Run it: autotune run {folder} -- COMMAND",
            f"Time the command itself: autotune compare {folder} -- COMMAND",
            tone="hint",
        )
    return View(blocks=blocks, data=result.to_json())


def outcome(result: ApplicationResult) -> str:
    """Returns what became of an application, in a sentence."""
    best, today = result.best, result.today
    held = f"{result.base_mib:.0f} MiB"
    before = f" to the {held} that the application holds before them" if result.base_mib else ""
    if best is None:
        return (
            f"{result.recording}: the application stays as it is, because {_why_nothing(result)}."
        )
    return (
        f"{result.recording}: tuned, a replay takes {best.ratio.value:.2f} "
        f"({interval(best.ratio)}) of the time, and its sessions add {best.peak_mib:.0f} MiB "
        f"instead of {today.peak_mib:.0f} MiB{before}."
    )


def _why_nothing(result: ApplicationResult) -> str:
    offered = [item for item in result.confirmed if item.choices is not None]
    kept = [item for item in offered if result.limits.keeps(item)]
    if not offered:
        return "nothing else was compared with it; a longer --timeout tries more"
    if not kept:
        return "nothing that was compared keeps the limits of memory"
    within = " within the limits of memory" if len(kept) < len(offered) else ""
    return f"nothing{within} was better by more than the noise"


def comparison_table(result: ApplicationResult) -> Table:
    """Returns the application as it is, and each configuration that was confirmed beside it."""
    today = result.today
    rows = [("", "as it is", *_costs(today), "", "")]
    for item in result.confirmed:
        mark = "→" if item is result.best else ""
        rows.append((mark, item.label, *_costs(item), result.words(item), _reason(result, item)))
    headings = ("", "sessions", "replay s", "of the time", "CPU s", "peak MiB", "held MiB")
    return Table(
        headings=(*headings, "changes", "verdict"),
        rows=rows,
        words=(1, 7, 8),
        marked=0 if result.selected is None else 1 + result.selected,
    )


def _costs(item: Today | Confirmed) -> tuple[str, ...]:
    ratio = "1" if isinstance(item, Today) else _ratio(item.ratio)
    memory = (f"{item.peak_mib:.0f}", f"{item.held_mib:.0f}")
    return (f"{item.seconds:.3g}", ratio, f"{item.cpu_s:.3g}", *memory)


def _ratio(ratio: Interval) -> str:
    return f"{ratio.value:.2f} ({interval(ratio)})"


def sessions_table(result: ApplicationResult, *, has_calls: bool = False) -> Table:
    """Returns what each session becomes, with what it is today if `has_calls`."""
    headings = ["session", "share", "becomes"]
    rows = [
        [
            session.name,
            percent(session.share),
            session.changes or (f"as it is: {session.reason}" if session.reason else "as it is"),
        ]
        for session in result.sessions
    ]
    if has_calls:
        headings[1:1] = ["opened with", "calls", "shapes"]
        for row, session in zip(rows, result.sessions, strict=True):
            passed = options_in_words(session.passed)
            row[1:1] = [passed, f"{session.calls:,}", str(session.shape_count)]
    words = (0, 1, 5) if has_calls else (0, 2)
    return Table(headings=headings, rows=rows, words=words)


def _reason(result: ApplicationResult, item: Confirmed) -> str:
    if item is result.best:
        best = {
            "latency": "the fastest, or as fast and leaner,",
            "memory": "the one with the lowest peak of memory",
            "balanced": "the best product of time and peak of memory",
        }[result.prefer]
        return f"chosen: {best} of those that are better than the application as it is"
    if item.choices is None:
        return "for comparison"
    if not result.limits.keeps(item):
        return "above a limit of memory"
    if item in improvements(result.today, result.confirmed, result.prefer, result.limits):
        return f"better, but --prefer {result.prefer} decides for another one"
    today = result.today
    return (
        f"neither faster by more than the noise ({percent(today.noise_floor)}), nor leaner by more "
        f"than processes differ ({percent(today.memory_noise_floor)}) at the same speed"
    )


def view_command(comparison: CommandComparison) -> View:
    """Returns the view of a command as it is and tuned."""
    ratio = comparison.ratio
    rows = [
        ("as it is", f"{comparison.today_s:.3g}", "1", f"{comparison.today_peak_mib:.0f}"),
        ("tuned", f"{comparison.tuned_s:.3g}", _ratio(ratio), f"{comparison.tuned_peak_mib:.0f}"),
    ]
    better = "" if comparison.is_better else "It is not better by more than the noise. "
    if comparison.same_output is None:
        output = "The command writes nothing to stdout: its answers were not compared."
    elif comparison.same_output:
        output = "Every run wrote the same to stdout."
    elif comparison.difference:
        output = f"Tuned, it writes something else to stdout: {comparison.difference}."
    else:
        output = "The command writes something else to stdout each time, as it is too."
    blocks: list[Block] = [
        Table(headings=("command", "seconds", "of the time", "peak MiB"), rows=rows),
        BLANK,
        *lines(f"{better}{comparison.rounds} runs of each in turns."),
        *lines(
            f"Ran tuned: {', '.join(comparison.replaced)}.",
            *(f"Stayed as it is: {reason}." for reason in comparison.kept),
        ),
        *lines(output, tone="warning" if comparison.difference else ""),
    ]
    return View(blocks=blocks, data=comparison.to_json())
