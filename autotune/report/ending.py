"""The end of a study: on one screen, what to use, what it brings, and where the rest is."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.report.batches import batch_remark
from autotune.report.coverage import coverage_remarks
from autotune.report.process import process_remarks
from autotune.report.result import has_wide_intervals, headline
from autotune.report.serving import is_loaded
from autotune.report.tables import plain_table
from autotune.report.text import interval, latency, percent
from autotune.report.why import BRINGS, changes, nearest
from autotune.results.result import Member, StudyResult

_MOST_MEMBERS = 5


def render_ending(result: StudyResult) -> RenderableType:
    """Returns the answer, the front, what each change brings, and where the rest is."""
    parts: list[RenderableType] = [
        Text(headline(result), style="bold green"),
        "",
        _front(result),
        "",
    ]
    if sentences := nearest(result):
        parts += [*map(Text, sentences), ""]
    if rows := changes(result):
        parts += [_line(BRINGS), _changes(rows), ""]
    if result.process is not None:
        parts += [*process_remarks(result), ""]
    return Group(*parts, *_remarks(result), *_where_the_rest_is(result))


def _line(text: str) -> Text:
    """Returns text that takes one line, however long it is."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _front(result: StudyResult) -> Table:
    """Returns the members of the front, a line each, the chosen one marked; the best of many."""
    table = plain_table()
    loaded = is_loaded(result)
    speed = ("samples/s", "p99", "gain") if loaded else ("latency ms", "speed-up")
    for heading in ("", "trial", *speed, "memory MiB", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("changes", overflow="ellipsis")
    for member in _shown(result):
        evidence = member.evidence
        picked = member.trial == result.picked
        speedup = f"{evidence.speedup.value:.2f} ({interval(evidence.speedup)})"
        table.add_row(
            "→" if picked else "",
            str(member.trial),
            *(_served(member) if loaded else [latency(evidence.latency_ms)]),
            "1" if member is result.baseline else speedup,
            f"{evidence.peak_memory_mib:.1f}",
            f"{evidence.error:.1g}",
            _line(member.words + ("" if member.admitted else " (breaks the limits)")),
            style="bold" if picked else None,
        )
    return table


def _served(member: Member) -> tuple[str, str]:
    """Returns a member's throughput and 99th percentile, each for its column."""
    p99_ms = member.evidence.p99_ms
    return (
        f"{member.evidence.throughput_per_s:.4g}",
        "·" if p99_ms is None else f"{latency(p99_ms)} ms",
    )


def _changes(rows: Sequence[tuple[str, str]]) -> Table:
    """Returns a line for each change; where there is no room, its words are cut."""
    table = plain_table()
    table.show_header = False
    table.add_column(overflow="ellipsis")
    table.add_column(no_wrap=True)
    for words, brings in rows:
        table.add_row(_line(f"  {words}"), brings)
    return table


def _shown(result: StudyResult) -> list[Member]:
    """Returns the members that have room on a screen: the default and the picked one among them."""
    first = [result.baseline, result.best]
    chosen = [*first, *(member for member in result.members if member not in first)]
    return [member for member in result.members if member in chosen[:_MOST_MEMBERS]]


def _remarks(result: StudyResult) -> Iterator[Text]:
    best = result.best.evidence
    if remark := batch_remark(result):
        yield Text(remark)
    if not result.complete:
        yield _line("There was no final comparison: these are the numbers of the search.")
    if has_wide_intervals(result):
        yield _line("Some brackets are wide: too few quiet runs. More trials narrow them.")
    data = "your" if best.error_data == "user" else "generated"
    limit = result.limits["max_error"]
    answers = f"Answers: error {best.error:.1g}" + (f" (limit {limit:g})" if limit else "")
    answers += f" on {data} inputs"
    if best.agreement is not None:
        answers += f"; top-1 agreement {percent(best.agreement)}"
    if best.metric is not None:
        answers += f"; your metric {best.metric:.4g}, {result.baseline.evidence.metric:.4g} before"
    yield _line(f"{answers}.")
    yield from coverage_remarks(best.coverage)
    for kind in result.kinds:
        if kind.answers == "beyond" and kind.confirmed:
            yield _line(
                f"A looser error limit would allow {kind.speedup:.2f}×: trial {kind.trial}, "
                f"error {kind.error:.1g}."
            )
    if result.left_out:
        yield _line(f"Not tried: {len(result.left_out)} parameters and values without a use here.")
    if result.never_quiet:
        yield _line(f"{result.never_quiet} of {result.trials} trials ran on a busy machine.")


def _where_the_rest_is(result: StudyResult) -> Iterator[Text]:
    folder = result.folder
    written = Text(f"Written to {folder}: {', '.join(result.files)}", style="cyan")
    yield written
    yield Text(f"All of the result: autotune show {folder}; the changes: add --why")
    if result.best is result.baseline:
        yield Text(f"How far it is from the machine's roof: autotune inspect {result.model.name}")
    else:
        yield Text(f"Where the time of a run goes: autotune profile {folder}")
