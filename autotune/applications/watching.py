"""Changes ONNX Runtime's session class so that a recorder sees what is opened and called.

Each changed method calls ONNX Runtime's own one with what the application passed, once. What the
recorder does before and after may fail at any place: the application has its result, or its
exception, all the same.
"""

import functools
import os
import threading
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from autotune.applications.inputs import BOUND, BOUND_OUTPUTS, patch_binding
from autotune.applications.layout import FAILED, KINDS, LONG_NS
from autotune.applications.recorder import Recorder
from autotune.applications.returned import FedBy
from autotune.deploy.guard import swallow

_ATTRIBUTE = "_autotune_watched"
_now_ns, _cpu_ns = time.monotonic_ns, time.thread_time_ns

After = Callable[[int, int, bool, Any], None]
"""Called when a method of ONNX Runtime has ended: with begin, end, whether it raised, and what it
returned."""


def patch_sessions(module: ModuleType, recorder: Recorder) -> None:
    """Lets sessions that are opened from now on, and their calls, be recorded."""
    from autotune.deploy.passed import understand

    kind: Any = module.__dict__["InferenceSession"]
    opening = functools.partial(_opening, recorder, functools.partial(understand, module))
    kind.__init__ = _entry(kind.__init__, recorder, opening)
    arguments = {"run": _of_run, "run_with_ort_values": _of_values, "run_with_iobinding": _of_bound}
    for name, read in arguments.items():
        if hasattr(kind, name):
            calling = functools.partial(_calling, recorder, KINDS.index(name), read)
            setattr(kind, name, _entry(getattr(kind, name), recorder, calling))
    if hasattr(kind, "run_async"):
        kind.run_async = _asynchronous(kind.run_async, recorder)
    binding = module.__dict__.get("IOBinding")
    if binding is not None:
        patch_binding(binding)


class _Thread(threading.local):
    """When the last call of a thread ended, and the time that the recorder took since."""

    ended_ns = 0
    own_ns = 0


_thread = _Thread()


def _entry(original: Any, recorder: Recorder, before: Callable[..., After | None]) -> Any:
    """Returns a method that calls `original`, with `before` before it and what that returns after.

    Nothing but the call of `original` stands outside of a guard.
    """

    @functools.wraps(original)
    def entry(self: Any, *arguments: Any, **named: Any) -> Any:
        after = None
        try:
            entered = _now_ns()
            after = before(self, *arguments, **named)
            _thread.own_ns += _now_ns() - entered
        except Exception as fault:  # noqa: BLE001
            swallow(fault, recorder.fault)
        if after is None:
            return original(self, *arguments, **named)
        began, is_failed, result = _now_ns(), True, None
        try:
            result = original(self, *arguments, **named)
            is_failed = False
        finally:
            try:
                _finish(after, began, result, is_failed=is_failed)
            except Exception as fault:  # noqa: BLE001
                swallow(fault, recorder.fault)
        return result

    return entry


def _finish(after: After, began: int, result: Any, *, is_failed: bool) -> None:
    ended = _now_ns()
    after(began, ended, is_failed, result)
    _thread.ended_ns, _thread.own_ns = ended, _now_ns() - ended


def _opening(
    recorder: Recorder, understand: Any, session: Any, *arguments: Any, **named: Any
) -> Any:
    """Returns what notes a session once it is open; what is passed may change meanwhile."""
    if recorder.pid != os.getpid():
        recorder.follow_fork()
    call = understand(arguments, named)
    sha256 = recorder.digest(call.model)
    held_kib = _held_kib()

    def after(began: int, ended: int, is_failed: bool, _: Any) -> None:
        if is_failed:
            return
        load_ns = ended - began
        watched = recorder.session(session, call, sha256, load_ns=load_ns, held_kib=held_kib)
        session.__dict__[_ATTRIBUTE] = watched
        recorder.opened(watched, began, ended, _thread.own_ns)

    return after


def _held_kib() -> int:
    """Returns the memory that this process holds; 0 where the system does not tell."""
    try:
        descriptor = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        try:
            pages = int(os.read(descriptor, 100).split()[1])
        finally:
            os.close(descriptor)
        return pages * os.sysconf("SC_PAGE_SIZE") >> 10
    except (OSError, ValueError, IndexError) as fault:
        swallow(fault)
        return 0


