"""Transformed models by content: made once, found again by the next trial, study or process.

Each entry is a folder named after everything that decides what is in it. It is made beside its
place and renamed, so it is there whole or not at all. When two processes make the same one, the
first stays.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import time
from pathlib import Path
from typing import Any

import filelock

from autotune.process.durable import sync_file, sync_folder
from autotune.process.scratch import remove_marked, write_mark

FACTS = "facts.json"
# Room for a few dozen variants of a model of a hundred MiB.
DEFAULT_LIMIT_BYTES = 4 << 30
# A folder in the making that is older was left by a process that was killed.
_ABANDONED_S = 3600.0
# A trial with its measurement is over by then.
_IN_USE_S = 120.0
_TEMPORARY = re.compile(r"\.(making|removing)-[0-9a-f]{12}")


class Cache:
    """A folder of transformed models, bounded in size; the least recently used are removed first.

    Args:
        root: The folder; made when something is kept.
        limit_bytes: Size of all entries together. One entry is always kept, however large.
    """

    def __init__(self, root: Path, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.root = root
        self._limit_bytes = limit_bytes

    def find(self, key: str) -> tuple[Path, dict[str, Any]] | None:
        """Returns the folder of the entry and its facts, or None where there is none."""
        folder = self.root / key
        try:
            facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if not isinstance(facts, dict) or not _has_files(folder, facts.get("files", {})):
            return None
        self.touch(folder)
        return folder, facts

    def touch(self, folder: Path) -> None:
        """Notes that the entry in `folder` is in use."""
        with contextlib.suppress(OSError):  # evicted meanwhile
            os.utime(folder)

    def keep(self, key: str, made: Path | None, facts: dict[str, Any]) -> Path:
        """Moves the files in the folder `made` into a new entry; returns its folder.

        Args:
            made: The folder of the files; None for an entry of facts alone.
            facts: What :meth:`find` will return.

        Raises:
            OSError: writing to disk failed.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        place = self.root / key
        beside = self.root / f".making-{secrets.token_hex(6)}"
        beside.mkdir(mode=0o700)
        try:
            write_mark(beside)
            files = sorted(made.iterdir()) if made else []
            for file in files:
                shutil.move(file, beside / file.name)
            facts = {**facts, "files": {f.name: (beside / f.name).stat().st_size for f in files}}
            (beside / FACTS).write_text(json.dumps(facts), encoding="utf-8")
            for name in (*facts["files"], FACTS):
                sync_file(beside / name)
            sync_folder(beside)
            with filelock.FileLock(self.root / ".lock"):
                if self.find(key) is None:  # otherwise another worker was faster
                    if place.exists():
                        _remove(place)  # a killed process left it
                    beside.rename(place)
                    sync_folder(self.root)
        finally:
            remove_marked(beside)
        self._evict(key)
        return place

    def remove(self, key: str) -> None:
        """Removes an entry whose files are not those that were kept."""
        with filelock.FileLock(self.root / ".lock"):
            _remove(self.root / key)

    def used_bytes(self) -> int:
        """Returns the size of all entries together."""
        return sum(map(_size, self._entries()))

    def _entries(self) -> list[Path]:
        if not self.root.is_dir():
            return []
        return [entry for entry in self.root.iterdir() if (entry / FACTS).is_file()]

    def _evict(self, kept: str) -> None:
        """Removes entries, least recently used first, until the others fit; never `kept`."""
        with filelock.FileLock(self.root / ".lock"):
            for folder in self.root.iterdir():
                is_old = time.time() - _last_used(folder) > _ABANDONED_S
                if is_old and _TEMPORARY.fullmatch(folder.name):
                    remove_marked(folder)
            entries = {entry: _size(entry) for entry in self._entries()}
            total = sum(entries.values())
            for entry in sorted(entries, key=_last_used):
                if total <= self._limit_bytes:
                    return
                # an entry that was used a moment ago may be open in another process
                if entry.name == kept or time.time() - _last_used(entry) < _IN_USE_S:
                    continue
                _remove(entry)
                total -= entries[entry]


def _has_files(folder: Path, sizes: object) -> bool:
    """Returns whether the files of an entry are there and have these sizes, in bytes."""
    if not isinstance(sizes, dict):
        return False
    try:
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except OSError:
        return False


def _remove(entry: Path) -> None:
    """Removes the entry from its place at once, so that nobody finds it in part, then its files."""
    trash = entry.with_name(f".removing-{secrets.token_hex(6)}")
    with contextlib.suppress(OSError):
        if entry.is_symlink():  # its target is not the cache's
            entry.unlink()
            return
        entry.rename(trash)
        write_mark(trash)  # an entry that an earlier version made has none
        remove_marked(trash)


def _last_used(entry: Path) -> float:
    try:
        return entry.stat().st_mtime
    except OSError:
        return 0.0


def _size(entry: Path) -> int:
    try:
        return sum(file.stat().st_size for file in entry.iterdir())
    except OSError:  # evicted meanwhile
        return 0
