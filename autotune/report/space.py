"""Search spaces."""

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.report.tables import plain_table
from autotune.space.space import COUNT_LIMIT, Parameter, Space


def render_spaces(spaces: Iterable[Space]) -> RenderableType:
    """Returns a line for each space: its name and what it is for."""
    return Group(*(Text(f"{space.name:10} {space.description}") for space in spaces))


def render_space(space: Space) -> RenderableType:
    """Returns a search space as a table of its parameters."""
    table = plain_table()
    table.add_column("parameter", no_wrap=True)
    table.add_column("values", overflow="fold")
    table.add_column("only", overflow="fold")
    for parameter in space.parameters:
        table.add_row(
            Text(parameter.name),
            Text(", ".join(map(str, parameter.values))),
            Text(", ".join(_conditions(parameter))),
        )
    title = Text(f"{space.name}: {space.description}", style="bold")
    parts: list[RenderableType] = [title, "", table]
    if space.left_out:
        parts += ["", *(Text(f"Left out: {name} ({why})") for name, why in space.left_out.items())]
    return Group(*parts)


def render_count(space: Space) -> RenderableType:
    """Returns how many candidates a resolved space has."""
    candidates = space.candidates
    count = f"more than {COUNT_LIMIT:,}" if candidates is None else f"{len(candidates):,}"
    return Text(f"{count} candidates")


def _conditions(parameter: Parameter) -> Iterator[str]:
    """Gives the conditions under which a parameter exists."""
    for name, values in parameter.when.items():
        yield f"if {name} is {_either(values)}"
    for name, values in parameter.unless.items():
        yield f"unless {name} is {_either(values)}"
    for need in parameter.needs:
        yield f"needs {need}"


def _either(values: Iterable[object]) -> str:
    return " or ".join(map(str, values))
