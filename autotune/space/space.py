"""Search spaces: TOML file to :class:`Space`."""

import hashlib
import itertools
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import autotune
from autotune.deploy.options import Value
from autotune.errors import SpaceError, did_you_mean
from autotune.space.candidate import PARAMETERS, Candidate

NEEDS: Mapping[str, str] = {
    "conv": "the model has no convolution",
    "gelu": "the model has no GELU",
    "branches": "no heavy nodes of the model can run side by side",
    "dynamic_shapes": "the model's shapes are fixed",
    "named_dimensions": "the model has no named dimension with one size in all samples",
    "subnormals": "the optimised model has no subnormal weights",
    "several_cores": "there is only one usable core",
    "four_cores": "there are fewer than four usable cores",
    "weights": "the model has no convolution or matrix product to quantise",
    "matrix_products": "the model has no matrix product or LSTM to quantise",
    "matmul": "the model has no MatMul whose weights could be packed",
    "conv_and_matrix_products": "the model does not have both convolutions and matrix products",
    "transformer": "the model has no attention",
    "fp16_kernels": "the CPU provider has no fp16 kernels on this processor",
    "saturating_int8": "eight-bit products do not saturate on this processor",
    "onnxslim": "the package onnxslim is not installed; the extra [passes] brings it",
    "onnxsim": "the package onnxsim is not installed; the extra [passes] brings it",
    "onnxoptimizer": "the package onnxoptimizer is not installed; the extra [passes] brings it",
    "onnxscript": "the package onnxscript is not installed; the extra [passes] brings it",
    "onnx_ir": "the package onnx-ir is not installed; the extra [passes] brings it",
}
"""What a parameter or one of its values may need of model, workload, machine and installation, and
what is said where it lacks."""

CORES = {"cores": 1, "cores/2": 2, "cores/4": 4}
THREAD_COUNTS = frozenset({"intra_op_num_threads", "inter_op_num_threads"})
# Above this a space is not counted: nobody enumerates it.
COUNT_LIMIT = 20_000

Condition = Mapping[str, tuple[Value, ...]]
"""Parameter name to the values that satisfy it."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One thing that may vary.

    Attributes:
        name: One of :data:`autotune.space.candidate.PARAMETERS`.
        values: What it may be; thread counts may be ``"cores"``, ``"cores/2"``, ``"cores/4"``
            until they are resolved.
        default: What it is where nothing is said; ONNX Runtime's own default.
        when: It exists only where each of these other parameters has one of these values.
        unless: It does not exist where any of these other parameters has one of these values.
        needs: Names from :data:`NEEDS`.
    """

    name: str
    values: tuple[Value, ...]
    default: Value
    when: Condition
    unless: Condition
    needs: tuple[str, ...]

    def is_active(self, chosen: Mapping[str, Value]) -> bool:
        """Returns whether it exists beside the values `chosen` (others are at their default)."""
        if not self.when and not self.unless:
            return True

        def holds(name: str, values: tuple[Value, ...]) -> bool:
            return chosen.get(name, PARAMETERS[name].default) in values

        return all(holds(*item) for item in self.when.items()) and not any(
            holds(*item) for item in self.unless.items()
        )


