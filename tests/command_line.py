"""The program inside the process of a test: without the second that importing it anew takes."""

import contextlib
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from autotune.cli import app


@dataclass(frozen=True, kw_only=True)
class Done:
    """What became of a command.

    Attributes:
        returncode: The exit code.
        stdout: What it printed.
        stderr: What it said.
    """

    returncode: int
    stdout: str
    stderr: str


def run(folder: Path, *arguments: str) -> Done:
    """Runs the program in `folder`, from its command line to its exit code."""
    streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(streams[0]),
        contextlib.redirect_stderr(streams[1]),
        mock.patch.object(sys, "argv", ["autotune", *arguments]),
    ):
        try:
            app.main()
        except SystemExit as end:
            code = end.code
        else:
            code = 0
    texts = []
    for stream in streams:
        stream.seek(0)
        texts.append(stream.read())
    assert isinstance(code, int)
    return Done(returncode=code, stdout=texts[0], stderr=texts[1])
