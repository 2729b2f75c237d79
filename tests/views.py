"""What a view says, as lines of text, whatever shows it."""

from autotune.report.view import Line, View


def lines_of(view: View) -> list[str]:
    """Returns each line, and each row of a table with spaces between its cells."""
    found: list[str] = []
    for block in view.blocks:
        if isinstance(block, Line):
            found.append(block.text)
        else:
            found += [" ".join(filter(None, row)) for row in block.rows]
    return found


def words_of(view: View) -> str:
    return " ".join(" ".join(lines_of(view)).split())
