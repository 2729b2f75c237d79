"""What a reply of a child must look like. A child that ran a stranger's model is a stranger too.

A shape is a function that says whether a value is as it should be; :func:`record` and
:func:`several` build larger ones. Fields that a record does not name are not looked at, and nobody
reads them.
"""

from collections.abc import Callable, Mapping
from typing import Any

Shape = Callable[[Any], bool]

# Nanoseconds of thirty years, or the bytes of an exabyte: nothing that is measured is larger.
_LARGEST = 10**18
_LONGEST_TEXT = 100_000


def amount(value: Any) -> bool:
    """A finite number of at least 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LARGEST


def positive(value: Any) -> bool:
    """A finite number above 0."""
    return amount(value) and value > 0


def whole(value: Any) -> bool:
    """A whole number of at least 0."""
    return amount(value) and isinstance(value, int)


def flag(value: Any) -> bool:
    """True or false."""
    return isinstance(value, bool)


def text(value: Any) -> bool:
    """A text."""
    return isinstance(value, str) and len(value) <= _LONGEST_TEXT


def bare_name(value: Any) -> bool:
    """The name of a file without any folder."""
    return text(value) and value not in {"", ".", ".."} and not set(value) & set("/\\\0")


def maybe(shape: Shape) -> Shape:
    """Returns the shape that also allows None."""
    return lambda value: value is None or shape(value)


def either(one: Shape, other: Shape) -> Shape:
    """Returns the shape that allows both."""
    return lambda value: one(value) or other(value)


def several(shape: Shape, *, fewest: int = 0) -> Shape:
    """Returns the shape of a list of such values."""
    return lambda value: isinstance(value, list) and len(value) >= fewest and all(map(shape, value))


def mapping(shape: Shape) -> Shape:
    """Returns the shape of an object whose values are all such."""
    return lambda value: isinstance(value, dict) and all(map(shape, value.values()))


def record(**fields: Shape) -> Shape:
    """Returns the shape of an object with these fields."""
    return lambda value: isinstance(value, dict) and not wrong_fields(value, fields)


def wrong_fields(value: dict[str, Any], fields: Mapping[str, Shape]) -> list[str]:
    """Returns the names of fields that are missing or have another shape."""
    return [name for name, shape in fields.items() if not shape(value.get(name, ...))]
