"""What an application reads of a tuned config: all but the evidence and what a search needs.

A config is data: it names one model file beside it, options from :mod:`autotune.deploy.options`,
and nothing else. It cannot name a path outside its folder, a library, or a file to write. Standard
library only: each process of an application pays for the records in here, and
:mod:`autotune.deploy.config` has the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from autotune.deploy import kinds
from autotune.deploy.files import digest_files, read_json
from autotune.deploy.records import BareName, Json, Text, Whole, body, from_plain, section
from autotune.deploy.session import SessionConfig, as_config_error
from autotune.errors import ConfigError, FormatError, sentence

FORMAT = "autotune/1"
"""Name of the format; a new field is a new format."""

SECTIONS = (
    *("model", "session", "evidence", "baseline", "requires", "environment"),
    *("configuration", "serving"),
)
"""The sections of a config, in the order in which a reader wants them."""

# A config is read whole into memory; a real one has a few kilobytes.
_LARGEST_BYTES = 1 << 20


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
class ModelFile(DataFile):
    """The model file beside a config.

    Attributes:
        source_sha256: Digest of the bytes of the model that was tuned and, after them, of its
            external data files.
        steps: What was done to the source, in words of the search space; empty if nothing.
    """

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
        for item in (self, *self.data_files):
            path = folder / item.file
            same = path.stat().st_size == item.size_bytes
            if not same or (read_all and digest_files([path]) != item.sha256):
                return path
        return None


@dataclass(frozen=True, kw_only=True)
class RequiredRuntime:
    """The distribution of ONNX Runtime that a config was measured with, and its version."""

    package: Text
    version: Text

    def __str__(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, kw_only=True)
class Requires:
    """The requirements of a config on any machine.

    Without a provider the loader opens the model with default options. Where products overflow it
    computes them exactly, if it can; else the answers would be wrong, so it refuses.

    Attributes:
        vnni: Whether an x86 processor must have VNNI: the file has eight-bit products whose sums
            overflow without it, and which ``session.x64quantprecision`` does not reach.
        exact_products: Whether an x86 processor without VNNI must compute exactly
            (``session.x64quantprecision``): sums overflow there otherwise. The loader adds the
            option on such a processor alone. With VNNI it changes no answer, and takes twice the
            time.
        float16_in_float32: Whether nodes of float16 must be computed in float32, as they were
            measured: sums in half precision give other answers.
        weight_block: Size of the blocks (NCHWc) in which the file holds weights, which must be the
            processor's; 0 where it was unknown while the file was measured, None without blocks.
        runtime: The distribution of ONNX Runtime, where it is another than that of the
            environment in which the study ran; None where it is that one.
    """

    # no defaults: a config that lost its requirements must not load where they are not met
    providers: tuple[str, ...]
    vnni: bool
    exact_products: bool
    float16_in_float32: bool
    weight_block: Whole | None
    runtime: RequiredRuntime | None


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The machine and the packages with which the config was tuned."""

    autotune: str
    onnxruntime: str
    cpu: str
    cores: int
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class LoadedConfig:
    """A tuned config as an application needs it: a model file, and how to open it.

    Attributes:
        requires: What it needs on any machine.
        environment: The machine that tuned it.
    """

    model: ModelFile
    session: SessionConfig
    requires: Requires
    environment: Environment

    @classmethod
    def parts_of(cls, given: Json) -> dict[str, Any]:
        """Returns the fields of the class that the sections of a config describe.

        Raises:
            FormatError: one of them breaks the schema.
        """
        return {
            "model": from_plain(ModelFile, given["model"], "model"),
            "session": SessionConfig.from_json(given["session"]),
            "requires": from_plain(Requires, given["requires"], "requires"),
            "environment": from_plain(Environment, given["environment"], "environment"),
        }

    @classmethod
    def from_json(cls, data: object) -> Self:
        """Returns the config that `data` describes.

        Raises:
            ConfigError: `data` breaks the schema; the message names the key.
        """
        with as_config_error():
            given = section(body(data, FORMAT), "", known=SECTIONS, required=SECTIONS)
            return cls(**cls.parts_of(given))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Returns the config in the file `path`.

        Raises:
            ConfigError: there is no such file, it is no JSON or too large, or it breaks the
                schema.
        """
        try:
            data = read_json(path, _LARGEST_BYTES)
        except FormatError as error:
            words = kinds.mistaken(path, kinds.CONFIG) or (
                f"cannot read the config {path}: {error}; name a tuned config such as best.json"
            )
            raise ConfigError(words) from None
        try:
            return cls.from_json(data)
        except ConfigError as error:
            if words := kinds.mistaken(path, kinds.CONFIG):
                raise ConfigError(words) from None
            raise ConfigError(f"{path}: {sentence(str(error))} {_remedy(data)}") from None


def _remedy(data: object) -> str:
    """Returns what to do about a config that breaks the schema, as a sentence."""
    name, _, version = FORMAT.partition("/")
    given = data.get("format") if isinstance(data, dict) else None
    if isinstance(given, str) and given.startswith(f"{name}/") and given != FORMAT:
        end = given.removeprefix(f"{name}/")
        if end.isascii() and end.isdecimal() and len(end) < 9 and int(end) > int(version):
            return "A newer autotune wrote it; upgrade autotune."
    return "`autotune pick DIR` writes the config of a study again."
