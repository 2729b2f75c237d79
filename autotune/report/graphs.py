"""What each change of the graph came to, with default session options."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from autotune.report.tables import plain_table
from autotune.results.result import GraphRow


def graph_table(rows: Sequence[GraphRow]) -> Table:
    """Returns a row for each graph; latency and memory are relative to the default's."""
    table = plain_table()
    table.add_column("graph", overflow="fold")
    for heading in ("operators", "parameters", "file MiB", "latency", "memory", "error"):
        table.add_column(heading, justify="right")
    with_metric = any(row.metric is not None for row in rows)
    if with_metric:
        table.add_column("metric", justify="right")
    for row in rows:
        if row.failure and row.latency is None:
            table.add_row(Text(row.words), *["-"] * (6 + with_metric))
            table.add_row(Text(f"  {row.failure}", style="dim"))
            continue
        size_mib = None if row.size_bytes is None else row.size_bytes / 2**20
        table.add_row(
            Text(row.words),
            _number(row.operators, ",d"),
            _number(row.parameters, ",d"),
            _number(size_mib, ".1f"),
            _number(row.latency, ".2f"),
            _number(row.memory, ".2f"),
            _number(row.error, ".1g"),
            *([_number(row.metric, ".4g")] if with_metric else []),
        )
    return table


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
