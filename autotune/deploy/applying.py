"""Opens the sessions of an application tuned, without a change of the application.

:func:`apply` changes ONNX Runtime's session class in place. A session whose model and options are
those of the tuned application is opened by its config; all others, and any that the config does not
fit, stay as they were. Standard library until the first session that may be replaced.
"""

import atexit
import contextlib
import functools
import os
import sys
import threading
import warnings
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.deploy.application import CONFIG, ReplacedSession, TunedApplication
from autotune.deploy.files import is_file
from autotune.deploy.hook import VERBOSE_VARIABLE, when_imported
from autotune.deploy.passed import LOGGING, Digests, interface_of, understand, watch


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


def start_tuned(folder: str) -> None:
    """Does the same for a process that has not imported onnxruntime yet; the hook calls it.

    Raises:
        ConfigError: `folder` is no tuned application.
    """
    path = Path(folder)
    tuned = TunedApplication.read(path)
    verbose = os.environ.get(VERBOSE_VARIABLE) == "1"
    when_imported(functools.partial(_patch, tuned, path, verbose))


class _Application:
    """The sessions to replace, and what became of them."""

    def __init__(self, tuned: TunedApplication, module: ModuleType) -> None:
        self.tuned = tuned
        self.module = module
        self.digests = Digests()
        self.sizes = {session.size_bytes for session in tuned.sessions if session.folder}
        self.replaced: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()
        self.has_pool = False
        self.lock = threading.Lock()
        self.has_run_methods = False

    def find(self, call: Any) -> ReplacedSession | None:
        """Returns the session to replace that `call` would open; None if it is no such session."""
        model = call.model
        size = len(model) if isinstance(model, bytes) else Path(model).stat().st_size
        if size not in self.sizes:  # the size alone rules most other models out
            return None
        sha256 = self.digests.of(model)
        own = [item for item in self.tuned.sessions if item.sha256 == sha256]
        if not own:
            return None
        alike = [item for item in own if item.passed == call.passed]
        providers = call.passed.used_providers(self.module.__dict__["C"].get_available_providers())
        for session in alike:
            if session.providers == providers:
                return session if self._has_data(session, model) else None
        reason = "the application passes other options than those recorded"
        if alike:
            reason = f"ONNX Runtime uses {', '.join(providers)} here, unlike when it was recorded"
        self.kept[f"{own[0].name}: {reason}"] += 1
        return None

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
                self.kept[f"{session.name}: {item.file} is another file than recorded"] += 1
                return False
        return True

    def say(self) -> None:
        """Writes what was replaced to stderr."""
        for name, count in self.replaced.items():
            sys.stderr.write(f"autotune: {name} ran tuned ({count} session{'s' * (count > 1)})\n")
        for reason, count in self.kept.items():
            sys.stderr.write(f"autotune: left as it was ({count} times): {reason}\n")
        if not self.sizes:
            sys.stderr.write("autotune: the tuned application replaces no session\n")
        elif not self.replaced and not self.kept:
            sys.stderr.write("autotune: no session of this process was recorded\n")


def _patch(tuned: TunedApplication, folder: Path, verbose: bool, module: ModuleType) -> None:
    """Lets sessions that are opened from now on be replaced."""
    watch(module)
    application = _Application(tuned, module)
    if verbose:
        atexit.register(application.say)
    kind: Any = module.__dict__["InferenceSession"]
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
        call = session = None
        try:
            call = understand(module, arguments, named)
            session = application.find(call)
        except Exception:  # noqa: BLE001  # the application gets ONNX Runtime's own words for it
            session = None
        if session is None or session.folder is None:
            original(self, *arguments, **named)
            return
        before = dict(self.__dict__)  # a subclass may have set attributes already
        try:
            config = folder / session.folder / CONFIG
            _open(application, session, config, call, original, self)
        except Exception as error:  # noqa: BLE001  # whatever it is, the application's way is left
            self.__dict__.clear()
            self.__dict__.update(before)
            application.kept[f"{session.name}: {error}"] += 1
            with contextlib.suppress(Warning):  # `python -W error` would raise it
                warnings.warn(f"{session.name} runs as before: {error}", stacklevel=2)
            original(self, *arguments, **named)
        else:
            application.replaced[session.name] += 1

    kind.__init__ = __init__


def _open(
    application: _Application,
    session: ReplacedSession,
    config: Path,
    call: Any,
    original: Any,
    opened: Any,
) -> None:
    """Opens `opened` as the config says."""
    # onnxruntime is imported completely by now, and the loader needs it
    from autotune.deploy.loader import prepare
    from autotune.deploy.opening import adopt, opening_arguments, use_tuned_runs
    from autotune.errors import ConfigError

    model, chosen, cache = prepare(config)
    settings, named = opening_arguments(chosen, cache=cache)
    for name in LOGGING:
        if call.settings is not None:
            setattr(settings, name, getattr(call.settings, name))
    _share_pool(application, settings)
    original(opened, str(model), settings, enable_fallback=0, **named)
    if not interface_of(opened).shows(session.interface):
        raise ConfigError("the tuned model has another interface than the recorded one")
    dropped = [name for name, _ in chosen.providers if name not in opened.get_providers()]
    if dropped:
        raise ConfigError(f"ONNX Runtime did not use {', '.join(dropped)}")
    if call.has_fallback:
        opened.enable_fallback()
    if chosen.has_tuned_runs:
        if not application.has_run_methods:  # other sessions pay nothing for it
            application.has_run_methods = True
            kind = application.module.__dict__["InferenceSession"]
            use_tuned_runs(kind, kind)
        adopt(opened, chosen)


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
