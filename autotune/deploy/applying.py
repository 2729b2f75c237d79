"""Opens the sessions of an application tuned, without a change of the application.

:func:`apply` changes ONNX Runtime's session class in place. A session whose model and options are
those of the tuned application is opened by its config; all others, and any that the config does not
fit, stay as they were. Standard library until the first session that may be replaced.
"""

import atexit
import functools
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.deploy.application import CONFIG, ReplacedSession, TunedApplication
from autotune.deploy.files import is_file
from autotune.deploy.guard import guarded, say, signals_held, swallow
from autotune.deploy.hook import REPORT_VARIABLE, VERBOSE_VARIABLE, when_imported
from autotune.deploy.passed import LOGGING, Digests, interface_of, understand, watch, working

# A model of one node, as bytes: x -> Identity -> y, floats of one element.
_SMALLEST_MODEL = bytes.fromhex(
    "08083a370a100a017812017922084964656e746974791201675a0f0a0178120a0a08080112040a020801620f0a0179"
    "120a0a08080112040a02080142040a00100d"
)


def apply(folder: str | os.PathLike[str], *, verbose: bool = False) -> None:
    """Lets this process open its sessions as the tuned application `folder` says, from now on.

    Call it before the application creates its sessions. A session is replaced if its model has the
    recorded digest and it is created with the recorded options; everything else stays as it is.

    Args:
        folder: A tuned application, as ``autotune study app.rec`` writes it.
        verbose: Say at the end of the process which sessions were replaced.

    Raises:
        ConfigError: `folder` is no tuned application.
    """
    path = Path(folder)
    tuned = TunedApplication.read(path)
    import onnxruntime  # noqa: F401  # the class must be there before the application's next line

    when_imported(functools.partial(_patch, tuned, path, verbose))


def apply_to(module: ModuleType, folder: str) -> None:
    """Does the same for a process that has just imported onnxruntime; the hook calls it.

    Args:
        module: The module that defines ``InferenceSession``.
        folder: The tuned application.

    Raises:
        ConfigError: `folder` is no tuned application.
    """
    path = Path(folder)
    _patch(TunedApplication.read(path), path, os.environ.get(VERBOSE_VARIABLE) == "1", module)