@dataclass(frozen=True, kw_only=True)
class Space:
    """A search space, parents before children.

    Attributes:
        name: Of the preset or file.
        description: What it is for, in a sentence.
        parameters: What may vary.
        left_out: What the file offers and this model or machine has no use for, with the reason.
        impossible: Values that cannot be chosen together; what meets all of one of these
            conditions does not exist.
    """

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    left_out: Mapping[str, str]
    impossible: tuple[Condition, ...] = ()

    def candidate(self, choose: Callable[[Parameter], Value]) -> Candidate:
        """Returns the candidate that `choose` decides, asked for active parameters only.

        A value that cannot be chosen beside those before it stays at its default.
        """
        chosen: dict[str, Value] = {}
        for parameter in self.parameters:
            if parameter.is_active(chosen):
                single = len(parameter.values) == 1
                value = parameter.values[0] if single else choose(parameter)
                fits = self._offers(parameter, value, chosen)
                chosen[parameter.name] = value if fits else parameter.default
        return Candidate.of(chosen)

    def _offers(self, parameter: Parameter, value: Value, chosen: Mapping[str, Value]) -> bool:
        """Returns whether a parameter may have a value beside those chosen before it."""
        more = {**chosen, parameter.name: value}
        return len(parameter.values) == 1 or not any(
            all(more.get(name) in values for name, values in condition.items())
            for condition in self.impossible
        )

    def assignment(self, candidate: Candidate) -> dict[str, Value]:
        """Returns the value of every parameter that is active and free in `candidate`."""
        values = candidate.to_json()
        chosen: dict[str, Value] = {}

        def choose(parameter: Parameter) -> Value:
            chosen[parameter.name] = values.get(parameter.name, parameter.default)
            return chosen[parameter.name]

        self.candidate(choose)
        return chosen

    def nearest(self, values: Mapping[str, Value]) -> Candidate:
        """Returns the candidate with these values, as far as they exist here."""

        def choose(parameter: Parameter) -> Value:
            wanted = values.get(parameter.name, parameter.default)
            if wanted in parameter.values:
                return wanted
            has_default = parameter.default in parameter.values
            return parameter.default if has_default else parameter.values[0]

        return self.candidate(choose)

    def neighbours(self, candidate: Candidate) -> list[Candidate]:
        """Returns the candidates that differ from `candidate` in one choice."""
        values = candidate.to_json()
        changed = (
            self.nearest({**values, parameter.name: value})
            for parameter in self.parameters
            for value in parameter.values
            if value != values.get(parameter.name, parameter.default)
        )
        return [other for other in dict.fromkeys(changed) if other != candidate]

    @cached_property
    def candidates(self) -> tuple[Candidate, ...] | None:
        """All candidates, or None where there are more than :data:`COUNT_LIMIT`."""
        found = tuple(itertools.islice(self._walk({}, 0), COUNT_LIMIT + 1))
        return None if len(found) > COUNT_LIMIT else tuple(dict.fromkeys(found))

    def _walk(self, chosen: Mapping[str, Value], index: int) -> Iterator[Candidate]:
        if index == len(self.parameters):
            yield Candidate.of(chosen)
            return
        parameter = self.parameters[index]
        if not parameter.is_active(chosen):
            yield from self._walk(chosen, index + 1)
            return
        for value in parameter.values:
            if self._offers(parameter, value, chosen):
                yield from self._walk({**chosen, parameter.name: value}, index + 1)

    def digest(self) -> str:
        """Returns 16 hexadecimal digits that differ where the candidates differ."""
        told: list[Any] = [
            [p.name, p.values, sorted(p.when.items()), sorted(p.unless.items())]
            for p in self.parameters
        ]
        told += [sorted(condition.items()) for condition in self.impossible]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]


def presets() -> dict[str, Path]:
    """Returns the files of the spaces that come with autotune, by name."""
    package = Path(autotune.__file__).parent
    # in the wheel they lie inside the package, in a checkout beside it
    for folder in (package / "search_spaces", package.parent / "search_spaces"):
        if folder.is_dir():
            return {file.stem: file for file in sorted(folder.glob("*.toml"))}
    raise SpaceError("the search spaces of autotune are missing; install it again")


def find(name_or_file: str) -> Space:
    """Returns the space of a preset, or of a TOML file.

    Raises:
        SpaceError: there is none, or it is wrong; all faults of a file are told at once.
    """
    known = presets()
    path = known.get(name_or_file) or Path(name_or_file)
    if not path.is_file():
        raise SpaceError(
            f"there is no search space '{name_or_file}': neither a preset ({', '.join(known)}) "
            f"nor a file.{did_you_mean(name_or_file, known)}"
        )
    return read(path)


