"""The answer of a study, which the page shows first: that of the terminal, or the best so far."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.report.page.rows import Row
from autotune.report.page.state import StudyState
from autotune.report.result import answer_blocks, headline
from autotune.report.text import latency
from autotune.report.view import Block
from autotune.results.writing import CONFIG
from autotune.search.objective import DEFAULT


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of a study.

    Attributes:
        blocks: The front, what each change brings, and what qualifies the numbers; empty while the
            study runs.
        confirmed: Whether a final comparison confirmed the numbers.
        code: The Python code that loads the config; empty while the study runs.
        trial: Number of its trial; None while no trial has ended.
    """

    headline: str
    blocks: Sequence[Block] = ()
    confirmed: bool = False
    code: str = ""
    trial: int | None = None


def answer_of(state: StudyState, rows: list[Row]) -> Answer:
    """Returns the answer of a study, or the best so far while there is none."""
    if (result := state.result) is not None:
        path = json.dumps(str(result.folder / CONFIG), ensure_ascii=False)
        load = f"session = autotune.load({path})"
        return Answer(
            headline=headline(result),
            blocks=answer_blocks(result),
            confirmed=result.complete,
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
