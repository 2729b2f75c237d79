"""Starts the hook of `autotune record` and `autotune run` in each Python process of a command.

Python imports a module of this name at its start; this folder stands first on ``PYTHONPATH`` for
the command and its child processes. The application's own ``sitecustomize`` still runs. Nothing but
the standard library is imported until the application imports onnxruntime.
"""

import os
import sys


def _start() -> None:
    """Installs the hook that the environment asks for; a fault is printed and changes nothing."""
    try:
        _find_package()
        if folder := os.environ.get("AUTOTUNE_RECORD"):
            from autotune.applications.start import start

            start(folder)
        if folder := os.environ.get("AUTOTUNE_APPLY"):
            from autotune.deploy.applying import start_tuned

            start_tuned(folder)
    except Exception as error:  # noqa: BLE001  # the application runs whatever happens here
        sys.stderr.write(f"autotune: the hook did not start: {type(error).__name__}: {error}\n")


def _find_package() -> None:
    """Makes this very autotune importable where the application's environment has none.

    Only the package is added, and none of the packages beside it.

    Raises:
        ImportError: the application has a module of its own of this name, which it is to get.
    """
    import importlib.machinery
    import importlib.util

    first = importlib.machinery.PathFinder.find_spec("autotune", [_script_folder(), *sys.path])
    if first is not None and first.origin is not None:
        mark = os.path.join(os.path.dirname(first.origin), "deploy", "hook.py")  # noqa: PTH118, PTH120
        if not os.path.exists(mark):  # noqa: PTH110
            raise ImportError(f"the application has another module autotune, {first.origin}")
    if importlib.util.find_spec("autotune") is not None:
        return
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    spec = importlib.util.spec_from_file_location(
        "autotune",
        os.path.join(package, "__init__.py"),  # noqa: PTH118
        submodule_search_locations=[package],
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["autotune"] = module
    spec.loader.exec_module(module)


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