def _calling(
    recorder: Recorder, kind: int, read: Any, session: Any, *arguments: Any, **named: Any
) -> After | None:
    """Returns what notes a call when it has ended; its inputs are kept before it begins."""
    watched = session.__dict__.get(_ATTRIBUTE)
    if watched is None or recorder.is_broken:
        return None
    if recorder.pid != os.getpid():
        recorder.follow_fork()
    feed, outputs, options = read(*arguments, **named)
    if feed is None:  # the shapes of its inputs are not known
        return None
    number, returned = watched.line["number"], recorder.returned
    fed = returned.places(number, feed)
    cell, feed = recorder.cell_of(watched, feed, _asked(outputs, options), fed)
    name = _kept(recorder, cell, feed, fed)
    cpu_began = _cpu_ns() if _now_ns() - _thread.ended_ns > LONG_NS else 0

    def after(began: int, ended: int, is_failed: bool, result: Any) -> None:
        cpu_ended = _cpu_ns() if ended - began > LONG_NS else 0
        flags = kind | (FAILED if is_failed else 0)
        cell[1] += not is_failed
        recorder.put(cell[0], flags, began, ended, 0, (cpu_began, cpu_ended), _thread.own_ns)
        if name:
            recorder.kept(cell, name, is_failed=is_failed)
        if not is_failed:
            returned.note(number, fed, feed, result or ())

    return after


def _kept(recorder: Recorder, cell: list[Any], feed: Any, fed: Mapping[str, FedBy]) -> str:
    """Returns the file with the inputs of the call that begins; empty where they are not kept."""
    if cell[1] + 1 < cell[2]:
        return ""
    try:
        return recorder.keep(cell, feed, fed)
    except Exception as fault:  # noqa: BLE001  # its time and its shape are recorded all the same
        swallow(fault, recorder.fault)
        return ""


def _asked(outputs: Any, options: Any) -> tuple[Any, Any]:
    """Returns outputs and run options of a call in a form that can be a key."""
    from autotune.deploy.passed import run_entries

    names = tuple(outputs) if outputs else None
    return names, () if options is None else tuple(sorted(run_entries(options).items()))


def _of_run(output_names: Any, input_feed: Any, run_options: Any = None) -> tuple[Any, Any, Any]:
    return input_feed, output_names, run_options


def _of_values(
    output_names: Any, input_dict_ort_values: Any, run_options: Any = None
) -> tuple[Any, Any, Any]:
    return input_dict_ort_values, output_names, run_options


def _of_bound(iobinding: Any, run_options: Any = None) -> tuple[Any, Any, Any]:
    return getattr(iobinding, BOUND, {}), getattr(iobinding, BOUND_OUTPUTS, None), run_options


def _asynchronous(original: Any, recorder: Recorder) -> Any:
    """Returns ``run_async`` with a callback that notes the call, as of the thread that made it."""

    @functools.wraps(original)
    def entry(self: Any, *arguments: Any, **named: Any) -> Any:
        try:
            arguments, named = _with_note(recorder, self, arguments, named)
        except Exception as fault:  # noqa: BLE001
            swallow(fault, recorder.fault)
        return original(self, *arguments, **named)

    return entry


def _with_note(
    recorder: Recorder, session: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of ``run_async`` with a callback that notes the call first."""
    names = ("output_names", "input_feed", "callback", "user_data", "run_options")
    given = {**dict(zip(names, arguments, strict=False)), **named}
    callback = given["callback"]
    watched = session.__dict__.get(_ATTRIBUTE)
    if watched is None or not callable(callback) or len(arguments) > len(names):
        return arguments, named
    asked = _asked(given["output_names"], given.get("run_options"))
    cell, feed = recorder.cell_of(watched, given["input_feed"], asked, {})
    name = _kept(recorder, cell, feed, {})
    recorder.returned.note(watched.line["number"], {}, feed, ())
    caller, kind = threading.get_ident(), KINDS.index("run_async")

    def called(results: Any, user_data: Any, fault: str) -> Any:
        try:
            flags = kind | (FAILED if fault else 0)
            cell[1] += not fault
            recorder.put(cell[0], flags, began, _now_ns(), caller)
            if name:
                recorder.kept(cell, name, is_failed=bool(fault))
        except Exception as error:  # noqa: BLE001
            swallow(error, recorder.fault)
        return callback(results, user_data, fault)

    began = _now_ns()
    return (), {**given, "callback": called}
