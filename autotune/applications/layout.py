"""The files of a recording: their names, and how a call is written. Standard library only."""

import struct
from dataclasses import dataclass
from pathlib import Path

from autotune.deploy.files import read_json
from autotune.deploy.records import Json, PositiveWhole, Text, Whole, body, from_plain, to_plain

FORMAT = "autotune-recording/3"
"""Name of the format."""

SETTINGS = "recording.json"
"""The file that makes a folder a recording."""

END = "end.json"
"""What became of the command; missing where `autotune record` was killed."""

BUDGET = "inputs.bytes"
"""How many bytes of inputs are kept so far, of all processes: eight bytes."""

INPUTS = "inputs"
"""The folder of the inputs that are kept."""

MODELS = "models"
"""The folder of copied models: those that came as bytes, or from a temporary folder."""

CALL = struct.Struct("<IIQQQQQQ")
"""A call: number of its shape and one more, flags, thread, begin and end (ns), CPU time of the
thread at both (ns; 0 where unknown), and the time that the recorder itself took in this thread
since the last call (ns). A call whose first number is 0 was never written.

A session that opens or closes is a call as well, with the number that its line names."""

CHUNK_CALLS = 1 << 16
"""Calls in one file."""

KINDS = ("run", "run_with_iobinding", "run_async", "run_with_ort_values")
"""Methods of a session; a call's flags hold the number of its method."""

OPENED, CLOSED = len(KINDS), len(KINDS) + 1
"""The numbers that stand for the opening and the closing of a session."""

FAILED = 1 << 8
"""The flag of a call that raised."""

LONG_NS = 200_000
"""To ask for a thread's CPU time takes a microsecond: it is asked for after a call, and before one
that follows a pause, where these took longer; else the time is written as 0."""

_LARGEST_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `autotune record` was asked for.

    Attributes:
        autotune: The version that records.
        max_mib: The most that inputs may take.
        keep_inputs: Whether inputs are kept.
        began_ns: When it began, by the clock of the calls.
    """

    autotune: Text
    max_mib: PositiveWhole
    keep_inputs: bool
    began_ns: Whole

    def to_json(self) -> Json:
        """Returns the settings as JSON values."""
        return {"format": FORMAT, **to_plain(self)}

    @classmethod
    def read(cls, folder: Path) -> "Settings":
        """Returns the settings of a recording.

        Raises:
            FormatError: there are none, or they break the schema.
        """
        return from_plain(cls, body(read_json(folder / SETTINGS, _LARGEST_BYTES), FORMAT))
