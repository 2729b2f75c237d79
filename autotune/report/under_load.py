"""Configurations under an offered load, and the verdicts on them."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.report.comparison import TOO_FEW, answers_remarks, percentile, verdict_line
from autotune.report.tables import plain_table
from autotune.results.gate import Verdict
from autotune.results.under_load import LoadComparison, UnderLoad


def render_under_load(comparison: LoadComparison, verdicts: Sequence[Verdict]) -> RenderableType:
    """Returns the verdicts, then the latencies of all configurations and the baseline.

    Args:
        comparison: What was measured.
        verdicts: What the gate says of it.
    """
    clients = f"{comparison.clients} client{'s' if comparison.clients > 1 else ''}"
    lines: list[RenderableType] = [
        *map(verdict_line, verdicts),
        "",
        _table(comparison),
        "",
        Text(
            f"Open loop: {comparison.offered_per_s:g} requests arrive in a second, at random "
            f"(Poisson), and {clients} send them. Latencies count from the scheduled arrival, "
            f"over {comparison.rounds} alternating rounds."
        ),
    ]
    rows = (comparison.baseline, *comparison.configs)
    if any(row.kept_up and row.p99_ms is None for row in rows):
        lines.append(Text(TOO_FEW))
    if not all(row.kept_up for row in rows):
        lines.append(
            Text(
                "Where a configuration does not keep up, the queue grows for as long as requests "
                "arrive, so its latencies are not shown. Offer less with --qps.",
                style="yellow",
            )
        )
    return Group(*lines, *answers_remarks(comparison))


def _table(comparison: LoadComparison) -> Table:
    table = plain_table()
    table.add_column("configuration", overflow="fold")
    for heading in ("p50 ms", "p90 ms", "p99 ms", "answered/s", "error"):
        table.add_column(heading, justify="right")
    table.add_column("load")
    for row in (comparison.baseline, *comparison.configs):
        table.add_row(
            row.name,
            *map(percentile, (row.p50_ms, row.p90_ms, row.p99_ms)),
            f"{row.achieved_per_s:.4g}",
            "" if row is comparison.baseline else f"{row.error:.1g}",
            _load(row),
        )
    return table


def _load(row: UnderLoad) -> str:
    return "keeps up" if row.kept_up else "does not keep up"
