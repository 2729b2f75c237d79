"""Search spaces: what may vary, under which conditions, and the configurations that result."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from autotune.deploy.options import Value
from autotune.space.configuration import Configuration
from autotune.space.parameters import PARAMETERS

COUNT_LIMIT = 20_000
"""Configurations of a space with more than these are not listed."""

Condition = Mapping[str, tuple[Value, ...]]
"""Parameter name to the values that satisfy it."""


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One thing that may vary.

    Attributes:
        name: In a search space of autotune one of :data:`autotune.space.parameters.PARAMETERS`;
            any name in a space that is made from a plain Optuna study.
        values: What it may be; thread counts may be ``"cores"``, ``"cores/2"``, ``"cores/4"``
            until they are resolved.
        default: Its value where none is chosen; in a search space of autotune ONNX Runtime's own.
        when: It exists only where each of these other parameters has one of these values.
        unless: It does not exist where any of these other parameters has one of these values.
        needs: Names from :data:`autotune.space.needs.NEEDS`.
    """

    name: str
    values: tuple[Value, ...]
    default: Value
    when: Condition = field(default_factory=dict)
    unless: Condition = field(default_factory=dict)
    needs: tuple[str, ...] = ()

    def is_active(self, chosen: Mapping[str, Value]) -> bool:
        """Returns whether it exists beside the values `chosen`.

        Parameters that are not among `chosen` have their default of
        :data:`autotune.space.parameters.PARAMETERS`; one of another name satisfies no condition.
        """
        # loops without generators: a search asks this for each parameter of thousands of
        # configurations
        for name, values in self.when.items():
            if not _holds(name, values, chosen):
                return False
        for name, values in self.unless.items():  # noqa: SIM110
            if _holds(name, values, chosen):
                return False
        return True


def _holds(name: str, values: tuple[Value, ...], chosen: Mapping[str, Value]) -> bool:
    if name in chosen:
        return chosen[name] in values
    return name in PARAMETERS and PARAMETERS[name].default in values


@dataclass(frozen=True, kw_only=True)
class Space:
    """A search space, parents before children.

    Attributes:
        left_out: What the file offers and this model or machine has no use for, with the reason.
        impossible: Values that cannot be chosen together: where all entries of one of these
            conditions hold, there is no configuration.
        clients: How many clients run at once, where the file says so; None leaves it to the user.
        identity: The digest of the space without other ONNX Runtimes; empty where it has none.
    """

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    left_out: Mapping[str, str]
    impossible: tuple[Condition, ...] = ()
    clients: int | None = None
    identity: str = ""

    @cached_property
    def _defaults(self) -> Mapping[str, Value]:
        return {parameter.name: parameter.default for parameter in self.parameters}

    @cached_property
    def _impossible_with(self) -> Mapping[str, tuple[Condition, ...]]:
        """The conditions of :attr:`impossible` that name a parameter, by its name."""
        return {
            parameter.name: tuple(c for c in self.impossible if parameter.name in c)
            for parameter in self.parameters
        }

    def configuration(self, choose: Callable[[Parameter], Value]) -> Configuration:
        """Returns the configuration that `choose` decides; it is asked for active parameters only.

        A value that cannot be chosen beside those before it stays at its default.
        """
        values = dict(self._defaults)
        for parameter in self.parameters:
            if parameter.is_active(values):
                single = len(parameter.values) == 1
                value = parameter.values[0] if single else choose(parameter)
                if self._offers(parameter, value, values):
                    values[parameter.name] = value
        return self._canonical(values)

    def _canonical(self, values: Mapping[str, Value]) -> Configuration:
        """Returns the configuration with these values; those equal to their default are dropped."""
        changed = ((name, v) for name, v in values.items() if v != self._defaults[name])
        return Configuration(tuple(sorted(changed)))

    def _offers(self, parameter: Parameter, value: Value, values: Mapping[str, Value]) -> bool:
        """Returns whether a parameter may have a value beside those of the others."""
        if len(parameter.values) == 1:
            return True
        for condition in self._impossible_with[parameter.name]:
            for name, excluded in condition.items():
                if (value if name == parameter.name else values.get(name)) not in excluded:
                    break
            else:
                return False
        return True

    def assignment(self, configuration: Configuration) -> dict[str, Value]:
        """Returns the value of every parameter that is active and free in `configuration`."""
        values = configuration.to_json()
        free: dict[str, Value] = {}

        def choose(parameter: Parameter) -> Value:
            free[parameter.name] = values.get(parameter.name, parameter.default)
            return free[parameter.name]

        self.configuration(choose)
        return free

    def nearest(self, values: Mapping[str, Value]) -> Configuration:
        """Returns the configuration with these values, as far as they exist here."""

        def choose(parameter: Parameter) -> Value:
            value = values.get(parameter.name, parameter.default)
            if value in parameter.values:
                return value
            has_default = parameter.default in parameter.values
            return parameter.default if has_default else parameter.values[0]

        return self.configuration(choose)

    def neighbours(self, configuration: Configuration) -> list[Configuration]:
        """Returns the configurations that differ from `configuration` in one choice."""
        values = configuration.to_json()
        changed = (
            self.nearest({**values, parameter.name: value})
            for parameter in self.parameters
            for value in parameter.values
            if value != values.get(parameter.name, parameter.default)
        )
        return [other for other in dict.fromkeys(changed) if other != configuration]

    @cached_property
    def configurations(self) -> tuple[Configuration, ...] | None:
        """All configurations, or None where there are more than :data:`COUNT_LIMIT`."""
        # counted first: most spaces have too many, and a configuration costs more than its count
        first = itertools.islice(self._walk(self._defaults, 0), COUNT_LIMIT + 1)
        if sum(1 for _ in first) > COUNT_LIMIT:
            return None
        return tuple(dict.fromkeys(map(self._canonical, self._walk(self._defaults, 0))))

    def _walk(self, values: Mapping[str, Value], index: int) -> Iterator[Mapping[str, Value]]:
        """Yields all choices that have these values of the parameters before `index`."""
        if index == len(self.parameters):
            yield values
            return
        parameter = self.parameters[index]
        if not parameter.is_active(values):
            yield from self._walk(values, index + 1)
            return
        for value in parameter.values:
            if self._offers(parameter, value, values):
                yield from self._walk({**values, parameter.name: value}, index + 1)

    def digest(self) -> str:
        """Returns 16 hexadecimal digits that differ where the configurations differ.

        Other ONNX Runtimes beside the user's own do not count.
        """
        if self.identity:
            return self.identity
        parts: list[Any] = [
            [p.name, p.values, sorted(p.when.items()), sorted(p.unless.items())]
            for p in self.parameters
        ]
        parts += [sorted(condition.items()) for condition in self.impossible]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
