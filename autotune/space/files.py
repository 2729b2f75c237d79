"""Search spaces as TOML files: the presets that come with autotune, and files of the user."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import autotune
from autotune.deploy.files import is_file, read_text
from autotune.deploy.options import BATCH, RUNTIME, Value
from autotune.errors import FormatError, SpaceError, did_you_mean, shown
from autotune.graph.parameters import OUTPUTS
from autotune.space.needs import NEEDS
from autotune.space.parameters import (
    CLIENTS,
    CORES,
    PARAMETERS,
    THREAD_COUNTS,
    batch_problem,
)
from autotune.space.session import EVERY_OPTIMIZER, ON_OR_OFF
from autotune.space.space import Condition, Parameter, Space

# A space is read whole into memory; a real one has a few kilobytes.
_LARGEST_BYTES = 1 << 20
# As much as a person reads; names in a file may have any length.
_LONGEST_PROBLEM = 500
_MOST_PROBLEMS = 50
_DOMAINS = {**PARAMETERS, EVERY_OPTIMIZER: ON_OR_OFF}
# which there are is said by --runtimes and --outputs
del _DOMAINS[RUNTIME], _DOMAINS[OUTPUTS]
_KEYS = ("description", "clients", "parameters")
_PARAMETER_KEYS = ("values", "default", "when", "unless", "needs")


def presets() -> dict[str, Path]:
    """Returns the files of the spaces that come with autotune, by name."""
    package = Path(autotune.__file__).parent
    # in the wheel they lie inside the package, in a checkout beside it
    for folder in (package / "search_spaces", package.parent / "search_spaces"):
        if folder.is_dir():
            return {file.stem: file for file in sorted(folder.glob("*.toml"))}
    raise SpaceError("the search spaces of autotune are missing; install it again")


def find_space(name_or_file: str) -> Space:
    """Returns the space of a preset, or of a TOML file.

    Raises:
        SpaceError: there is no such preset or file, or the file is wrong; the message lists all
            faults of the file.
    """
    files = presets()
    path = files.get(name_or_file) or Path(name_or_file)
    if not is_file(path):
        raise SpaceError(
            f"there is no search space {shown(name_or_file)}: neither a preset "
            f"({', '.join(files)}) nor a file.{did_you_mean(name_or_file, files)}"
        )
    return read_space(path)


def read_space(path: Path) -> Space:
    """Returns the space in the TOML file `path`; see :func:`find_space`."""
    try:
        data = tomllib.loads(read_text(path, _LARGEST_BYTES))
    except FormatError as error:
        raise SpaceError(f"cannot read the search space {path}: {error}") from None
    except ValueError as error:
        raise SpaceError(f"{path} is no TOML: {str(error)[:_LONGEST_PROBLEM]}") from None
    except RecursionError:
        raise SpaceError(f"{path} is no search space: it is nested too deeply") from None
    problems = [
        f"unknown key '{key}'.{did_you_mean(key, _KEYS)}" for key in data.keys() - set(_KEYS)
    ]
    description = data.get("description", "")
    if not isinstance(description, str):
        problems.append("description: must be a string")
    clients = data.get("clients")
    if clients is not None and (problem := CLIENTS.problem(clients)):
        problems.append(f"clients: {problem}")
    tables = data.get("parameters", {})
    if not isinstance(tables, dict) or not tables:
        problems.append("'parameters' must hold at least one table")
        tables = {}
    parameters = [_read_parameter(name, tables, problems) for name in tables]
    ordered = _parents_first([p for p in parameters if p], problems) if not problems else []
    if problems:
        lines = [f"  {problem[:_LONGEST_PROBLEM]}" for problem in problems[:_MOST_PROBLEMS]]
        if len(problems) > _MOST_PROBLEMS:
            lines.append(f"  and {len(problems) - _MOST_PROBLEMS} more")
        raise SpaceError(f"{path}:\n" + "\n".join(lines))
    return Space(
        name=path.stem,
        description=description,
        parameters=tuple(ordered),
        left_out={},
        clients=clients,
    )


def _read_parameter(name: str, tables: Mapping[str, Any], problems: list[str]) -> Parameter | None:
    """Returns the parameter that its table describes; adds the table's faults to `problems`."""
    where, table = f"parameters.{name}", tables[name]
    if name not in _DOMAINS:
        near = did_you_mean(name, _DOMAINS)
        problems.append(f"{where}: there is no parameter '{name}'.{near}")
        return None
    if not isinstance(table, dict):
        problems.append(f"{where}: must be a table with 'values' and 'default'")
        return None
    faults = [
        f"{where}.{key}: unknown key.{did_you_mean(key, _PARAMETER_KEYS)}"
        for key in table
        if key not in _PARAMETER_KEYS
    ]
    parameter = Parameter(
        name=name,
        values=_read_values(where, name, table.get("values"), faults),
        default=_read_default(where, name, table, faults),
        needs=_read_needs(where, table.get("needs", []), faults),
        when=_read_condition(f"{where}.when", table.get("when", {}), tables, faults),
        unless=_read_condition(f"{where}.unless", table.get("unless", {}), tables, faults),
    )
    problems += faults
    return None if faults else parameter