def read(path: Path) -> Space:
    """Returns the space in the TOML file `path`; see :func:`find`."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpaceError(f"cannot read the search space {path}: {error.strerror}") from None
    except ValueError as error:
        raise SpaceError(f"{path} is no TOML: {error}") from None
    problems: list[str] = []
    for key in data.keys() - {"description", "parameters"}:
        near = did_you_mean(key, ["description", "parameters"])
        problems.append(f"unknown key '{key}'.{near}")
    tables = data.get("parameters", {})
    parameters = []
    if not isinstance(tables, dict) or not tables:
        problems.append("'parameters' must hold at least one table")
        tables = {}
    for name, table in tables.items():
        if parameter := _parameter(name, table, tables, problems):
            parameters.append(parameter)
    ordered = _parents_first(parameters, problems) if not problems else []
    if problems:
        raise SpaceError(f"{path}:\n" + "\n".join(f"  {problem}" for problem in problems))
    return Space(
        name=path.stem,
        description=str(data.get("description", "")),
        parameters=tuple(ordered),
        left_out={},
    )


def _parameter(
    name: str, table: Any, tables: Mapping[str, Any], problems: list[str]
) -> Parameter | None:
    """Returns the parameter that `table` describes; adds its faults to `problems`."""
    where = f"parameters.{name}"
    if name not in PARAMETERS:
        near = did_you_mean(name, PARAMETERS)
        problems.append(f"{where}: there is no parameter '{name}'.{near}")
        return None
    if not isinstance(table, dict):
        problems.append(f"{where}: must be a table with 'values' and 'default'")
        return None
    found = len(problems)
    known = ["values", "default", "when", "unless", "needs"]
    for key in table:
        if key not in known:
            problems.append(f"{where}.{key}: unknown key.{did_you_mean(key, known)}")
    values = table.get("values")
    if not isinstance(values, list) or not values:
        problems.append(f"{where}.values: must be a list of at least one value")
        values = []
    problems += [f"{where}.values: {p}" for v in values if (p := _value_problem(name, v))]
    default = PARAMETERS[name].default
    if "default" not in table:
        problems.append(f"{where}.default: is missing; ONNX Runtime's is {default!r}")
    elif table["default"] != default or type(table["default"]) is not type(default):
        problems.append(
            f"{where}.default: must be ONNX Runtime's own, {default!r}, not {table['default']!r}"
        )
    needs = table.get("needs", [])
    if not isinstance(needs, list):
        problems.append(f"{where}.needs: must be a list of names")
        needs = []
    for need in needs:
        if not isinstance(need, str) or need not in NEEDS:
            near = did_you_mean(str(need), NEEDS)
            problems.append(f"{where}.needs: {need!r} is none of {', '.join(NEEDS)}.{near}")
    when = _condition(where, "when", table, tables, problems)
    unless = _condition(where, "unless", table, tables, problems)
    if len(problems) > found:
        return None
    return Parameter(
        name=name,
        values=tuple(values),
        default=default,
        when=when,
        unless=unless,
        needs=tuple(needs),
    )


def _value_problem(name: str, value: object) -> str | None:
    if name in THREAD_COUNTS and isinstance(value, str) and value in CORES:
        return None
    problem = PARAMETERS[name].problem(value)
    if problem and name in THREAD_COUNTS:
        return f"{problem} (or one of {', '.join(map(repr, CORES))})"
    return problem


def _condition(
    where: str, kind: str, table: Mapping[str, Any], tables: Mapping[str, Any], problems: list[str]
) -> Condition:
    given = table.get(kind, {})
    if not isinstance(given, dict):
        problems.append(f"{where}.{kind}: must be a table of parameter = value")
        return {}
    condition = {}
    for other, value in given.items():
        if other not in tables or other not in PARAMETERS:
            near = did_you_mean(other, tables)
            problems.append(f"{where}.{kind}.{other}: no such parameter in this space.{near}")
            continue
        values = value if isinstance(value, list) else [value]
        faults = [p for v in values if (p := PARAMETERS[other].problem(v))]
        problems += [f"{where}.{kind}.{other}: {fault}" for fault in faults]
        condition[other] = tuple(values)
    return condition


def _parents_first(parameters: list[Parameter], problems: list[str]) -> list[Parameter]:
    """Returns the parameters so that each comes after those in its conditions."""
    ordered: list[Parameter] = []
    waiting = list(parameters)
    while waiting:
        done = {parameter.name for parameter in ordered}
        ready = next((p for p in waiting if done.issuperset({*p.when, *p.unless})), None)
        if ready is None:
            names = ", ".join(parameter.name for parameter in waiting)
            problems.append(f"the conditions of {names} depend on each other")
            return []
        ordered.append(ready)
        waiting.remove(ready)
    return ordered
