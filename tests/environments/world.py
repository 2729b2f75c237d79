"""An environment with other execution providers, as tests use it: programs that run in it.

The folder of all environments is named by ``AUTOTUNE_ENVIRONMENTS``; ``build.py`` makes it. The
programs run autotune of this checkout, whatever the environment holds.
"""

import functools
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "AUTOTUNE_ENVIRONMENTS"

_TESTS = Path(__file__).parent.parent
_TIME_LIMIT_S = 600.0


@dataclass(frozen=True, kw_only=True)
class Environment:
    """An environment that is built.

    Attributes:
        python: Its interpreter.
    """

    python: Path

    def run(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Returns what became of Python with these arguments."""
        return subprocess.run(
            [str(self.python), *arguments],
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=_TIME_LIMIT_S,
            check=False,
            env={**os.environ, "PYTHONPATH": f"{_TESTS.parent}{os.pathsep}{_TESTS}"},
        )

    def result(self, *arguments: str, cwd: Path) -> Any:
        """Returns the JSON value that a program prints as its last line, or as all of its lines."""
        done = self.run(*arguments, cwd=cwd)
        assert done.returncode == 0, done.stdout + done.stderr
        text = done.stdout.strip()
        return json.loads(text if text.startswith("{\n") else text.splitlines()[-1])

    def autotune(self, *arguments: str, cwd: Path) -> Any:
        """Returns the JSON value that a command of autotune prints with ``--json``."""
        return self.result("-m", "autotune", *arguments, "--json", cwd=cwd)


@functools.cache
def environment(name: str) -> Environment:
    """Returns the environment of that name; skips the test where it is not built."""
    folder = os.environ.get(VARIABLE)
    if folder is None:
        pytest.skip(f"{VARIABLE} names no folder of environments; see tests/environments/build.py")
    python = Path(folder).absolute() / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"there is no {python}; python tests/environments/build.py makes it")
    return Environment(python=python)
