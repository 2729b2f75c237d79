"""A figure of the page: what Plotly draws, in colours that the page gives.

Colours are names such as ``@accent``. The page puts the colours of its light or dark look in their
place: see ``page.js``.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from autotune.report.text import without_controls

Plot = dict[str, Any]
"""Traces and layout as Plotly.js takes them: keys ``data`` and ``layout``."""

# What is that many times worse than the default would press all others into a corner. It lies
# outside of the axes; a double-click shows it.
FARTHEST = 1.6

HOLLOW: Plot = {"symbol": "circle-open", "size": 7, "color": "@faint", "line": {"width": 1.4}}
FILLED: Plot = {"symbol": "circle", "size": 11, "color": "@accent"}
DIAMOND: Plot = {"symbol": "diamond", "size": 13, "color": "@bad"}
STAR: Plot = {
    "symbol": "star",
    "size": 18,
    "color": "@good",
    "line": {"width": 1, "color": "@card"},
}

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_WRAP = 46


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure of the page.

    Attributes:
        name: Its name in the page, and of the file that it is exported to.
    """

    name: str
    title: str
    caption: str
    plot: Plot
    height_px: int


def plot(traces: Sequence[Plot], **layout: Any) -> Plot:
    """Returns traces with the layout that all figures have in common, and `layout` besides."""
    common: Plot = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": _FONT, "size": 13, "color": "@text"},
        "margin": {"l": 56, "r": 16, "t": 8, "b": 44},
        "hovermode": "closest",
        "hoverlabel": {
            "bgcolor": "@card",
            "bordercolor": "@line",
            "font": {"color": "@text", "size": 13},
            "align": "left",
        },
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0, "xanchor": "left"},
    }
    return {"data": list(traces), "layout": common | layout}


def axis(title: str, **more: Any) -> Plot:
    """Returns an axis with this title; settings that are None are left at Plotly's default."""
    common: Plot = {
        "title": {"text": markup(title), "font": {"size": 13, "color": "@muted"}, "standoff": 8},
        "gridcolor": "@line",
        "zerolinecolor": "@line",
        "linecolor": "@line",
        "tickfont": {"color": "@muted"},
        "automargin": True,
    }
    return common | {key: value for key, value in more.items() if value is not None}


def dots(name: str, x: Sequence[object], y: Sequence[object], look: str | Plot) -> Plot:
    """Returns a trace of one point for each pair of `x` and `y`.

    Args:
        look: One colour for all of them, or the marker as Plotly takes it, such as :data:`STAR`.
    """
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": list(x),
        "y": list(y),
        "marker": {"color": look, "size": 6} if isinstance(look, str) else look,
    }


def bars(below: Sequence[float], above: Sequence[float], **style: object) -> Plot:
    """Returns error bars that reach so far below and above the points of a trace."""
    return {
        "type": "data",
        "symmetric": False,
        "array": list(above),
        "arrayminus": list(below),
        "color": "@muted",
        **style,
    }


def markup(text: str) -> str:
    """Returns text of unknown origin so that Plotly shows it literally, tags included."""
    return escape(without_controls(text), quote=False)


def wrapped(text: str, width: int = _WRAP) -> str:
    """Returns text of unknown origin in lines of at most `width` characters, for Plotly."""
    return "<br>".join(markup(line) for line in textwrap.wrap(text, width)) or "&nbsp;"


def coloured(value: Any, colours: Mapping[str, str]) -> Any:
    """Returns a part of a plot with colours in place of their names."""
    if isinstance(value, dict):
        return {key: coloured(item, colours) for key, item in value.items()}
    if isinstance(value, list):
        return [coloured(item, colours) for item in value]
    return colours.get(value, value) if isinstance(value, str) else value
