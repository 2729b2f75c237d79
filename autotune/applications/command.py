"""Starts an application's command with the hook in its environment, and records what it runs."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import autotune
from autotune.applications.start import make_folder, write_end
from autotune.deploy.hook import APPLY_VARIABLE, RECORD_VARIABLE, SITE, VERBOSE_VARIABLE
from autotune.errors import RequestError

_PATH = "PYTHONPATH"


def site_folder() -> Path:
    """Returns the folder that stands first on ``PYTHONPATH``."""
    return Path(autotune.__file__).parent / SITE


def plain_environment() -> dict[str, str]:
    """Returns this environment without a tuned application: a command runs in it as it is."""
    return {name: text for name, text in os.environ.items() if name != APPLY_VARIABLE}


def hooked_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the plain environment with the hook and `variables`."""
    others = os.environ.get(_PATH, "")  # an empty item stands for the current folder
    path = f"{site_folder()}{os.pathsep}{others}" if others else str(site_folder())
    return {**plain_environment(), _PATH: path, **variables}


def tuned_environment(folder: Path, *, verbose: bool = False) -> dict[str, str]:
    """Returns the environment in which a command runs with the sessions of a tuned application."""
    chosen = {APPLY_VARIABLE: str(folder.absolute())}
    return hooked_environment(chosen | ({VERBOSE_VARIABLE: "1"} if verbose else {}))


def record(command: Sequence[str], folder: Path, *, max_mib: int, keep_inputs: bool) -> int:
    """Runs a command and records its sessions into a new folder; returns its exit code.

    Raises:
        RequestError: the folder exists, or the command cannot be started.
    """
    make_folder(folder, max_mib=max_mib, keep_inputs=keep_inputs)
    began = time.monotonic()
    environment = hooked_environment({RECORD_VARIABLE: str(folder.absolute())})
    try:
        code = run_command(command, environment)
    except RequestError:
        shutil.rmtree(folder)  # nothing was recorded
        raise
    write_end(folder, code, time.monotonic() - began)
    return code


def run_command(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a command to its end with this process's streams; returns its exit code.

    A signal that ends this process is passed on first. Where a signal ended the command, the code
    is 128 and its number, as a shell says it.

    Raises:
        RequestError: the command cannot be started.
    """
    with _passing_on() as started:
        try:
            # descriptors that this process was given are the command's
            process = subprocess.Popen(list(command), env=dict(environment), close_fds=False)
        except OSError as error:
            raise cannot_start(command, error) from None
        started.append(process)
        code = process.wait()
    return code if code >= 0 else 128 - code


def cannot_start(command: Sequence[str], error: OSError) -> RequestError:
    """Returns the refusal of a command that the system cannot start."""
    return RequestError(
        f"cannot start {command[0]!r}: {error.strerror}; type the command after -- as you type it "
        "without autotune"
    )


@contextlib.contextmanager
def _passing_on() -> Iterator["list[subprocess.Popen[bytes]]"]:
    """Passes signals on to the processes of the list.

    The terminal sends Ctrl-C to the command itself. A signal that is ignored stays ignored: the
    command inherits that.
    """
    started: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        for process in started:
            with contextlib.suppress(OSError):
                process.send_signal(number)

    def leave(*_: object) -> None:
        return

    numbers: dict[int, Any] = {signal.SIGINT: leave, signal.SIGTERM: pass_on}
    for name in ("SIGHUP", "SIGUSR1", "SIGUSR2"):
        if hasattr(signal, name):
            numbers[getattr(signal, name)] = pass_on
    earlier = {
        number: signal.signal(number, handler)
        for number, handler in numbers.items()
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield started
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