def _read_values(where: str, name: str, values: object, faults: list[str]) -> tuple[Value, ...]:
    if not isinstance(values, list) or not values:
        faults.append(f"{where}.values: must be a list of at least one value")
        return ()
    faults += [f"{where}.values: {p}" for value in values if (p := _value_problem(name, value))]
    return tuple(values)


def _value_problem(name: str, value: object) -> str | None:
    if name in THREAD_COUNTS and isinstance(value, str) and value in CORES:
        return None
    problem = _DOMAINS[name].problem(value)
    if problem and name in THREAD_COUNTS:
        return f"{problem} (or one of {', '.join(map(repr, CORES))})"
    return problem


def _read_default(where: str, name: str, table: Mapping[str, Any], faults: list[str]) -> Value:
    """Returns the parameter's own default, which the table must repeat."""
    if name == BATCH:
        return _read_smallest(where, table, faults)
    default = _DOMAINS[name].default
    if "default" not in table:
        faults.append(f"{where}.default: is missing; ONNX Runtime's is {default!r}")
    elif table["default"] != default or type(table["default"]) is not type(default):
        faults.append(
            f"{where}.default: must be ONNX Runtime's own, {default!r}, "
            f"not {shown(table['default'])}"
        )
    return default


def _read_smallest(where: str, table: Mapping[str, Any], faults: list[str]) -> Value:
    """Returns the smallest batch size, which is the baseline's; the table must repeat it."""
    if faults:  # the sizes may be none
        return 1
    sizes = table["values"]
    if problem := batch_problem(sizes):
        faults.append(f"{where}.values: {problem}")
    smallest: Value = min(sizes)
    default = table.get("default")
    if default != smallest or type(default) is not int:
        faults.append(f"{where}.default: must be the smallest of the values, {smallest}")
    return smallest


def _read_needs(where: str, needs: object, faults: list[str]) -> tuple[str, ...]:
    if not isinstance(needs, list):
        faults.append(f"{where}.needs: must be a list of names")
        return ()
    for need in needs:
        if not isinstance(need, str) or need not in NEEDS:
            near = did_you_mean(shown(need), NEEDS)
            faults.append(f"{where}.needs: {shown(need)} is none of {', '.join(NEEDS)}.{near}")
    return tuple(needs)


def _read_condition(
    where: str, data: object, tables: Mapping[str, Any], faults: list[str]
) -> Condition:
    if not isinstance(data, dict):
        faults.append(f"{where}: must be a table of parameter = value")
        return {}
    condition = {}
    for name, value in data.items():
        if name not in tables or name not in PARAMETERS:
            near = did_you_mean(name, tables)
            faults.append(f"{where}.{name}: no such parameter in this space.{near}")
            continue
        values = value if isinstance(value, list) else [value]
        faults += [f"{where}.{name}: {p}" for v in values if (p := PARAMETERS[name].problem(v))]
        condition[name] = tuple(values)
    return condition


def _parents_first(parameters: list[Parameter], problems: list[str]) -> list[Parameter]:
    """Returns the parameters so that each comes after those in its conditions."""
    ordered: list[Parameter] = []
    waiting = list(parameters)
    while waiting:
        names = {parameter.name for parameter in ordered}
        ready = next((p for p in waiting if names.issuperset({*p.when, *p.unless})), None)
        if ready is None:
            circle = ", ".join(parameter.name for parameter in waiting)
            problems.append(f"the conditions of {circle} depend on each other")
            return []
        ordered.append(ready)
        waiting.remove(ready)
    return ordered