class _Application:
    """What the sessions of this process become.

    Args:
        tuned: The tuned application.
        folder: Its folder.
        module: The module that defines ``InferenceSession``.
        original: The constructor of the class, as ONNX Runtime has it.
        verbose: Whether each session has its line on stderr.
    """

    def __init__(
        self,
        tuned: TunedApplication,
        folder: Path,
        module: ModuleType,
        original: Any,
        verbose: bool,
    ) -> None:
        self.tuned = tuned
        self.folder = folder
        self.module = module
        self.original = original
        self.verbose = verbose
        self.digests = Digests()
        self.sizes = {session.size_bytes for session in tuned.sessions if session.folder}
        self.has_pool = False
        self.changed_methods: set[Any] = set()
        self.loads: dict[str, bool] = {}
        self.begin()

    def begin(self) -> None:
        """Counts anew, in a process that was forked too."""
        self.lock = threading.RLock()
        self.replaced: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()
        self.strangers = 0
        self.has_ended = False

    def open(self, opened: Any, arguments: tuple[Any, ...], named: Any) -> bool:
        """Opens a session tuned; returns whether it did. Nothing is left of a failed attempt."""
        try:
            call = understand(self.module, arguments, named)
        except Exception as fault:  # noqa: BLE001
            swallow(fault)
            self.keep("a session", f"its arguments were not understood ({fault})")
            return False
        session = self.find(call)
        if session is None or session.folder is None:
            return False
        before = dict(opened.__dict__)  # a subclass may have set attributes already
        try:
            _open(self, session, call, opened)
        except BaseException as fault:
            opened.__dict__.clear()
            opened.__dict__.update(before)
            if isinstance(fault, Exception):
                swallow(fault)
                self.keep(session.name, str(fault))
                return False
            raise
        self.replaced[session.name] += 1
        self.report(session.name, "")
        return True

    def change(self, kind: Any, methods: Callable[[Any, Any], None]) -> None:
        """Changes methods of the session class once; sessions without need pay nothing for it."""
        if methods not in self.changed_methods:
            self.changed_methods.add(methods)
            methods(kind, kind)

    def keep(self, name: str, reason: str) -> None:
        """Notes why a recorded session stays as it is."""
        self.kept[f"{name}: {reason}"] += 1
        self.report(name, reason)

    @guarded
    def report(self, name: str, reason: str) -> None:
        """Tells at once what became of a session: a process may be killed before its end."""
        key = f"{name}: {reason}" if reason else name
        if (self.kept if reason else self.replaced)[key] > 1:
            return
        if self.verbose:
            what = f"stays as it is: {reason}" if reason else "is opened tuned"
            say(f"process {os.getpid()}: {name} {what}")
        if path := os.environ.get(REPORT_VARIABLE):
            line = json.dumps({"session": name, "reason": reason}).encode() + b"\n"
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)

    def find(self, call: Any) -> ReplacedSession | None:
        """Returns the session to replace that `call` would open; None if it is no such session."""
        model = call.model
        size = len(model) if isinstance(model, bytes) else Path(model).stat().st_size
        sha256 = self.digests.of(model) if size in self.sizes else ""  # the size rules most out
        own = [item for item in self.tuned.sessions if item.sha256 == sha256]
        if not own:
            self.strangers += 1
            return None
        alike = [item for item in own if item.passed == call.passed]
        reason = "the application passes other options than those recorded"
        for session in alike:
            reason = self._other_providers(session, call)
            if not reason:
                return session if self._has_data(session, model) else None
        self.keep(own[0].name, reason)
        return None

    def _other_providers(self, session: ReplacedSession, call: Any) -> str:
        """Returns which other providers than when it was recorded would run nodes here.

        ONNX Runtime lists a provider that was built into it and does not load here, such as CUDA's
        without a GPU: where the recorded session went without one, it is tried.
        """
        available = self.module.__dict__["C"].get_available_providers()
        there = working(session.providers)
        here = call.passed.used_providers(available)
        if call.passed.providers is None:  # ONNX Runtime chooses, as it did then
            here = tuple(name for name in there if name in available)
        if missing := [name for name in there if name not in here]:
            return f"it ran on {', '.join(missing)} when it was recorded, which is not here"
        if more := [name for name in here if name not in there and self._does_load(name)]:
            return f"it runs on {', '.join(more)} here, unlike when it was recorded"
        return ""

    def _does_load(self, provider: str) -> bool:
        """Returns whether a session gets a provider: a model of one node is opened with it."""
        if provider not in self.loads:
            kind = self.module.__dict__["InferenceSession"]
            probe = object.__new__(kind)
            try:
                self.original(probe, _SMALLEST_MODEL, providers=[provider])
                self.loads[provider] = provider in probe.get_providers()
            except Exception as fault:  # noqa: BLE001  # ONNX Runtime has many kinds of errors
                swallow(fault)
                self.loads[provider] = False
        return self.loads[provider]

    def _has_data(self, session: ReplacedSession, model: str | bytes) -> bool:
        """Returns whether the external data are those of the model that was tuned."""
        if isinstance(model, bytes):
            return not session.data_files
        folder = Path(model).parent
        for item in session.data_files:
            path = folder / item.file
            if (
                not is_file(path)
                or path.stat().st_size != item.size_bytes
                or self.digests.of(str(path)) != item.sha256
            ):
                self.keep(session.name, f"{item.file} is another file than recorded")
                return False
        return True

    def end(self) -> None:
        """Says what was replaced; without ``verbose`` only that nothing was, and why."""
        if self.has_ended:
            return
        self.has_ended = True
        if self.verbose:
            for name, count in self.replaced.items():
                say(f"{name} ran tuned ({count} session{'s' * (count > 1)})")
            for reason, count in self.kept.items():
                say(f"left as it was ({count} times): {reason}")
        elif not self.replaced and (self.kept or self.strangers):
            say(f"no session ran tuned: {self.why_nothing}")

    @property
    def why_nothing(self) -> str:
        """Why no session was replaced."""
        if not self.sizes:
            return "the study found nothing better than the application's own options"
        opened = "the application opened other models than those recorded"
        return next(iter(self.kept), opened)


