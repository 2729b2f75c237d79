"""A view as terminal text."""

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from autotune.report.view import Block, Line, Table, View

_STYLES = {
    "": "",
    "title": "bold",
    "good": "bold green",
    "bad": "bold red",
    "warning": "yellow",
    "hint": "cyan",
}


def renderable(view: View) -> RenderableType:
    """Returns what Rich prints for a view."""
    return Group(*map(_block, view.blocks))


def _block(block: Block) -> RenderableType:
    return _line(block) if isinstance(block, Line) else _table(block)


def _line(line: Line) -> RenderableType:
    """Returns a line; where it is folded, all of it has the indentation of its beginning."""
    text = line.text.lstrip()
    shown = Text(text, _STYLES[line.tone], overflow="fold")
    indent = len(line.text) - len(text)
    return Padding(shown, (0, 0, 0, indent), expand=False) if indent else shown


def _table(table: Table) -> RichTable:
    """Returns a table without lines, its marked row in bold."""
    shown = RichTable(box=None, pad_edge=False, header_style="bold", show_header=table.has_headings)
    for number, heading in enumerate(table.headings):
        is_words = number in table.words
        shown.add_column(
            Text(heading),
            justify="left" if is_words else "right",
            overflow="ellipsis" if table.is_cut else "fold",
            no_wrap=not is_words,
        )
    for number, row in enumerate(table.rows):
        cells = [Text(cell, no_wrap=table.is_cut) for cell in row]
        shown.add_row(*cells, style="bold" if number == table.marked else None)
    return shown
