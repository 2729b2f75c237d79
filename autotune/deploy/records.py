"""Records as JSON values and back: the one validator of data that someone else wrote.

A record is a frozen dataclass of texts, numbers, flags, paths, tuples, mappings and other records.
The data may come from a stranger: in a config, a result, a storage, or the reply of a child process
that runs a stranger's model. A key that the record does not have, a missing key whose field
has no default and a value of another type are refused by name. Standard library only, because the
loader reads configs.

The function that reads a type is built once for each type and kept: replies with hundreds of
numbers are read between measured turns.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path, PurePosixPath, PureWindowsPath
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from autotune.errors import FormatError, did_you_mean, shown

Json = dict[str, Any]
Place = str | tuple[Any, str | int]
"""Where a value lies: a text, or the place of what holds it with its key or its index there.

It becomes a text only in a message.
"""

T = TypeVar("T")
_Reader = Callable[[Any, Place], Any]
# Says what a value of the right type must be; None where it is.
_Constraint = Callable[[Any], str | None]

# No count, size or seed has more bits; arithmetic with floats fails far above that.
_LARGEST_WHOLE = 2**64
# Nanoseconds of thirty years, or the bytes of an exabyte: no measurement is larger.
_LARGEST = 10**18
_LONGEST_TEXT = 100_000
# As much of a key as a message quotes.
_LONGEST_KEY = 100


def _above_0(value: float) -> str | None:
    return None if value > 0 else "must be more than 0"


def _at_least_0(value: float) -> str | None:
    return None if value >= 0 else "must be at least 0"


def _measured_amount(value: float) -> str | None:
    return None if 0 <= value <= _LARGEST else "must be from 0 to 1e18"


def _measured_positive(value: float) -> str | None:
    return None if 0 < value <= _LARGEST else "must be more than 0, and at most 1e18"


def _short(value: str) -> str | None:
    return None if len(value) <= _LONGEST_TEXT else f"must have at most {_LONGEST_TEXT} characters"


def _bare_name(value: str) -> str | None:
    bare = PurePosixPath(value).name == value and PureWindowsPath(value).name == value
    if not bare or value in {"", ".", ".."} or "\0" in value or not _is_file_name(value):
        return "must be a bare file name"
    return _short(value)


def _is_file_name(value: str) -> bool:
    """Returns whether the system can write the name: half a surrogate pair is in none."""
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        return False
    return True


def is_unicode_text(value: str) -> bool:
    """Returns whether a text can be handed to native code: half a surrogate pair cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def one_of(choices: Sequence[str]) -> _Constraint:
    """Returns the constraint of a text that is one of a few."""
    return lambda value: None if value in choices else f"must be one of {', '.join(choices)}"


def _not_empty(value: Sequence[Any]) -> str | None:
    return None if value else "must not be empty"


Positive = Annotated[float, _above_0]
"""A number above 0."""

Amount = Annotated[float, _at_least_0]
"""A number of at least 0."""

MeasuredAmount = Annotated[float, _measured_amount]
"""A time or a size as a child process reports it: from 0 to 1e18."""

MeasuredPositive = Annotated[float, _measured_positive]
"""The same above 0."""

Whole = Annotated[int, _measured_amount]
"""A whole number from 0 to 1e18."""

PositiveWhole = Annotated[int, _measured_positive]
"""A whole number from 1 to 1e18."""

Text = Annotated[str, _short]
"""A text of at most 100,000 characters."""

BareName = Annotated[str, _bare_name]
"""The name of a file without any folder, on every system."""

Several = Annotated[tuple[T, ...], _not_empty]
"""A list with at least one item."""

_WORDS: Mapping[type, str] = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Path: "a string",
    type(None): "null",
}


def to_plain(value: Any) -> Any:
    """Returns a record, or a value that a record may hold, as JSON values."""
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
    record: T = read(kind, data, where)
    return record


def read(hint: Any, data: object, where: str) -> Any:
    """Returns the value of type `hint` that `data` describes.

    Raises:
        FormatError: it describes none.
    """
    return _reader(hint)(data, where)


def body(data: object, expected: str) -> Json:
    """Returns the keys of an object that has the format `expected`, but ``format`` itself.

    Raises:
        FormatError: it is no object, or has another format.
    """
    if not isinstance(data, dict):
        raise FormatError(f"it must be an object, not {shown(data)}")
    if data.get("format") != expected:
        raise FormatError(
            f"format is {shown(data.get('format'))}, and this version of autotune reads "
            f"{expected!r}"
        )
    return {name: item for name, item in data.items() if name != "format"}


def section(data: object, where: Place, *, known: Sequence[str], required: Sequence[str]) -> Json:
    """Returns `data` if it is an object with only `known` keys, and at least the `required`.

    Raises:
        FormatError: it is not.
    """
    if not isinstance(data, dict):
        raise FormatError(f"{_words(where) or 'it'} must be an object, not {shown(data)}")
    for key in data:
        if key not in known:
            near = did_you_mean(str(key), known)
            raise FormatError(f"unknown key '{_words((where, str(key)))}'.{near}")
    for key in required:
        if key not in data:
            raise FormatError(f"'{_words((where, key))}' is missing")
    return data


