"""Parsers of options that are more than a number or a word, for Typer's ``parser=``.

Each raises ``typer.BadParameter``, which Typer shows with the name of the option (exit code 2).
Digits are ASCII digits; ``str.isdigit`` would take those of other scripts as well.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import typer

from autotune.errors import did_you_mean

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_MOST_CLIENTS = 256
_TIMES_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SIZES_MIB = {"MiB": 1.0, "MB": 1e6 / 2**20, "GiB": 1024.0, "GB": 1e9 / 2**20}
_LATENCIES_MS = {"ms": 1.0, "us": 1e-3, "s": 1e3}


class KeyValue(NamedTuple):
    """A name and its value, as ``KEY=VALUE`` gives them."""

    name: str
    value: str


class NamedShape(NamedTuple):
    """The name of an input and its sizes, as ``NAME=1,3,224,224`` gives them."""

    name: str
    sizes: tuple[int, ...]


def duration_s(text: str) -> float:
    """Returns a time such as ``10m`` in seconds."""
    return _quantity(text, _TIMES_S, "time", "10m")


def memory_mib(text: str) -> float:
    """Returns a size such as ``300MiB`` in MiB."""
    return _quantity(text, _SIZES_MIB, "size", "300MiB")


def latency_ms(text: str) -> float:
    """Returns a latency such as ``10ms`` in ms."""
    return _quantity(text, _LATENCIES_MS, "latency", "10ms")


def error(text: str | float) -> float:
    """Returns a relative error such as ``0.05`` or ``5%``. Typer parses a default as well."""
    return _share(str(text), "a number above 0, such as 0.05 or 5%")


def factor(text: str) -> float:
    """Returns a factor such as ``1.2``, ``1.2x`` or ``1.2×``."""
    return _positive(text, rf"({_NUMBER})\s*[x×]?", "a factor above 0, such as 1.2")


def drop(text: str) -> float:
    """Returns by how much a metric may fall, such as ``0.01`` or ``1%``; 0 allows nothing."""
    if re.fullmatch(r"0+(\.0*)?\s*%?", text.strip()):
        return 0.0
    return _share(text, "a number of at least 0, such as 0.01 or 1%")


def clients(text: str) -> int:
    """Returns a number of clients, from 1 to 256."""
    if not re.fullmatch("[0-9]{1,3}", text.strip()) or not 1 <= int(text) <= _MOST_CLIENTS:
        raise typer.BadParameter(f"'{text}' is not a whole number from 1 to {_MOST_CLIENTS}.")
    return int(text)


def pair(text: str, form: str = "KEY=VALUE, such as arena=off") -> KeyValue:
    """Returns the two sides of ``KEY=VALUE``."""
    name, _, value = (side.strip() for side in text.partition("="))
    if not (name and value):
        raise typer.BadParameter(f"'{text}' is not of the form {form}.")
    return KeyValue(name, value)


def fed_back(text: str) -> KeyValue:
    """Returns the two sides of ``PAST=PRESENT``."""
    return pair(text, "PAST=PRESENT, such as past.0.key=present.0.key")


def setting(text: str) -> KeyValue:
    """Returns the two sides of ``NAME=VALUE``; the name is one of :data:`SETTINGS`."""
    name, value = pair(text, "NAME=VALUE, such as seed=3")
    if name not in SETTINGS:
        raise typer.BadParameter(
            f"'{name}' is none of {', '.join(SETTINGS)}.{did_you_mean(name, SETTINGS)}"
        )
    SETTINGS[name](value)  # a wrong value is refused with the name of the option
    return KeyValue(name, value)


def settings(given: Iterable[KeyValue]) -> dict[str, Any]:
    """Returns the fields of the options that ``--set`` sets."""
    values: dict[str, Any] = {}
    for name, text in given:
        value = SETTINGS[name](text)
        if isinstance(value, KeyValue):
            values.setdefault("pairs", {})[value.name] = value.value
        else:
            values[name] = value
    return values


def whole(text: str | int) -> int:
    """Returns a whole number. Typer parses a default as well."""
    if not re.fullmatch("-?[0-9]{1,18}", str(text)):
        fault = "is too large" if re.fullmatch("-?[0-9]+", str(text)) else "is not a whole number"
        raise typer.BadParameter(f"'{text}' {fault}. Write a number such as 20.")
    return int(text)


def _is_yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise typer.BadParameter(f"'{text}' is neither yes nor no.")
    return text == "yes"


SETTINGS: Mapping[str, Callable[[str], object]] = {
    "seed": whole,
    "new_tokens": whole,
    "pair": fed_back,
    "early_stop": _is_yes,
    "wait": _is_yes,
    "study_name": str,
    "model": str,
}
"""What ``--set`` takes: the rare options of a study, with what reads their values."""


def named_shape(text: str) -> NamedShape:
    """Returns the two sides of ``NAME=1,3,224,224``."""
    name, sizes = pair(text, "NAME=1,3,224,224")
    items = [size.strip() for size in sizes.split(",")]
    # 18 digits fit into the 64 bits of a dimension
    if not all(re.fullmatch("[0-9]{1,18}", item) and int(item) > 0 for item in items):
        raise typer.BadParameter(
            f"'{sizes}' is not a list of sizes. "
            "Write whole numbers above 0 with commas between them, such as 1,3,224,224."
        )
    return NamedShape(name, tuple(map(int, items)))


def named_value(text: str) -> KeyValue:
    """Returns the two sides of ``NAME=16000``, the second one as a number."""
    name, number = pair(text, "NAME=NUMBER, such as sr=16000")
    if not re.fullmatch(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?", number, re.IGNORECASE):
        raise typer.BadParameter(f"'{number}' is not a number, such as 16000 or 0.5.")
    return KeyValue(name, number)


def numbers(given: Iterable[KeyValue] | None) -> dict[str, float] | None:
    """Returns numbers by the names of inputs; None where there are none."""
    return {name: float(number) for name, number in given or ()} or None


def batch_sizes(text: str) -> tuple[int, ...]:
    """Returns the whole numbers of ``1,2,4,8``."""
    return _whole_numbers(text, "batch sizes", "1,2,4,8")


def token_counts(text: str) -> tuple[int, ...]:
    """Returns the whole numbers of ``64,512``."""
    return _whole_numbers(text, "numbers of tokens", "64,512")


def _whole_numbers(text: str, noun: str, example: str) -> tuple[int, ...]:
    items = [size.strip() for size in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,9}", item) for item in items):
        raise typer.BadParameter(
            f"'{text}' is not a list of {noun}. "
            f"Write whole numbers with commas between them, such as {example}."
        )
    return tuple(map(int, items))


def _share(text: str, noun: str) -> float:
    """Returns a number above 0, or a percentage of it."""
    pattern = rf"((?:{_NUMBER}|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*%?"
    value = _positive(text, pattern, noun)
    return value / 100 if text.strip().endswith("%") else value


def _positive(text: str, pattern: str, noun: str) -> float:
    """Returns the number in the first group of `pattern`, which all of the text must match."""
    match = re.fullmatch(pattern, text.strip())
    value = float(match[1]) if match else math.nan
    if not 0 < value < math.inf:
        raise typer.BadParameter(f"'{text}' is not {noun}.")
    return value


def _quantity(text: str, units: Mapping[str, float], noun: str, example: str) -> float:
    """Returns a number times its unit."""
    match = re.fullmatch(rf"\s*({_NUMBER})\s*([a-zA-Z]*)\s*", text)
    factors = {unit.lower(): factor for unit, factor in units.items()}
    unit = match[2].lower() if match else ""
    value = float(match[1]) * factors[unit] if match and unit in factors else math.nan
    if not 0 < value < math.inf:
        bare = match is not None and not unit and 0 < float(match[1]) < math.inf
        fault = "has no unit" if bare else f"is not a {noun}"
        raise typer.BadParameter(
            f"'{text}' {fault}. "
            f"Write a number above 0 and one of the units {', '.join(units)}, such as {example}."
        )
    return value
