"""Records as JSON values and back.

A record is a frozen dataclass of texts, numbers, flags, paths, tuples, mappings and other records.
What is read may be a stranger's, from a config, a result or a storage: a key that the record does
not have, one that is missing and a value of another type are refused by name. Standard library
only, because the loader reads configs.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from autotune.errors import FormatError, did_you_mean

Json = dict[str, Any]
T = TypeVar("T")
Check = Callable[[Any], str | None]
"""Says what a value of the right type must be; None where it is."""


def _is_above_0(value: float) -> str | None:
    return None if value > 0 else "must be more than 0"


def _is_amount(value: float) -> str | None:
    return None if value >= 0 else "must be at least 0"


Positive = Annotated[float, _is_above_0]
"""A number above 0."""

Amount = Annotated[float, _is_amount]
"""A number of at least 0."""

_WORDS: Mapping[type, str] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Path: "a string",
    tuple: "a list",
    type(None): "null",
}


def to_plain(value: Any) -> Any:
    """Returns a record, or what may be in one, as JSON values."""
    if is_dataclass(value):
        return {item.name: to_plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def from_plain(kind: type[T], data: object, where: str = "") -> T:
    """Returns the record of class `kind` that `data` describes.

    Raises:
        FormatError: it describes none; the message names the key, after `where`.
    """
    hints = _hints(kind)  # type: ignore[arg-type]  # classes are hashable
    given = section(data, where, known=list(hints), required=list(hints))
    return kind(**{name: read(hints[name], given[name], _key(where, name)) for name in given})


def section(data: object, where: str, *, known: list[str], required: list[str]) -> Json:
    """Returns `data` if it is an object with only `known` keys, and at least the `required`.

    Raises:
        FormatError: it is not.
    """
    if not isinstance(data, dict):
        raise FormatError(f"{where or 'it'} must be an object, not {data!r}")
    for key in data:
        if key not in known:
            near = did_you_mean(str(key), known)
            raise FormatError(f"unknown key '{_key(where, key)}'.{near}")
    for key in required:
        if key not in data:
            raise FormatError(f"'{_key(where, key)}' is missing")
    return data


def read(hint: Any, data: object, where: str) -> Any:
    """Returns the value of type `hint` that `data` describes.

    Raises:
        FormatError: it describes none.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        value = read(inner[0], data, where)
        for problem in filter(None, (check(value) for check in inner[1:])):
            raise FormatError(f"{where} {problem}, not {data!r}")
        return value
    if origin in (Union, UnionType):
        return _one_of(inner, data, where)
    if origin is tuple:
        if not isinstance(data, list):
            raise FormatError(f"{where} must be a list, not {data!r}")
        return tuple(read(inner[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(data, dict) or any(not isinstance(key, str) for key in data):
            raise FormatError(f"{where} must be an object, not {data!r}")
        return {key: read(inner[1], item, _key(where, key)) for key, item in data.items()}
    if isinstance(hint, type) and is_dataclass(hint):
        return from_plain(hint, data, where)
    return _simple(hint, data, where)


def _one_of(kinds: tuple[Any, ...], data: object, where: str) -> Any:
    if data is None and type(None) in kinds:
        return None
    others = [kind for kind in kinds if kind is not type(None)]
    if len(others) == 1:
        return read(others[0], data, where)
    for kind in others:
        if type(data) is kind:  # isinstance takes True for an int
            return read(kind, data, where)
    raise FormatError(f"{where} must be {' or '.join(_WORDS[k] for k in others)}, not {data!r}")


def _simple(kind: type, data: Any, where: str) -> Any:
    if kind is float and type(data) is int:
        # no float is that large
        data = float(data) if abs(data) < 2**1000 else math.inf
    if kind is Path and isinstance(data, str):
        return Path(data)
    if type(data) is not kind:
        raise FormatError(f"{where} must be {_WORDS[kind]}, not {data!r}")
    if isinstance(data, float) and not math.isfinite(data):
        raise FormatError(f"{where} must be a finite number")
    return data


def _key(where: str, name: object) -> str:
    return f"{where}.{name}" if where else str(name)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Returns the types of a record's fields; resolved once, because that is slow."""
    return get_type_hints(kind, include_extras=True)
