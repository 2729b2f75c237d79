"""A view in each of its forms: on a terminal, as Markdown; the page has tests of its own."""

from io import StringIO

from rich.console import Console

from autotune.report.terminal import renderable
from autotune.report.view import BLANK, Line, Table, View

_TABLE = Table(
    headings=("configuration", "ms"),
    rows=[("a|b and many words besides", "10"), ("c[red]", "2.5")],
    marked=1,
)
_VIEW = View(blocks=[Line("All is well.", "good"), BLANK, _TABLE], data={"well": True})


def _shown(view: View, width: int = 40) -> list[str]:
    text = StringIO()
    Console(file=text, width=width, markup=False).print(renderable(view))
    return [line.rstrip() for line in text.getvalue().splitlines()]


def test_numbers_stand_below_each_other() -> None:
    """Words begin and numbers end in one column; brackets of strangers are no markup."""
    assert _shown(_VIEW) == [
        "All is well.",
        "",
        "configuration                ms",
        "a|b and many words besides   10",
        "c[red]                      2.5",
    ]


def test_a_folded_line_keeps_its_indentation() -> None:
    indented = _shown(View(blocks=[Line(f"  {'word ' * 12}")], data={}))
    assert [line.startswith("  word") for line in indented] == [True, True]
