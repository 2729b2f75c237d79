"""The look that all tables have in common."""

from rich.table import Table


def plain_table() -> Table:
    """Returns an empty table without lines, its headings bold."""
    return Table(box=None, pad_edge=False, header_style="bold")
