"""Changes ONNX Runtime's session class as soon as an application imports it.

The class is changed in place, so subclasses, ``isinstance`` and every way to import it stay as they
are. The module that defines it is imported before ``import onnxruntime`` returns. Each Python
process of a command pays for this module, so it imports what Python has loaded by itself.
"""

import atexit
import sys

# a type checker takes this name for true; importing typing would take longer than all of this file
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

MODULE = "onnxruntime.capi.onnxruntime_inference_collection"
"""The module that defines ``InferenceSession``."""

SITE = "applications/site"
"""The folder of the package that stands first on ``PYTHONPATH`` for a command with the hook."""

RECORD_VARIABLE = "AUTOTUNE_RECORD"
"""Environment variable: the folder of the recording."""

APPLY_VARIABLE = "AUTOTUNE_APPLY"
"""Environment variable: the folder of the tuned application."""

VERBOSE_VARIABLE = "AUTOTUNE_VERBOSE"
"""Environment variable: ``1`` lets a process say which sessions were replaced."""

REPORT_VARIABLE = "AUTOTUNE_REPORT"
"""Environment variable: a file to which each process appends which sessions were replaced."""


def when_imported(patch: "Callable[[ModuleType], None]") -> None:
    """Calls `patch` with the module that defines the session class: now, or once it is imported."""
    module = sys.modules.get(MODULE)
    if module is not None and hasattr(module, "InferenceSession"):
        patch(module)
    else:
        finder = _Finder(patch)
        sys.meta_path.insert(0, finder)
        atexit.register(finder.end)


class _Finder:
    """Finds the one module as the other finders do, and patches it after it was loaded."""

    def __init__(self, patch: "Callable[[ModuleType], None]") -> None:
        self._patch = patch
        self._is_asked = False

    def end(self) -> None:
        """Says so where a finder of the application imported onnxruntime without asking others."""
        if MODULE in sys.modules and not self._is_asked:
            _say(
                "the application's own import hook found it first; let the application call "
                "autotune.record or autotune.apply"
            )

    def find_spec(
        self, name: str, path: "Sequence[str] | None", target: "ModuleType | None" = None
    ) -> "Any":
        """Returns the spec of the module that defines the session class; None for all others."""
        if name != MODULE:
            return None
        self._is_asked = True
        # finders of the old style have no find_spec; Python passes them over as well
        others = [getattr(f, "find_spec", None) for f in sys.meta_path if f is not self]
        specs = (find(name, path, target) for find in others if find is not None)
        spec = next((spec for spec in specs if spec is not None), None)
        try:
            self._patch_when_loaded(spec)
        except Exception as fault:  # noqa: BLE001  # such as a loader that takes no attribute
            _say(fault)
        return spec

    def _patch_when_loaded(self, spec: "Any") -> None:
        if spec is None or spec.loader is None:
            return
        loader = spec.loader
        load = loader.exec_module

        def load_and_patch(module: "ModuleType") -> None:
            try:  # nothing of the hook stays in the import system
                del loader.exec_module
                sys.meta_path.remove(self)
            except Exception:  # noqa: BLE001  # the module is loaded all the same
                pass
            load(module)
            try:
                self._patch(module)
            except Exception as fault:  # noqa: BLE001  # the application imports it all the same
                from autotune.deploy.guard import swallow

                swallow(fault)
                _say(fault)

        loader.exec_module = load_and_patch  # the loader belongs to this spec alone


def _say(reason: object) -> None:
    """Says why sessions are opened as without autotune."""
    from autotune.deploy.guard import say

    say(f"onnxruntime stays as it is: {reason}")
