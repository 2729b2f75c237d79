"""Whatever the recorder or the hook meets, the application has its sessions and its answers."""

import dis
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import numpy as np
import pytest

from autotune.applications import inputs, recorder, returned, start, watching
from autotune.deploy import applying, guard, hook, passed
from autotune.deploy.application import FILE, ReplacedSession, TunedApplication
from autotune.deploy.passed import Interface, Passed
from autotune.process.durable import write_json

_MODULES = (recorder, watching, inputs, returned, guard, hook, passed, applying)
# The bodies that call ONNX Runtime's own methods: a line of theirs beside that call has no guard
# but the function's own `try`, and what hands a fault of the application's on must not fail.
_ENTRIES = frozenset({"entry", "method", "bind", "__init__", "called", "swallow", "load_and_patch"})


class _Options:
    """Session options or run options that keep what is added."""

    only_execute_path_to_fetches = False

    def __init__(self) -> None:
        self.entries: list[tuple[str, str]] = []

    def add_session_config_entry(self, name: str, text: str) -> None:
        self.entries.append((name, text))

    def add_run_config_entry(self, name: str, text: str) -> None:
        self.entries.append((name, text))


class _Tensor:
    def __init__(self, name: str) -> None:
        self.name, self.type, self.shape = name, "tensor(float)", [1, 4]


class _Session:
    """A session that doubles its input."""

    def __init__(self, path_or_bytes: Any, sess_options: Any = None, providers: Any = None) -> None:
        self.model = path_or_bytes
        self._enable_fallback = True

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        if "x" not in input_feed:
            raise ValueError("no input x")
        return [2 * np.asarray(input_feed["x"])]

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        iobinding.result = 2 * iobinding.array

    def run_async(self, output_names: Any, input_feed: Any, callback: Any, user_data: Any) -> None:
        callback([2 * input_feed["x"]], user_data, "")

    def get_providers(self) -> list[str]:
        return ["CPUExecutionProvider"]

    def get_inputs(self) -> list[_Tensor]:
        return [_Tensor("x")]

    def get_outputs(self) -> list[_Tensor]:
        return [_Tensor("y")]

    def get_overridable_initializers(self) -> list[_Tensor]:
        return []

    def get_modelmeta(self) -> Any:
        return type("Meta", (), {"custom_metadata_map": {"a": "b"}})


class _Binding:
    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        self.array = arr_on_cpu

    def bind_output(self, name: str) -> None: ...


def runtime() -> ModuleType:
    """Returns a module like ONNX Runtime's, with classes of its own that can be patched."""
    native = ModuleType("C")
    native.__dict__.update(
        SessionOptions=type("SessionOptions", (_Options,), {}),
        RunOptions=type("RunOptions", (_Options,), {}),
        get_all_providers=lambda: ["CPUExecutionProvider"],
        get_available_providers=lambda: ["CPUExecutionProvider"],
    )
    module = ModuleType(hook.MODULE)
    for name, kind in (("InferenceSession", _Session), ("IOBinding", _Binding)):
        methods = {key: item for key, item in vars(kind).items() if callable(item)}
        setattr(module, name, type(name, (), methods))
    module.__dict__["C"] = native
    return module


def application(
    module: Any, model: Path, before_each: Callable[[], object] = lambda: None
) -> list[object]:
    """Opens sessions and calls them in every way; returns what it sees.

    Args:
        before_each: Called before each thing that it does.
    """
    settings = module.C.SessionOptions()
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    seen: list[object] = [settings.entries]
    array = np.ones((1, 4), np.float32)

    def called(*given: object) -> None:
        seen.append(given[1:])

    for given in (str(model), model.read_bytes()):
        before_each()
        session = module.InferenceSession(given, sess_options=settings)
        before_each()
        options = module.C.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        before_each()
        seen += session.run(None, {"x": array})
        before_each()
        seen += session.run(["y"], input_feed={"x": array}, run_options=options)
        before_each()
        seen += session.run(None, {"x": [[1.0] * 4]})
        before_each()
        try:
            session.run(None, {"z": array})
        except ValueError as error:
            seen.append(str(error))
        before_each()
        binding = module.IOBinding()
        binding.bind_cpu_input("x", array)
        binding.bind_output("y")
        before_each()
        session.run_with_iobinding(binding)
        seen.append(binding.result)
        before_each()
        session.run_async(None, {"x": array}, called, "me")
        seen += [session.model == given, type(session) is module.InferenceSession]
    return [item.tolist() if isinstance(item, np.ndarray) else item for item in seen]


