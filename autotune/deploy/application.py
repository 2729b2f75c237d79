"""A tuned application: which session of an application is opened by which config.

A folder with ``application.json``, and a folder for each session with its config and model. It is
data: it names folders beside it alone, and what it asks of ONNX Runtime is what a config may ask.
Standard library only.
"""

from dataclasses import dataclass
from pathlib import Path

from autotune.deploy.files import read_json
from autotune.deploy.kinds import APPLICATION, mistaken
from autotune.deploy.loaded import DataFile
from autotune.deploy.passed import Interface, Passed
from autotune.deploy.records import BareName, Json, Text, Whole, body, from_plain, to_plain
from autotune.errors import ConfigError, FormatError

FORMAT = "autotune-application/1"
"""Name of the format."""

FILE = "application.json"
"""The file that makes a folder a tuned application."""

CONFIG = "best.json"
"""The name of the config in the folder of a session."""

_LARGEST_BYTES = 4 << 20
_MOST_THREADS = 4096


@dataclass(frozen=True, kw_only=True)
class ReplacedSession:
    """A session of the application, and what is opened in its place.

    Attributes:
        providers: The execution providers that it used when it was recorded.
        data_files: The model's external data files, beside the application's model.
        interface: What it sees of the session; the tuned one must show the same.
        folder: The folder beside this file with the config that is opened instead
            (:data:`CONFIG`) and its model; None leaves the session as it is.
    """

    name: Text
    sha256: Text
    size_bytes: Whole
    data_files: tuple[DataFile, ...]
    passed: Passed
    providers: tuple[Text, ...]
    interface: Interface
    folder: BareName | None


@dataclass(frozen=True, kw_only=True)
class TunedApplication:
    """All sessions of an application.

    Attributes:
        pool_threads: Threads of one pool that all replaced sessions share; None where each has its
            own.
    """

    sessions: tuple[ReplacedSession, ...]
    pool_threads: Whole | None = None

    def to_json(self) -> Json:
        """Returns the record as JSON values."""
        return {"format": FORMAT, **to_plain(self)}

    @classmethod
    def read(cls, folder: Path) -> "TunedApplication":
        """Returns the tuned application in a folder.

        Raises:
            ConfigError: there is none, or it breaks the schema.
        """
        path = folder / FILE
        try:
            tuned = from_plain(cls, body(read_json(path, _LARGEST_BYTES), FORMAT))
            if tuned.pool_threads is not None and tuned.pool_threads > _MOST_THREADS:
                raise FormatError(f"pool_threads must be at most {_MOST_THREADS}")
        except FormatError as error:
            raise ConfigError(
                mistaken(folder, APPLICATION)
                or f"cannot read the tuned application {path}: {error}; make one with "
                "`autotune study app.rec`"
            ) from None
        return tuned
