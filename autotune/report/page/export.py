"""The figures of a page as files: SVG or PNG, in the light look."""

from pathlib import Path

from autotune.errors import MissingPackageError, RequestError
from autotune.report.page.figure import LIGHT, Figure, coloured
from autotune.report.page.rows import rows_of
from autotune.report.page.state import read_state
from autotune.report.page.writing import HOW_TO_INSTALL, figures_of

FORMATS = ("svg", "png")
"""The formats of a figure."""

_WIDTH_PX = 900
_TITLE_PX = 64
_SCALE = 2


def write_figures(
    folder: Path,
    into: Path,
    kind: str = FORMATS[0],
    storage: str | None = None,
    name: str | None = None,
) -> list[Path]:
    """Writes the figures of the study in `folder` to files; returns their paths.

    Args:
        into: The folder to write to; made if there is none.

    Raises:
        StudyError: the folder holds no study.
        MissingPackageError: Plotly, Kaleido or the browser that Kaleido needs is not installed.
        RequestError: `into` cannot be written to.
    """
    try:
        import kaleido
        import plotly  # noqa: F401  # Kaleido draws with the Plotly.js that is in it
        from kaleido.errors import ChromeNotFoundError
    except ImportError as error:
        raise MissingPackageError(
            f"figures need the package {error.name}: {HOW_TO_INSTALL}"
        ) from None
    state = read_state(folder, storage, name)
    figures = figures_of(state, rows_of(state))
    try:
        into.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"cannot make the folder {into}: {error.strerror}") from None
    drawings = [
        {
            "fig": _plain(figure),
            "path": into / f"{figure.name}.{kind}",
            "opts": {
                "format": kind,
                "width": _WIDTH_PX,
                "height": figure.height_px + _TITLE_PX,
                "scale": _SCALE,
            },
        }
        for figure in figures.values()
    ]
    try:
        # without the setting Kaleido fetches MathJax from the network
        kaleido.write_fig_from_object_sync(drawings, kopts={"mathjax": False})
    except ChromeNotFoundError:
        raise MissingPackageError(
            "Kaleido draws figures with a browser, and there is none: install Chrome or Chromium, "
            "or type plotly_get_chrome"
        ) from None
    return [into / f"{name}.{kind}" for name in figures]


def _plain(figure: Figure) -> dict[str, object]:
    """Returns what Plotly draws, with a title, on white, in the light colours."""
    layout = {
        **figure.plot["layout"],
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "title": {"text": figure.title, "x": 0.02},
        "margin": {"l": 64, "r": 24, "t": 8 + _TITLE_PX, "b": 52},
    }
    plain: dict[str, object] = coloured({"data": figure.plot["data"], "layout": layout}, LIGHT)
    return plain