def _hooked(module: Any, model: Path, folder: Path) -> None:
    """Records the sessions of a module, and opens them as a tuned application says."""
    passed.watch.cache_clear()
    for name, patch in (("a.rec", _record), ("a.tuned", _apply)):
        try:
            patch(module, model, folder / name)
        except Exception:  # noqa: BLE001  # as the hook does
            continue


def _record(module: Any, _: Path, folder: Path) -> None:
    if not folder.exists():
        start.make_folder(folder, max_mib=1, keep_inputs=True)
    own = recorder.Recorder(folder)
    own.begin()
    passed.watch(module)
    watching.patch_sessions(module, own)
    own.begin_in_child()


def _apply(module: Any, model: Path, folder: Path) -> None:
    if not (folder / FILE).exists():
        folder.mkdir(exist_ok=True)
        session = ReplacedSession(
            name="net",
            sha256=passed.Digests().of(str(model)),
            size_bytes=model.stat().st_size,
            data_files=(),
            passed=Passed(
                options={},
                entries={"session.intra_op.allow_spinning": "0"},
                dimensions={},
                providers=None,
                disabled_optimizers=(),
                foreign=(),
            ),
            providers=("CPUExecutionProvider",),
            interface=Interface(inputs=(), outputs=(), metadata={}, overridable=()),
            folder="net",  # it holds no config, so that the session stays as it is
        )
        write_json(TunedApplication(sessions=(session,)).to_json(), folder / FILE)
    applying._patch(TunedApplication.read(folder), folder, True, module)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that stands for a model; nothing of a patch stays in this process."""
    monkeypatch.setitem(sys.modules, hook.MODULE, runtime())
    monkeypatch.setitem(sys.modules, "onnxruntime", ModuleType("onnxruntime"))
    monkeypatch.setattr("os.register_at_fork", lambda **_: None)
    monkeypatch.setattr("atexit.register", lambda *_: None)
    (tmp_path / "net.onnx").write_bytes(b"a model")
    return tmp_path / "net.onnx"


def _codes(module: ModuleType) -> Iterator[CodeType]:
    """Yields the code of each function of a module, those within others included."""
    source = compile(Path(str(module.__file__)).read_text(), str(module.__file__), "exec")
    waiting = [const for const in source.co_consts if isinstance(const, CodeType)]
    while waiting:
        code = waiting.pop()
        nested = [const for const in code.co_consts if isinstance(const, CodeType)]
        waiting += nested
        yield code


def _lines() -> Iterator[tuple[str, str, int]]:
    for module in _MODULES:
        for code in _codes(module):
            if code.co_name not in _ENTRIES:
                for _, line in dis.findlinestarts(code):
                    if line > code.co_firstlineno:
                        yield code.co_filename, code.co_name, line


def _throw() -> None:
    raise RuntimeError("thrown by the test")


def _throwing_at(
    places: set[tuple[str, int]],
    thrown: list[tuple[str, int]],
    throw: Callable[[], None] = _throw,
) -> Callable[..., Any]:
    """Returns a tracer that raises at the first of the places that runs."""
    files = {file for file, _ in places}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        place = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and place in places and frame.f_code.co_name not in _ENTRIES:
            places.discard(place)
            thrown.append(place)
            throw()
        return trace

    return trace


def test_a_fault_at_any_line_leaves_the_application_alone(model: Path, tmp_path: Path) -> None:
    """One fault after another, at each line that runs at all, whatever was thrown before.

    Python stops to trace where a tracer raises, so it is told to go on before each call.
    """
    expected = application(runtime(), model)
    left = {(file, line) for file, _, line in _lines()}
    tried = 0
    while True:
        module = runtime()
        thrown: list[tuple[str, int]] = []
        go_on = partial(sys.settrace, _throwing_at(left, thrown))
        go_on()
        try:
            _hooked(module, model, tmp_path)
            seen = application(module, model, go_on)
        finally:
            sys.settrace(None)
        assert seen == expected, f"a fault at {thrown} is seen by the application"
        if not thrown:
            break
        tried += len(thrown)
    assert tried > 120, "lines of the recorder and the hook ran"


@pytest.mark.parametrize(
    "owner",
    [
        recorder.Recorder,
        recorder,
        watching,
        inputs,
        returned.Returned,
        passed,
        applying._Application,
        applying,
        guard,
        hook,
    ],
    ids=lambda owner: owner.__name__.rpartition(".")[2],
)
def test_each_function_may_fail_each_time(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any
) -> None:
    """A function that always raises changes nothing either."""
    expected = application(runtime(), model)

    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    here = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    for name, function in list(vars(owner).items()):
        if not callable(function) or isinstance(function, type) or name.startswith("__"):
            continue
        if getattr(function, "__module__", here) != here:
            continue
        module = runtime()
        with monkeypatch.context() as patch:
            _hooked(module, model, tmp_path)  # the hook is there, and then fails
            patch.setattr(owner, name, fails)
            assert application(module, model) == expected, f"{name} is seen by the application"


def test_what_a_signal_handler_raises_is_the_applications(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alarm that strikes inside the recorder ends the call as it would without it."""

    def on_alarm(*_: object) -> None:
        raise TimeoutError("too late")

    monkeypatch.setattr(signal, "getsignal", lambda number: on_alarm if number == 14 else None)
    module = runtime()
    _hooked(module, model, tmp_path)
    session = module.InferenceSession(str(model))
    # the end of the session is recorded as well, after the alarm
    with monkeypatch.context() as patch:
        patch.setattr(recorder.Recorder, "put", on_alarm)
        with pytest.raises(TimeoutError, match="too late"):
            session.run(None, {"x": np.ones((1, 4), np.float32)})


