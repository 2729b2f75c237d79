"""Installs packages into a folder, with uv where it is installed and with pip elsewhere."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from autotune.errors import CannotMeasureError, RequestError
from autotune.process.scratch import MARK

# An address in a message may hold a password.
_SECRET = re.compile(r"//[^/@\s]+@")
_LONGEST_REASON = 300


def install(requirements: Sequence[str], target: Path, work: Path, *, alone: bool) -> None:
    """Installs packages into the folder `target`.

    Only wheels are taken: a source distribution would run a program of its own while it is built.

    Args:
        requirements: What to install, as pip takes it.
        target: The folder.
        work: A folder for temporary files; processes that are left in it can be found by it.
        alone: Whether to leave out what they depend on.

    Raises:
        RequestError: the installer failed; its own words say why.
        CannotMeasureError: neither uv nor pip works here.
    """
    options = ["--only-binary", ":all:", "--target", str(target), *(["--no-deps"] if alone else [])]
    command = [*_installer(), *options, *requirements]
    # the user's whole environment: the index, its certificates and proxies are named there
    environment = {**os.environ, MARK: str(work), "TMPDIR": str(work)}
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment,
        check=False,
    )
    if done.returncode:
        raise _fault(done.stdout, ", ".join(requirements))


def _installer() -> list[str]:
    """Returns the command of uv where it is installed, else that of pip."""
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable]
    if find_spec("pip") is None:
        raise CannotMeasureError(
            "neither uv nor pip can be used here; install one of them: python -m ensurepip"
        )
    quick = ["--disable-pip-version-check", "--no-input", "--retries", "2", "--no-compile"]
    return [sys.executable, "-m", "pip", "install", *quick]


def _fault(output: str, what: str) -> RequestError:
    """Returns the error of an installer that failed: its own last words say why."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    reasons = [line for line in lines if line.lower().startswith("error")] or lines[-1:]
    reason = _SECRET.sub("//***@", " ".join(reasons))[:_LONGEST_REASON]
    return RequestError(
        f"cannot install {what} for Python {platform.python_version()} on {platform.system()} "
        f"{platform.machine()}: {reason}"
    )
