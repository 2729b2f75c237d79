"""Search spaces, and the studies in a storage."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from autotune.report.text import printable
from autotune.report.view import BLANK, Block, Line, Table, View, lines
from autotune.space.space import COUNT_LIMIT, Parameter, Space
from autotune.study.resume import StoredStudy


def view_spaces(spaces: Iterable[Space]) -> View:
    """Returns a row for each space: its name and what it is for."""
    rows = [(space.name, space.description) for space in spaces]
    return View(
        blocks=[Table(headings=("space", "for"), rows=rows, words=(0, 1), has_headings=False)],
        data={"spaces": dict(rows)},
    )


def view_space(space: Space) -> View:
    """Returns a search space as a table of its parameters."""
    parameters = Table(
        headings=("parameter", "values", "only"),
        rows=[
            (p.name, ", ".join(map(str, p.values)), ", ".join(_conditions(p)))
            for p in space.parameters
        ],
        words=(0, 1, 2),
    )
    return View(
        blocks=[Line(f"{space.name}: {space.description}", "title"), BLANK, parameters],
        data={
            "name": space.name,
            "description": space.description,
            "parameters": {p.name: list(p.values) for p in space.parameters},
        },
    )


def left_out(reasons: Mapping[str, str]) -> list[Block]:
    """Returns what of a space does not apply, each with the reason; nothing where all does."""
    if not reasons:
        return []
    rows = [(f"  {name}", reason) for name, reason in reasons.items()]
    table = Table(headings=("option", "reason"), rows=rows, words=(0, 1), has_headings=False)
    return [BLANK, Line("Options that do not apply to this model or machine:"), table]


def view_studies(entries: Sequence[StoredStudy], storage: str) -> View:
    """Returns the studies of a storage as a table, below its name."""
    rows = []
    for entry in entries:
        count = str(entry.trials) if entry.budget is None else f"{entry.trials} of {entry.budget}"
        cells = (entry.name, entry.model, entry.machine, ", ".join(entry.objectives), count)
        rows.append(tuple(map(printable, cells)))
    headings = ("study", "model", "machine", "objectives", "trials")
    table = Table(headings=headings, rows=rows, words=(0, 1, 2, 3))
    return View(
        blocks=[Line(storage, "title"), table if rows else Line("There are no studies in it.")],
        data={"storage": storage, "studies": [entry.to_json() for entry in entries]},
    )


def view_cleaned(folder: Path, freed_bytes: int) -> View:
    """Returns what the removal of a study's cache freed, and what stays."""
    if freed_bytes:
        freed = f"The cache of {folder} is removed: {freed_bytes / 2**20:.1f} MiB are free."
        then = "best.json, its model and the trials stay; a study that goes on makes what it needs."
    else:
        freed, then = f"The cache of {folder} holds nothing.", ""
    data = {"folder": str(folder), "freed_bytes": freed_bytes}
    return View(blocks=lines(freed, then), data=data)


def count_of(space: Space) -> str:
    """Returns how many configurations a space has, in words."""
    configurations = space.configurations
    count = f"more than {COUNT_LIMIT:,}" if configurations is None else f"{len(configurations):,}"
    return f"{count} configurations"


def _conditions(parameter: Parameter) -> Iterator[str]:
    """Yields the conditions under which a parameter exists."""
    for name, values in parameter.when.items():
        yield f"if {name} is {_either(values)}"
    for name, values in parameter.unless.items():
        yield f"unless {name} is {_either(values)}"
    for need in parameter.needs:
        yield f"needs {need}"


def _either(values: Iterable[object]) -> str:
    return " or ".join(map(str, values))