@pytest.mark.parametrize("kind", [TimeoutError, KeyboardInterrupt])
def test_what_hides_an_alarm_is_not_swallowed(
    monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    """An archive that is closed in the middle of its writing raises ValueError instead."""

    def on_alarm(*_: object) -> None:
        raise kind("too late")

    def close() -> None:
        try:
            on_alarm()
        finally:
            raise ValueError("a writing handle is open")

    monkeypatch.setattr(signal, "getsignal", lambda number: on_alarm if number == 14 else None)
    with pytest.raises(kind, match="too late"):
        guard.guarded(close)()


# Python prints what the end of a session raises, and goes on
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_alarm_at_any_line_of_the_recorder_is_seen(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The TimeoutError of an alarm is an OSError, as that of a full disk is."""

    def on_alarm(*_: object) -> None:
        raise TimeoutError("too late")

    monkeypatch.setattr(signal, "getsignal", lambda number: on_alarm if number == 14 else None)
    # the garbage collector calls it, and prints what it raises
    monkeypatch.setattr(recorder.Recorder, "_closed", lambda *_: None)
    files = (recorder.__file__, watching.__file__)
    left = {(file, line) for file, name, line in _lines() if file in files and name != "<lambda>"}
    tried = 0
    while True:
        module = runtime()
        thrown: list[tuple[str, int]] = []
        _record(module, model, tmp_path / "a.rec")
        go_on = partial(sys.settrace, _throwing_at(left, thrown, on_alarm))
        is_seen = False
        try:
            application(module, model, go_on)
        except TimeoutError:
            is_seen = True
        finally:
            sys.settrace(None)
        assert is_seen or not thrown, f"an alarm at {thrown} is lost"
        if not thrown:
            break
        tried += len(thrown)
    assert tried > 60


def test_an_alarm_while_a_session_opens_tuned_is_seen(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its TimeoutError is an OSError, which means a missing file where the loader looks for one."""

    def on_alarm(*_: object) -> None:
        raise TimeoutError("too late")

    look = Path.stat

    def look_at_the_alarm(path: Path, **named: Any) -> Any:
        if path.name == "best.json":
            signal.raise_signal(signal.SIGALRM)
        return look(path, **named)

    earlier = signal.signal(signal.SIGALRM, on_alarm)
    try:
        module = runtime()
        _hooked(module, model, tmp_path)
        settings = module.C.SessionOptions()
        settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
        monkeypatch.setattr(Path, "stat", look_at_the_alarm)
        with pytest.raises(TimeoutError, match="too late"):
            module.InferenceSession(str(model), sess_options=settings)
        assert signal.getsignal(signal.SIGALRM) is on_alarm
        with pytest.raises(TimeoutError, match="too late"):
            signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, earlier)
