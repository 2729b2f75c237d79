"""The program inside the process of a test: without the second that importing it anew takes."""

import contextlib
import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from autotune.cli import app
from autotune.cli.console import messages


@dataclass(frozen=True, kw_only=True)
class Done:
    """What became of a command."""

    returncode: int
    stdout: str
    stderr: str


def run(folder: Path, *arguments: str) -> Done:
    """Runs the program in `folder`, from its command line to its exit code."""
    messages().quiet = False  # an earlier command of this process may have been quiet
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


def printed(script: str, *arguments: object, **variables: str) -> str:
    """Returns what a process of its own prints that runs a Python script."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, *map(str, arguments)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
