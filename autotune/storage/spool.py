"""Measurements on this disk, before the storage has them: nothing is lost in between."""

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.deploy.files import append_to, parse_json, read_bytes
from autotune.errors import FormatError, StorageError, StudyError

# Room for a trial with its raw run times, and for what the end of a study writes.
_LEAST_FREE_BYTES = 8 << 20
# It is read whole into memory; a trial has some kilobytes.
_LARGEST_BYTES = 256 << 20


def spool_file(folder: Path, study: str) -> Path:
    """Returns the place of the spool of a study that writes to `folder`."""
    return folder / f"{study}.spool.jsonl"


class Spool:
    """A file of measurements, a line each, in the folder of a study."""

    def __init__(self, folder: Path, study: str) -> None:
        self._path = spool_file(folder, study)

    def check_room(self) -> None:
        """Checks that the disk has room for the next measurement.

        Raises:
            StorageError: the disk is nearly full.
        """
        free = shutil.disk_usage(self._path.parent).free
        if free < _LEAST_FREE_BYTES:
            raise StorageError(
                f"the disk of {self._path.parent} is full ({free >> 10} KiB left). What was "
                "measured is kept; make room and type the same command again to go on."
            )

    def keep(self, entry: Mapping[str, Any]) -> None:
        """Writes a measurement to the disk; it is there when this returns.

        Raises:
            StorageError: writing to disk failed.
        """
        # the first line break ends a line that a kill cut short, which would take this one with it
        line = f"\n{json.dumps(entry)}\n"
        try:
            with append_to(self._path) as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except (OSError, FormatError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise StorageError(
                f"cannot write to {self._path}: {reason}. All trials before this one are "
                "kept; make room and type the same command again to go on."
            ) from None

    def entries(self) -> list[dict[str, Any]]:
        """Returns the measurements; lines that are damaged are left out.

        Raises:
            StudyError: there is something else in place of the file.
        """
        if not os.path.lexists(self._path):
            return []
        try:
            data = read_bytes(self._path, _LARGEST_BYTES, links=False)
        except FormatError as error:
            raise StudyError(
                f"cannot read the measurements in {self._path}: {error}; move it away and type the "
                "same command again"
            ) from None
        entries = []
        for line in data.decode(errors="replace").split("\n"):
            # the last line may be cut short: the study was killed while it wrote
            with contextlib.suppress(FormatError):
                entry = parse_json(line)
                if isinstance(entry, dict):
                    entries.append(entry)
        return entries

    def clear(self) -> None:
        """Removes the file: the storage has everything."""
        self._path.unlink(missing_ok=True)
