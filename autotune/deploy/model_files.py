"""The model files beside a tuned config: their names, sizes and digests. Standard library only."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.deploy.digest import digest_files
from autotune.deploy.records import BareName, Whole


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """An external data file of a model."""

    file: BareName
    sha256: str
    size_bytes: Whole

    @classmethod
    def of(cls, path: Path) -> "DataFile":
        """Returns the record of a file that is there."""
        return cls(file=path.name, sha256=digest_files([path]), size_bytes=path.stat().st_size)


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """The model file beside a config.

    Attributes:
        source_sha256: Digest of the bytes of the model that was tuned and, after them, of its
            external data files.
        steps: What was done to the source, in words of the search space; empty if nothing.
    """

    file: BareName
    sha256: str
    size_bytes: Whole
    source_sha256: str
    steps: tuple[str, ...] = ()
    data_files: tuple[DataFile, ...] = ()

    @property
    def names(self) -> Sequence[str]:
        """The names of all files, the model's first."""
        return (self.file, *(item.file for item in self.data_files))

    def differing(self, folder: Path, *, read_all: bool) -> Path | None:
        """Returns a file in `folder` that is not the one that was tuned; None if there is none.

        Args:
            read_all: Compare digests too, which reads all bytes; otherwise sizes alone.
        """
        own = DataFile(file=self.file, sha256=self.sha256, size_bytes=self.size_bytes)
        for item in (own, *self.data_files):
            path = folder / item.file
            same = path.stat().st_size == item.size_bytes
            if not same or (read_all and digest_files([path]) != item.sha256):
                return path
        return None
