"""A console that prints no control characters but its own."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from autotune.report.text import without_controls


class SafeConsole(Console):
    """A console that shows a question mark for each character that a terminal may obey.

    Names of models and folders may hold brackets and colons: text is never read as markup.
    """

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Gives the segments of `renderable`; every console method that prints text uses this."""
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(without_controls(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        """Passes the fault on: the program ends in one place."""
        raise BrokenPipeError
