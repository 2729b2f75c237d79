"""Changes ONNX Runtime's session class as soon as an application imports it. Standard library only.

The class is changed in place, so subclasses, ``isinstance`` and every way to import it stay as they
are. The module that defines it is imported before ``import onnxruntime`` returns.
"""

import atexit
import contextlib
import functools
import signal
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
"""Environment variable: ``1`` lets a process say which sessions were replaced."""

REPORT_VARIABLE = "AUTOTUNE_REPORT"
"""Environment variable: a file to which each process appends which sessions were replaced."""


def when_imported(patch: Callable[[ModuleType], None]) -> None:
    """Calls `patch` with the module that defines the session class: now, or once it is imported."""
    module = sys.modules.get(MODULE)
    if module is not None and hasattr(module, "InferenceSession"):
        patch(module)
    else:
        finder = _Finder(patch)
        sys.meta_path.insert(0, finder)
        atexit.register(guarded(finder.end))


def say(text: str) -> None:
    """Writes a line to stderr, where there is one."""
    try:
        sys.stderr.write(f"autotune: {text}\n")
    except Exception as fault:  # noqa: BLE001  # an application may have closed it
        swallow(fault)


def swallow(fault: Exception, note: Callable[[Exception], None] | None = None) -> None:
    """Lets an application go on after a fault of autotune's own.

    Args:
        fault: The fault.
        note: Writes it down, as far as that works.

    Raises:
        BaseException: the fault is the application's, or took the place of one that is: its signal
            handler raised it, such as that of an alarm.
    """
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = [getattr(handler, "__code__", None) for handler in handlers if callable(handler)]
    own: BaseException | None = fault
    while own is not None:
        place = own.__traceback__
        while place is not None and place.tb_frame.f_code not in codes:
            place = place.tb_next
        if place is not None or not isinstance(own, Exception):  # Ctrl-C and exits are none of ours
            raise own from own.__cause__
        own = own.__context__
    if note is not None:
        try:
            note(fault)
        except Exception as another:  # noqa: BLE001
            swallow(another)


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that an application may call: a fault of it changes nothing."""

    @functools.wraps(function)
    def entry(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except Exception as fault:  # noqa: BLE001  # the application goes on
            swallow(fault)
            return None

    return entry


class _Finder:
    """Finds the one module as the other finders do, and patches it after it was loaded."""

    def __init__(self, patch: Callable[[ModuleType], None]) -> None:
        self._patch = patch
        self._is_asked = False

    def end(self) -> None:
        """Says so where a finder of the application imported onnxruntime without asking others."""
        if MODULE in sys.modules and not self._is_asked:
            say(
                "onnxruntime stays as it is: the application's own import hook found it first; let "
                "the application call autotune.record or autotune.apply"
            )

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Any:
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
            say(f"onnxruntime stays as it is: {fault}")
        return spec

    def _patch_when_loaded(self, spec: Any) -> None:
        if spec is None or spec.loader is None:
            return
        loader = spec.loader
        load = loader.exec_module

        def load_and_patch(module: ModuleType) -> None:
            with contextlib.suppress(Exception):  # nothing of the hook stays in the import system
                del loader.exec_module
                sys.meta_path.remove(self)
            load(module)
            try:
                self._patch(module)
            except Exception as fault:  # noqa: BLE001  # the application imports it all the same
                swallow(fault)
                say(f"onnxruntime stays as it is: {fault}")

        loader.exec_module = load_and_patch  # the loader belongs to this spec alone
