"""A figure of the page: marks and lines in the units of its axes, which a template draws as SVG.

An SVG is as wide as the page lets it be. Places in it are per cent, so that marks and words keep
their size on a phone and on paper; colours are those of the style sheet.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

# What is that many times worse than the default would press all others into a corner.
FARTHEST = 1.6

_MARGIN = 0.06
_STEPS = (1, 2, 5, 10)
_MOST_STEPS = 6


@dataclass(frozen=True, kw_only=True)
class Scale:
    """An axis.

    Attributes:
        low: The value at its left or lower end; larger than `high` where it runs down.
        ticks: The values that it names.
    """

    title: str
    low: float
    high: float
    ticks: Sequence[float] = ()
    is_log: bool = False

    @classmethod
    def of(
        cls,
        title: str,
        values: Iterable[float],
        *,
        low: float | None = None,
        high: float | None = None,
    ) -> "Scale":
        """Returns an axis with round ticks that holds all values, with a margin.

        Args:
            low: Its low end; None where the values decide it.
            high: Its high end; None where the values decide it.
        """
        known = list(values)
        space = _MARGIN * ((max(known) - min(known)) or abs(max(known)) or 1.0)
        low = min(known) - space if low is None else low
        high = max(known) + space if high is None else high
        return cls(title=title, low=low, high=high, ticks=_ticks(low, high))

    def holds(self, value: float) -> bool:
        """Returns whether a value lies on the axis."""
        return min(self.low, self.high) <= value <= max(self.low, self.high)

    def place(self, value: float) -> float:
        """Returns where a value lies, in per cent from the low end; at an end if it is beyond."""
        scale = math.log if self.is_log else float
        inside = min(max(value, min(self.low, self.high)), max(self.low, self.high))
        return 100 * (scale(inside) - scale(self.low)) / (scale(self.high) - scale(self.low))


def _ticks(low: float, high: float) -> list[float]:
    """Returns at most seven round values between two values."""
    if not 0 < high - low < math.inf:  # numbers of strangers
        return []
    rough = (high - low) / _MOST_STEPS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in _STEPS if factor * power >= rough)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of a figure.

    Attributes:
        text: What the pointer shows.
        trial: The trial that a click selects; None for none.
    """

    x: float
    y: float
    text: str
    trial: int | None = None


@dataclass(frozen=True)
class Stroke:
    """A straight line of a figure, or a bar.

    Attributes:
        text: What the pointer shows; empty for nothing.
    """

    x1: float
    y1: float
    x2: float
    y2: float
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Marks and strokes that look alike.

    Attributes:
        name: Its name in the legend; empty for none.
        look: Classes of the style sheet: a colour, and what else it is.
        shape: The shape of its marks, one of those in ``shapes.html``.
    """

    name: str
    look: str
    shape: str = "dot"
    marks: Sequence[Point] = ()
    strokes: Sequence[Stroke] = ()


@dataclass(frozen=True)
class Label:
    """Words that begin at a point of a figure."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of the page.

    Attributes:
        name: Its name in the page.
    """

    name: str
    title: str
    caption: str
    x: Scale
    y: Scale
    series: Sequence[Series]
    labels: Sequence[Label] = ()
    height_px: int = 340


def steps(points: Sequence[tuple[float, float]]) -> list[Stroke]:
    """Returns the line through points that first runs across, then up or down."""
    strokes = []
    for (x1, y1), (x2, y2) in pairwise(points):
        strokes += [Stroke(x1, y1, x2, y1), Stroke(x2, y1, x2, y2)]
    return strokes
