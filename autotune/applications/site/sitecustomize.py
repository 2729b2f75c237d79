"""Starts the hook of `autotune record` and `autotune run` in each Python process of a command.

Python imports a module of this name at its start; this folder stands first on ``PYTHONPATH`` for
the command and its child processes. The application's own ``sitecustomize`` still runs. Next to
nothing is imported until the application imports onnxruntime.
"""

import os
import sys
from types import ModuleType


def _start() -> None:
    """Installs the hook that the environment asks for; a fault is printed and changes nothing."""
    try:
        _find_package()
        from autotune.deploy.hook import when_imported

        if recording := os.environ.get("AUTOTUNE_RECORD"):
            when_imported(lambda module: _record(recording, module))
        if tuned := os.environ.get("AUTOTUNE_APPLY"):
            when_imported(lambda module: _apply(tuned, module))
    except Exception as error:  # noqa: BLE001  # the application runs whatever happens here
        sys.stderr.write(f"autotune: the hook did not start: {type(error).__name__}: {error}\n")


def _record(folder: str, module: ModuleType) -> None:
    """Records the sessions of this process."""
    from autotune.applications.start import record_into

    record_into(folder, module)


def _apply(folder: str, module: ModuleType) -> None:
    """Opens the sessions of this process tuned."""
    from autotune.deploy.applying import apply_to

    apply_to(module, folder)


def _find_package() -> None:
    """Makes this very autotune importable where the application's environment has none.

    Only the package is added, and none of the packages beside it.

    Raises:
        ImportError: the application has a module of its own of this name, which it is to get.
    """
    from importlib.machinery import PathFinder

    first = PathFinder.find_spec("autotune", [_script_folder(), *sys.path])
    if first is not None and first.origin is not None:
        mark = os.path.join(os.path.dirname(first.origin), "deploy", "hook.py")  # noqa: PTH118, PTH120
        if not os.path.exists(mark):  # noqa: PTH110
            raise ImportError(f"the application has another module autotune, {first.origin}")
    try:
        import autotune
    except ImportError:
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
        sys.path.append(os.path.dirname(package))  # noqa: PTH120
        try:
            import autotune  # noqa: F401
        finally:
            sys.path.pop()


def _script_folder() -> str:
    """Returns the folder that Python is about to put first on its path."""
    for argument in sys.orig_argv[1:]:
        if argument in ("-m", "-c", "-"):
            break
        if os.path.isfile(argument):  # noqa: PTH113
            return os.path.dirname(os.path.abspath(argument))  # noqa: PTH100, PTH120
    return os.curdir


def _run_other() -> None:
    """Runs the `sitecustomize` that Python would have found without this folder."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [path for path in sys.path if not _is_folder(path, here)]
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        if own is not None:
            sys.modules["sitecustomize"] = own


def _is_folder(path: str, folder: str) -> bool:
    """Returns whether a path is that folder; the working directory may be gone."""
    try:
        return os.path.abspath(path) == folder  # noqa: PTH100
    except OSError:
        return False


_start()
_run_other()