def _patch(tuned: TunedApplication, folder: Path, verbose: bool, module: ModuleType) -> None:
    """Lets sessions that are opened from now on be replaced."""
    watch(module)
    kind: Any = module.__dict__["InferenceSession"]
    original = kind.__init__
    application = _Application(tuned, folder, module, original, verbose)
    os.register_at_fork(after_in_child=guarded(application.begin))
    _at_end(application)

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
        is_open = False
        struck: list[Callable[[], object]] = []
        try:
            with signals_held(struck):
                is_open = application.open(self, arguments, named)
        except Exception as fault:  # noqa: BLE001  # the application gets ONNX Runtime's own words
            swallow(fault)
        for handle in struck:
            handle()
        if not is_open:
            original(self, *arguments, **named)

    kind.__init__ = __init__


def _at_end(application: _Application) -> None:
    """Lets a process say at its end what was replaced; one of ``multiprocessing`` too."""
    end = guarded(application.end)

    def end_of_worker(*_: object) -> None:
        """Registers the end of a worker, which runs no functions of atexit."""
        util: Any = sys.modules.get("multiprocessing.util")
        if util is not None:
            util.Finalize(None, end, exitpriority=-100)

    def after_fork() -> None:
        util: Any = sys.modules.get("multiprocessing.util")
        if util is not None:  # it forgets what is to be finalized, and then calls these
            util.register_after_fork(application, end_of_worker)

    atexit.register(end)
    end_of_worker()
    os.register_at_fork(after_in_child=guarded(after_fork))


def _open(application: _Application, session: ReplacedSession, call: Any, opened: Any) -> None:
    """Opens `opened` as the session's config says."""
    # onnxruntime is imported completely by now, and the loader needs it
    from autotune.deploy.loader import prepare
    from autotune.deploy.opening import (
        adopt,
        opening_arguments,
        run_in_background,
        use_background_runs,
        use_tuned_runs,
    )
    from autotune.errors import ConfigError

    config = application.folder / str(session.folder) / CONFIG
    model, chosen, cache = prepare(config)
    settings, named = opening_arguments(chosen, cache=cache)
    for name in LOGGING:
        if call.settings is not None:
            setattr(settings, name, getattr(call.settings, name))
    native = application.module.__dict__["C"]
    _share_pool(application, settings)
    application.original(opened, str(model), settings, enable_fallback=0, **named)
    if not interface_of(opened).shows(session.interface):
        raise ConfigError("the tuned model has another interface than the recorded one")
    dropped = [name for name, _ in chosen.providers if name not in opened.get_providers()]
    if dropped:
        raise ConfigError(f"ONNX Runtime did not use {', '.join(dropped)}")
    if call.has_fallback:
        opened.enable_fallback()
    kind = application.module.__dict__["InferenceSession"]
    if chosen.has_tuned_runs:
        application.change(kind, use_tuned_runs)
        adopt(opened, chosen)
    own = call.settings or native.SessionOptions()
    if settings.intra_op_num_threads == 1 != own.intra_op_num_threads:
        application.change(kind, use_background_runs)
        run_in_background(opened)
    # as ONNX Runtime warns of what the application names, which may raise
    warned = (call.given.get("providers"), call.given.get("provider_options"))
    application.module.__dict__["check_and_normalize_provider_args"](
        *warned, native.get_available_providers()
    )


def _share_pool(application: _Application, settings: Any) -> None:
    """Lets a session take its threads from the pool of the process, where it has one."""
    from autotune.deploy.cpu import usable_cores

    threads = application.tuned.pool_threads
    if threads is None:
        return
    with application.lock:
        if not application.has_pool:
            native = application.module.__dict__["C"]
            native.set_global_thread_pool_sizes(min(threads, usable_cores()), 1)
            application.has_pool = True
    settings.use_per_session_threads = False
