"""What a command or a page says, already worded: lines, tables, and the same as data.

One function makes the view of a result. The terminal (:mod:`autotune.report.terminal`), the page
(:mod:`autotune.report.page`) and ``--json`` take what they show from it, so a number is chosen,
rounded and explained in one place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Tone = Literal["", "title", "good", "bad", "warning", "hint"]
"""What a line is, which decides its look: plain text, a heading, good or bad news, a warning, or
what to do next."""


@dataclass(frozen=True)
class Line:
    """A sentence or a few.

    Attributes:
        text: The words; text of strangers is cleaned where it is shown.
        tone: See :data:`Tone`.
    """

    text: str
    tone: Tone = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of words and numbers.

    Attributes:
        words: Numbers of the columns that hold words; the others hold numbers.
        marked: Number of the row that the reader looks for; None where there is none.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = (0,)
    marked: int | None = None
    has_headings: bool = True


Block = Line | Table

BLANK = Line("")
"""An empty line."""


@dataclass(frozen=True, kw_only=True)
class View:
    """What is said of one result.

    Attributes:
        data: The result as JSON values, for programs.
        result: The result in one line; the first line of the blocks if empty.
    """

    blocks: Sequence[Block]
    data: Mapping[str, Any]
    result: str = ""

    @property
    def in_one_line(self) -> str:
        """The result in one line."""
        texts = (block.text for block in self.blocks if isinstance(block, Line) and block.text)
        return self.result or next(texts, "")


def lines(*texts: str, tone: Tone = "") -> list[Line]:
    """Returns a line for each text that is not empty."""
    return [Line(text, tone) for text in texts if text]
