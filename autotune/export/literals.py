"""Names and values as literals of other languages, whatever characters they hold."""

import re
from collections.abc import Callable, Iterable

_PLAIN = range(0x20, 0x7F)


def octal_literal(text: str) -> str:
    """Returns a string of C++ or of protobuf's text format, its other bytes in octal."""
    return _quoted(text.encode(), lambda byte: f"\\{byte:03o}")


def unicode_literal(text: str) -> str:
    """Returns a string of JavaScript or C#, its other characters as UTF-16 units."""
    return _quoted(_utf16(text), lambda unit: f"\\u{unit:04x}")


def java_literal(text: str) -> str:
    """Returns a string of Java, whose compiler takes an escaped line break for a real one."""
    return _quoted(_utf16(text), lambda unit: f"\\{unit:03o}" if unit < 0x80 else f"\\u{unit:04x}")


def rust_literal(text: str) -> str:
    """Returns a string of Rust, its other characters as code points."""
    return _quoted(map(ord, text), lambda point: f"\\u{{{point:x}}}")


def identifier(name: str) -> str:
    """Returns a name with letters, digits and underscores alone, which begins with a letter."""
    word = re.sub("[^A-Za-z0-9]+", "_", name).strip("_").lower()
    return word if word[:1].isalpha() else f"model_{word}".rstrip("_")


def class_name(name: str) -> str:
    """Returns a name as classes have it: ``mobilenet_v2`` becomes ``MobilenetV2``."""
    return "".join(part.capitalize() for part in identifier(name).split("_"))


def _utf16(text: str) -> list[int]:
    data = text.encode("utf-16-le", "surrogatepass")
    return [int.from_bytes(data[i : i + 2], "little") for i in range(0, len(data), 2)]


def _quoted(units: Iterable[int], escape: Callable[[int], str]) -> str:
    body = []
    for unit in units:
        if unit in (0x22, 0x5C):
            body.append("\\" + chr(unit))
        else:
            body.append(chr(unit) if unit in _PLAIN else escape(unit))
    return '"' + "".join(body) + '"'
