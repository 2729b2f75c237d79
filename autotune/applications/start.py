"""Begins a recording: its folder, and the hook in this process. Standard library only."""

import atexit
import json
import os
import time
from pathlib import Path
from types import ModuleType

import autotune
from autotune.applications.layout import BUDGET, END, INPUTS, MODELS, SETTINGS, Settings
from autotune.applications.recorder import Recorder
from autotune.applications.watching import patch_sessions
from autotune.deploy.guard import guarded
from autotune.deploy.hook import when_imported
from autotune.deploy.passed import watch
from autotune.errors import RequestError


def record(folder: str | os.PathLike[str], *, max_mib: int = 256, keep_inputs: bool = True) -> None:
    """Records the sessions that this process opens from now on, and their calls, into a new folder.

    For notebooks, frozen applications and servers that start Python themselves; everything else is
    recorded by ``autotune record``. Processes that this one forks are recorded as well.

    Args:
        folder: The folder, which is made; ``autotune study`` reads it once the process has ended.
        max_mib: The most MiB of real inputs to keep.
        keep_inputs: Whether real inputs are kept; shapes always are.

    Raises:
        AutotuneError: the folder exists already, or cannot be made.
    """
    path = Path(folder).absolute()
    began = time.monotonic()
    make_folder(path, max_mib=max_mib, keep_inputs=keep_inputs)
    own = os.getpid()

    def end() -> None:
        if os.getpid() == own:
            write_end(path, 0, time.monotonic() - began)

    atexit.register(guarded(end))
    start(str(path))


def make_folder(folder: Path, *, max_mib: int, keep_inputs: bool) -> None:
    """Makes the folder of a recording, which is its user's alone: it may hold private inputs.

    Raises:
        RequestError: it exists already, or cannot be made.
    """
    settings = Settings(
        autotune=autotune.__version__,
        max_mib=max_mib,
        keep_inputs=keep_inputs,
        began_ns=time.monotonic_ns(),
    )
    if (others := next((p for p in folder.parents if p.exists()), None)) and not others.is_dir():
        raise RequestError(f"cannot make {folder}: {others} is a file; name another folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        for name in (INPUTS, MODELS):
            (folder / name).mkdir(mode=0o700)
        (folder / BUDGET).write_bytes(bytes(8))
        (folder / SETTINGS).write_text(json.dumps(settings.to_json()), encoding="utf-8")
    except FileExistsError:
        raise RequestError(f"{folder} exists already; remove it, or name another") from None
    except OSError as error:
        raise RequestError(f"cannot make {folder}: {error.strerror}") from None


def write_end(folder: Path, exit_code: int, wall_s: float) -> None:
    """Writes what became of the recorded command."""
    end = {"exit_code": exit_code, "wall_s": wall_s}
    (folder / END).write_text(json.dumps(end), encoding="utf-8")


def start(folder: str) -> None:
    """Records this process into `folder` from the moment when it imports onnxruntime."""
    when_imported(lambda module: record_into(folder, module))


def record_into(folder: str, module: ModuleType) -> None:
    """Records this process, which has just imported onnxruntime, into `folder`.

    Args:
        module: The module that defines ``InferenceSession``.

    Raises:
        AutotuneError: the folder is no recording any more.
    """
    recorder = Recorder(Path(folder))
    recorder.begin()
    watch(module)
    patch_sessions(module, recorder)
    os.register_at_fork(after_in_child=guarded(recorder.begin_in_child))
    atexit.register(guarded(recorder.end))