@cache
def _reader(hint: Any) -> _Reader:
    """Returns the function that reads values of type `hint`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        kind, problem_of = arguments  # one constraint for a type: each costs a call for a value
        return _constrained_reader(_reader(kind), problem_of)
    if origin in (Union, UnionType):
        return _union_reader(arguments)
    if origin is tuple:
        return _list_reader(_reader(arguments[0]))
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_reader(_reader(arguments[1]))
    if is_dataclass(hint):
        return _record_reader(hint)
    return {float: _read_number, Path: _read_path}.get(hint) or _plain_reader(hint)


def _constrained_reader(read_value: _Reader, problem_of: _Constraint) -> _Reader:
    def read_constrained(data: Any, place: Place) -> Any:
        value = read_value(data, place)
        problem = problem_of(value)
        if problem is not None:
            raise FormatError(f"{_words(place)} {problem}, not {shown(data)}")
        return value

    return read_constrained


def _union_reader(hints: Sequence[Any]) -> _Reader:
    others = [hint for hint in hints if hint is not type(None)]
    takes_null = len(others) < len(hints)
    if len(others) == 1:
        read_value = _reader(others[0])
        return lambda data, place: None if data is None and takes_null else read_value(data, place)
    # by the exact type, because True is an instance of int
    readers = {_base(hint): _reader(hint) for hint in others}
    words = " or ".join(_WORDS[kind] for kind in readers)

    def read_one(data: Any, place: Place) -> Any:
        if data is None and takes_null:
            return None
        read_value = readers.get(type(data))
        if read_value is None:
            raise FormatError(f"{_words(place)} must be {words}, not {shown(data)}")
        return read_value(data, place)

    return read_one


def _list_reader(read_item: _Reader) -> _Reader:
    def read_list(data: Any, place: Place) -> tuple[Any, ...]:
        if not isinstance(data, list):
            raise FormatError(f"{_words(place)} must be a list, not {shown(data)}")
        try:
            return tuple([read_item(item, place) for item in data])
        except FormatError:
            # a second time, to name the item: a place for each is slow, and hardly ever needed
            for index, item in enumerate(data):
                read_item(item, (place, index))
            raise

    return read_list


def _mapping_reader(read_item: _Reader) -> _Reader:
    def read_mapping(data: Any, place: Place) -> dict[str, Any]:
        if not isinstance(data, dict) or any(not isinstance(key, str) for key in data):
            raise FormatError(f"{_words(place)} must be an object, not {shown(data)}")
        return {key: read_item(item, (place, key)) for key, item in data.items()}

    return read_mapping


def _record_reader(kind: Any) -> _Reader:
    hints = get_type_hints(kind, include_extras=True)
    readers = {name: _reader(hint) for name, hint in hints.items()}
    names = list(readers)
    # an earlier version wrote records without the fields that came later; those have defaults
    required = [
        item.name
        for item in fields(kind)
        if item.default is MISSING and item.default_factory is MISSING
    ]

    def read_record(data: Any, place: Place) -> Any:
        items = section(data, place, known=names, required=required)
        return kind(**{name: readers[name](item, (place, name)) for name, item in items.items()})

    return read_record


def _plain_reader(kind: type) -> _Reader:
    def read_plain(data: Any, place: Place) -> Any:
        if type(data) is not kind:
            raise FormatError(f"{_words(place)} must be {_WORDS[kind]}, not {shown(data)}")
        if isinstance(data, int) and abs(data) > _LARGEST_WHOLE:
            raise FormatError(f"{_words(place)} must be a whole number of at most 64 bits")
        return data

    return read_plain


def _read_number(data: Any, place: Place) -> float:
    if type(data) is int:
        # no float is that large
        data = float(data) if abs(data) < 2**1000 else math.inf
    if type(data) is not float:
        raise FormatError(f"{_words(place)} must be {_WORDS[float]}, not {shown(data)}")
    if not math.isfinite(data):
        raise FormatError(f"{_words(place)} must be a finite number")
    return data


def _read_path(data: Any, place: Place) -> Path:
    if not isinstance(data, str):
        raise FormatError(f"{_words(place)} must be {_WORDS[Path]}, not {shown(data)}")
    return Path(data)


def _base(hint: Any) -> type:
    """Returns the type under the constraint of `hint`."""
    base: type = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return base


def _words(place: Place) -> str:
    """Returns the place as a reader finds it, such as ``inputs[2].name``."""
    if isinstance(place, str):
        return place
    holder, step = place
    before = _words(holder)
    if isinstance(step, int):
        return f"{before}[{step}]"
    key = step if len(step) <= _LONGEST_KEY else f"{step[:_LONGEST_KEY]}..."
    return f"{before}.{key}" if before else key
