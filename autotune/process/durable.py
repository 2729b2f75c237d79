"""Files that are there whole or not at all, whatever ends the process or the machine."""

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_PART = re.compile(r"\.(.+)\.[0-9a-f]{16}\.part")
# A name has 255 bytes at most in most file systems.
_LONGEST_NAME = 50


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary file that replaces `path` once it is safely on the disk.

    Raises:
        OSError: writing failed; it names `path`, and never the temporary file.
    """
    temporary = path.with_name(f".{path.name[:_LONGEST_NAME]}.{secrets.token_hex(8)}.part")
    try:
        # unlike tempfile's, this file has the permissions that the user's umask gives
        temporary.touch(exist_ok=False)
        yield temporary
        sync_file(temporary)
        temporary.replace(path)
    except OSError as error:
        if error.errno is None or str(temporary) not in (error.filename, error.filename2, None):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def part_of(name: str) -> str | None:
    """Returns the file whose temporary file has this name; None where it is no such file."""
    match = _PART.fullmatch(name)
    return match and match[1]


def write_json(data: Mapping[str, Any], path: Path) -> None:
    """Writes `data` to `path` whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json_text(data), encoding="utf-8")


def json_text(data: Mapping[str, Any]) -> str:
    """Returns `data` as a file of ours has it."""
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def sync_file(path: Path) -> None:
    """Makes what is in a file safe from a loss of power."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder safe from a loss of power, where the system can do that."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
