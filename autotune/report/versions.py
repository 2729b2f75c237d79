"""A model on several ONNX Runtimes, and what a release changed."""

from collections.abc import Sequence
from dataclasses import asdict

from autotune.measure.leak import Leak
from autotune.measure.outcome import Failure
from autotune.report.comparison import view_comparison
from autotune.report.text import interval
from autotune.report.view import BLANK, Block, Line, Table, View
from autotune.results.gate import Verdict
from autotune.results.versions import LEAK, Change, VersionComparison


def view_versions(versions: VersionComparison, verdicts: Sequence[Verdict]) -> View:
    """Returns the comparison, and how the memory of each grows with the runs."""
    view = view_comparison(versions.comparison, verdicts)
    rows = [(name, *_growth(leak)) for name, leak in versions.leaks.items()]
    headings = ("configuration", "growth, KiB a run", "runs", "")
    blocks: list[Block] = [
        *view.blocks,
        BLANK,
        Line("Memory after the first runs; brackets hold 95 % intervals."),
        Table(headings=headings, rows=rows, words=(0, 3)),
    ]
    leaks = {name: asdict(leak) for name, leak in versions.leaks.items()}
    return View(blocks=blocks, data={**view.data, "growth": leaks})


def view_changes(first: str, last: str, releases: Sequence[str], changes: Sequence[Change]) -> View:
    """Returns what changed between two releases, and which one brought it."""
    blocks = [
        Line(_sentence(change), "bad" if change.confirmed else "warning") for change in changes
    ]
    if not changes:
        words = f"{last} is no slower than {first}, leaks no memory and gives the same answers."
        blocks = [Line(words, "good")]
    data = {"releases": list(releases), "changes": [asdict(change) for change in changes]}
    return View(blocks=blocks, data=data)


def _growth(leak: Leak | Failure) -> tuple[str, str, str]:
    if isinstance(leak, Failure):
        return ("", "", leak.message)
    words = f"{leak.kib_per_run:.3f} ({leak.low:.3f}–{leak.high:.3f})"
    return (words, str(leak.runs), "leaks" if leak.is_leak else "")


def _sentence(change: Change) -> str:
    words = f"{change.release} brought a {change.kind}"
    if change.speedup is not None:
        words += f": {change.speedup.value:.3f}× the speed ({interval(change.speedup)})"
    if change.leak is not None:
        leak = change.leak
        words += f": {leak.kib_per_run:.3f} KiB a run ({leak.low:.3f}–{leak.high:.3f})"
    if change.error is not None:
        now, before = change.error
        words = f"{change.release} brought other answers: error {now:.2g}, {before:.2g} before"
    if change.failure:
        words += f": {change.failure}"
    beside = "" if change.kind == LEAK else f" beside {change.before}"
    if change.confirmed:
        return f"{words}, measured again{beside}."
    return f"{words}, but measured again{beside} it does not show: it may be noise, or gradual."
