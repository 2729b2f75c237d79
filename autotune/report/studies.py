"""The studies in a storage."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.report.tables import plain_table
from autotune.report.text import printable
from autotune.study.resume import Entry


def render_studies(entries: Sequence[Entry], storage: str) -> RenderableType:
    """Returns the studies as a table, below the name of the storage."""
    table = plain_table()
    for heading in ("study", "model", "machine", "objectives"):
        table.add_column(heading, overflow="fold")
    table.add_column("trials", justify="right")
    for entry in entries:
        count = str(entry.trials) if entry.budget is None else f"{entry.trials} of {entry.budget}"
        cells = (entry.name, entry.model, entry.machine, ", ".join(entry.objectives), count)
        table.add_row(*(Text(printable(text)) for text in cells))
    return Group(Text(storage, style="bold"), table if entries else Text("no studies"))
