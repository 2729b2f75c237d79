"""The one reader of files that someone else may have written, and the one opener of our own files.

A path may name a device or a pipe, on which reading never ends, or a file of any size. So a file is
opened without waiting, looked at through its descriptor, and read only up to a limit. A file in a
place of ours is never opened through a link, which could lead a write to any file of the user's.
Standard library only, because the loader reads configs.
"""

import codecs
import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from autotune.errors import FormatError, shown

_MIB = 1 << 20
# Windows lacks these; it has no pipes among its files, and makes links for administrators alone.
_AT_ONCE = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def open_file(path: Path, *, links: bool = True) -> BinaryIO:
    """Returns the regular file `path`, opened for reading.

    Args:
        links: Whether the path may be a link to the file; a place of our own holds none.

    Raises:
        FormatError: it cannot be opened, or is no regular file; the message is a reason without
            the path, such as "it is a folder, not a file".
    """
    return _opened(path, os.O_RDONLY | (0 if links else _NO_LINK), "rb")


def create(path: Path) -> BinaryIO:
    """Returns a new file `path` of ours, opened for writing.

    Raises:
        FormatError: it cannot be made; also where there is a file or a link of that name.
    """
    return _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, "wb")


def read_bytes(path: Path, largest_bytes: int, *, links: bool = True) -> bytes:
    """Returns what is in the regular file `path`.

    Raises:
        FormatError: as :func:`open_file`; also where it has more than `largest_bytes`.
    """
    with open_file(path, links=links) as file:
        try:
            data = file.read(largest_bytes + 1)
        except OSError as error:
            raise FormatError(f"it cannot be read: {_reason(error)}") from None
    if len(data) > largest_bytes:
        raise FormatError(f"it is larger than {_size(largest_bytes)}, the most that is read")
    return data


def read_text(path: Path, largest_bytes: int) -> str:
    """Returns the UTF-8 text in the regular file `path`, without the mark of some editors.

    Raises:
        FormatError: as :func:`read_bytes`; also where it is no UTF-8 text.
    """
    try:
        return read_bytes(path, largest_bytes).removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"it is no UTF-8 text: byte {error.start} is wrong") from None


def read_json(path: Path, largest_bytes: int) -> Any:
    """Returns the JSON value in the regular file `path`.

    Raises:
        FormatError: as :func:`read_text`; also as :func:`parse_json`.
    """
    return parse_json(read_text(path, largest_bytes))


def parse_json(text: str) -> Any:
    """Returns the JSON value in `text`.

    Python's own reader takes the last of two equal keys, and numbers that JSON does not have; both
    are refused here, because another reader may understand such a file in another way.

    Raises:
        FormatError: it is no JSON, an object has a key twice, or a number is NaN or infinite.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except RecursionError:
        raise FormatError("it is no JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise FormatError(f"it is no JSON: {error}") from None


def is_file(path: Path) -> bool:
    """Returns whether there is a regular file; False where the system cannot say.

    ``Path.is_file`` raises for a name that is too long and in a folder that may not be searched.
    """
    return stat.S_ISREG(_mode(path))


def is_folder(path: Path) -> bool:
    """Returns whether there is a folder; False where the system cannot say."""
    return stat.S_ISDIR(_mode(path))


def folder_of(path: Path, names: Iterable[str]) -> Path:
    """Returns the folder in which the files `names` lie beside the file `path`.

    Where `path` is a link, that is the folder of its target; or else that of the link, as in a
    store whose files are links each.
    """
    files = tuple(names)
    target = path.resolve().parent
    if all(is_file(target / name) for name in files):
        return target
    return path.parent if all(is_file(path.parent / name) for name in files) else target


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0


def _opened(path: Path, flags: int, mode: str) -> BinaryIO:
    try:
        descriptor = os.open(path, flags | _AT_ONCE, 0o666)
    # ValueError: a path with a null character; UnicodeEncodeError is one as well
    except (OSError, ValueError) as error:
        if _NO_LINK and flags & _NO_LINK and path.is_symlink():
            raise FormatError("it is a link, and links are not followed here") from None
        raise FormatError(_reason(error)) from None
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        what = "a folder" if stat.S_ISDIR(kind) else "a device or a pipe"
        raise FormatError(f"it is {what}, not a file")
    return os.fdopen(descriptor, mode)  # type: ignore[return-value]  # the modes are binary


def _reason(error: Exception) -> str:
    """Returns the system's reason without the path, which the caller names."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _size(size_bytes: int) -> str:
    """Returns a limit in the largest unit that it is a multiple of."""
    for unit, name in ((1 << 30, "GiB"), (_MIB, "MiB"), (1 << 10, "KiB")):
        if size_bytes % unit == 0:
            return f"{size_bytes // unit} {name}"
    return f"{size_bytes} bytes"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise FormatError(f"the key {shown(twice)} is there twice")
    return data


def _refuse_constant(name: str) -> Any:
    raise FormatError(f"it holds {name}, which is no number of JSON")


def digest_files(paths: Iterable[Path]) -> str:
    """Returns the SHA-256 of the files' bytes, one after the other, as hexadecimal digits."""
    # the library behind it takes more memory than all of the loader, which seldom needs a digest
    import hashlib

    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return digest.hexdigest()
