"""Changes ONNX Runtime's session class as soon as an application imports it. Standard library only.

The class is changed in place, so subclasses, ``isinstance`` and every way to import it stay as they
are. The module that defines it is imported before ``import onnxruntime`` returns.
"""

import sys
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
"""Environment variable: ``1`` lets a process say at its end which sessions were replaced."""


def when_imported(patch: Callable[[ModuleType], None]) -> None:
    """Calls `patch` with the module that defines the session class: now, or once it is imported."""
    module = sys.modules.get(MODULE)
    if module is not None and hasattr(module, "InferenceSession"):
        patch(module)
    else:
        sys.meta_path.insert(0, _Finder(patch))


class _Finder:
    """Finds the one module as the other finders do, and patches it after it was loaded."""

    def __init__(self, patch: Callable[[ModuleType], None]) -> None:
        self._patch = patch

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Any:
        """Returns the spec of the module that defines the session class; None for all others."""
        if name != MODULE:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def load_and_patch(module: ModuleType) -> None:
            load(module)
            try:
                self._patch(module)
            except Exception as error:  # noqa: BLE001  # the application imports it all the same
                sys.stderr.write(f"autotune: {MODULE} stays as it is: {error}\n")

        # the loader belongs to this spec alone
        spec.loader.exec_module = load_and_patch  # type: ignore[method-assign]
        return spec
