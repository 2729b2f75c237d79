"""A view as terminal text: no blanks at the ends of lines, and no number over two lines."""

import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment
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
_GAP = 2
# Words in a narrower column are hard to read.
_LEAST_WORDS = 30
_INDENT = " " * 4
_FIRM_BLANK = "\u00a0"  # textwrap breaks no line here
_BEFORE_A_UNIT = re.compile(r"(?<=\d) (?=(?:%|×|ms|MiB|GiB|s|min|h|GB/s|tokens/s|samples/s)(?!\w))")


def renderable(view: View) -> RenderableType:
    """Returns what Rich prints for a view."""
    return Group(*map(_Fitting, view.blocks))


@dataclass(frozen=True)
class _Fitting:
    """A block that Rich prints for the width there is."""

    block: Block

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self._shown(options.max_width), options, pad=False):
            yield from _without_blanks_at_the_end(line)
            yield Segment.line()

    def _shown(self, width: int) -> RenderableType:
        if isinstance(self.block, Line):
            return _line(self.block, width)
        if _needed_width(self.block) <= width:
            return _table(self.block)
        return Group(*_rows_as_blocks(self.block, width))


def _without_blanks_at_the_end(line: Sequence[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].text.rstrip():
        kept.pop()
    if kept:
        kept[-1] = kept[-1]._replace(text=kept[-1].text.rstrip())
    return kept


def _line(line: Line, width: int) -> Text:
    """Returns a line; where it is folded, all of it has the indentation of its beginning."""
    text = line.text.lstrip(" ")
    indent = " " * (len(line.text) - len(text))
    parts = [_wrapped(indent + part, width, indent) for part in text.split("\n")]
    return Text("\n".join(itertools.chain(*parts)), _STYLES[line.tone], overflow="fold")


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Returns text in lines of a width; a number and its unit stay together, as firm blanks do."""
    lines = textwrap.wrap(
        _BEFORE_A_UNIT.sub(_FIRM_BLANK, text),
        max(1, width),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_FIRM_BLANK, " ") for line in lines] or [""]


def _needed_width(table: Table) -> int:
    """Returns the width in which no number is broken and words have room."""
    headings = [table.headings] if table.has_headings else []
    columns = zip(*headings, *table.rows, strict=True)
    widths = [max(map(cell_len, cells), default=0) for cells in columns]
    room = [min(w, _LEAST_WORDS) if n in table.words else w for n, w in enumerate(widths)]
    return sum(room) + _GAP * (len(room) - 1)


def _table(table: Table) -> RichTable:
    """Returns a table without lines, its marked row in bold."""
    shown = RichTable(box=None, pad_edge=False, header_style="bold", show_header=table.has_headings)
    for number, heading in enumerate(table.headings):
        is_words = number in table.words
        shown.add_column(
            Text(heading),
            justify="left" if is_words else "right",
            overflow="fold",
            no_wrap=not is_words,
        )
    for number, row in enumerate(table.rows):
        shown.add_row(*map(Text, row), style="bold" if number == table.marked else None)
    return shown


def _rows_as_blocks(table: Table, width: int) -> Iterator[RenderableType]:
    """Yields each row as a few lines: what it is, then its numbers, then its words."""
    headings = table.headings if table.has_headings else [""] * len(table.headings)
    # the first column with words or a heading says what a row is; one before it only marks it
    first = next(n for n, heading in enumerate(headings) if heading or n in table.words)
    rest = range(first + 1, len(headings))
    for place, row in enumerate(table.rows):
        heading = "" if first in table.words else headings[first]
        name = " ".join(filter(None, [*row[:first], heading, row[first]]))
        yield Text(name, "bold" if place == table.marked else "", overflow="fold")
        numbers = [f"{headings[n]} {row[n]}" for n in rest if n not in table.words and row[n]]
        words = [_labelled(headings[n], row[n]) for n in rest if n in table.words and row[n]]
        together = ", ".join(number.strip().replace(" ", _FIRM_BLANK) for number in numbers)
        for text in filter(None, [together, *words]):
            yield Text("\n".join(_wrapped(_INDENT + text, width, _INDENT)), overflow="fold")


def _labelled(heading: str, text: str) -> str:
    return f"{heading}: {text}" if heading else text
