"""Renders the page and writes it: ``report.html`` in the folder of a study."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from autotune import __version__
from autotune.deploy.config import CONFIG
from autotune.process.durable import replacing
from autotune.report.page.figure import Figure
from autotune.report.page.figures import effects_figure, memory_figure, noise_figure, search_figure
from autotune.report.page.front_figure import front_figure
from autotune.report.page.rows import STATES, Row, conditions_of, row_details, rows_of
from autotune.report.page.sections import sections_of
from autotune.report.page.state import StudyState, read_state
from autotune.report.result import answer_blocks, headline, qualifiers
from autotune.report.text import interval, latency, percent, without_controls
from autotune.report.view import Block
from autotune.results.writing import PAGE
from autotune.search.objective import DEFAULT

REFRESH_S = 30
"""How often a page of a study that still runs loads itself again."""

_IN_AN_INTERVAL = re.compile(r"(?<=\d)–(?=\d)")


def write_report(folder: Path, storage: str | None = None, name: str | None = None) -> Path:
    """Writes the page of the study in `folder`; returns its path.

    Raises:
        StudyError: the folder holds no study.
        OSError: the file cannot be written.
    """
    return write_page(read_state(folder, storage, name))


def write_page(state: StudyState) -> Path:
    """Writes the page of a study in that state to its folder; returns its path."""
    path = state.folder / PAGE
    text = render_page(state)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def figures_of(state: StudyState, rows: list[Row]) -> dict[str, Figure]:
    """Returns the figures of a study, by name; those without data are left out."""
    made = [
        front_figure(state, rows),
        search_figure(state, rows),
        effects_figure(state),
        memory_figure(state),
        noise_figure(rows),
    ]
    return {figure.name: figure for figure in made if figure is not None}


def render_page(state: StudyState) -> str:
    """Returns the page as HTML."""
    rows = rows_of(state)
    figures = figures_of(state, rows)
    answer = answer_of(state, rows)
    data = {
        "trials": {row.trial: row_details(row) for row in rows},
        "selected": answer.trial,
    }
    return (
        environment_of()
        .get_template("page.html")
        .render(
            answer=answer,
            conditions=conditions_of(state),
            data=data,
            figures=figures,
            sections=sections_of(state, figures),
            further=[
                o for o in state.objectives if o.name not in {"latency_ms", "peak_memory_mib"}
            ],
            name=state.model,
            nonce=token_urlsafe(16),
            refresh_s=REFRESH_S,
            result=state.result,
            rows=rows,
            state=state,
            states=STATES,
            version=__version__,
        )
    )


@cache
def environment_of() -> Environment:
    """Returns the templates' environment: every text is escaped, and none turns the writing."""

    def safe(value: object) -> object:
        """Returns text of unknown origin without control characters and halves of characters."""
        return without_controls(value) if type(value) is str else value

    environment = Environment(
        loader=PackageLoader("autotune.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=safe,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "interval": interval,
        "json_text": lambda value: Markup(script_json(value)),
        "latency": latency,
        "percent": percent,
        "prose": prose,
    }
    return environment


def prose(text: str) -> Markup:
    """Returns a sentence of unknown origin for the page, with what stands in backticks as code.

    The page breaks no line inside of an interval.
    """
    parts = str(escape(without_controls(text))).split("`")
    if len(parts) % 2 == 0:  # a backtick that has no second one
        parts[-2:] = ["`".join(parts[-2:])]
    coded = "".join(f"<code>{part}</code>" if n % 2 else part for n, part in enumerate(parts))
    return Markup(_IN_AN_INTERVAL.sub("\u2060–\u2060", coded))


def script_json(value: Mapping[str, Any]) -> str:
    """Returns JSON that may stand inside a ``<script>`` of a page, whatever texts it holds.

    No text can end the script or open a comment: ``<``, ``>`` and ``&`` are written as escapes.
    """
    text = json.dumps(value, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of a study.

    Attributes:
        blocks: The front, what each change brings, and what qualifies the numbers; empty while the
            study runs.
        code: The Python code that loads the config; empty while the study runs.
        trial: Number of its trial; None while no trial has ended.
    """

    headline: str
    blocks: Sequence[Block] = ()
    code: str = ""
    trial: int | None = None


def answer_of(state: StudyState, rows: list[Row]) -> Answer:
    """Returns the answer of a study, or the best so far while there is none."""
    if (result := state.result) is not None:
        path = json.dumps(str(result.folder / CONFIG), ensure_ascii=False)
        load = f"session = autotune.load({path})"
        return Answer(
            headline=headline(result),
            blocks=[*qualifiers(result), *answer_blocks(result)],
            code=f"import autotune\n\n{load}\noutputs = session.run(None, inputs)",
            trial=result.best.trial,
        )
    first = state.objectives[0]
    states = {"default", "measured", "stopped"}
    kept = [row for row in rows if row.state in states and first.name in row.values]
    best = min(kept, key=lambda row: first.cost(row.values[first.name]), default=None)
    if best is None:
        return Answer(headline=f"{state.model}: no trial has ended yet.")
    ms, mib = (best.values[name] for name in DEFAULT)
    speed = "" if best.speedup is None else f"{best.speedup.value:.2f}× faster, "
    return Answer(
        headline=f"Best so far: trial {best.trial}, {speed}{latency(ms)} ms and {mib:.1f} MiB. "
        "The final comparison has yet to confirm it.",
        trial=best.trial,
    )
