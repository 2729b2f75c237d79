"""Recording an application, and running it tuned: nothing that it sees changes."""

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from command_line import printed, run
from onnx import TensorProto, helper
from test_config import make_config

from autotune.applications import recording as recording_module
from autotune.applications import timing
from autotune.applications.command import (
    hooked_environment,
    record,
    site_folder,
    tuned_environment,
)
from autotune.applications.inputs import BOUND, patch_binding
from autotune.applications.layout import BUDGET, CALL, END
from autotune.applications.recording import Recording
from autotune.applications.writing import Replacement, write_application
from autotune.deploy import applying, passed
from autotune.deploy.application import FILE, ReplacedSession, TunedApplication
from autotune.deploy.files import digest_files
from autotune.deploy.hook import APPLY_VARIABLE, RECORD_VARIABLE, REPORT_VARIABLE
from autotune.deploy.loaded import ModelFile
from autotune.deploy.passed import Call, Interface, Passed, PassedProvider
from autotune.deploy.session import SessionConfig
from autotune.errors import CannotMeasureError, ConfigError, RequestError
from autotune.report.application import view_command, view_recording

APPLICATION = Path(__file__).parent / "hooked_application.py"


def write_model(path: Path, scale: float = 1.0) -> Path:
    """Writes a model ``y = relu(scale * x)`` with metadata of its own."""
    factor = helper.make_tensor("factor", TensorProto.FLOAT, [1], [scale])
    nodes = [
        helper.make_node("Mul", ["x", "factor"], ["scaled"]),
        helper.make_node("Relu", ["scaled"], ["y"]),
    ]
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 64]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", tensors[:1], tensors[1:], [factor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model.metadata_props.add(key="characters", value="abc")
    onnx.save(model, path)
    return path


def make_tuned(folder: Path, recording: Recording, model: Path) -> None:
    """Writes a tuned application that opens `model` in place of each recorded session."""
    file = ModelFile(
        file=model.name,
        sha256=digest_files([model]),
        size_bytes=model.stat().st_size,
        source_sha256="0" * 64,
    )
    tuned = make_config(
        model=file,
        session=SessionConfig(
            options={"intra_op_num_threads": 1},
            run_entries={"memory.enable_memory_arena_shrinkage": "cpu:0"},
        ),
    )
    write_application(
        folder,
        [
            Replacement(session=session, config=tuned, source=model.parent)
            for session in recording.sessions
        ],
    )


def output_of(environment: dict[str, str], *arguments: str) -> tuple[str, str]:
    """Runs the application; returns what it prints to stdout and to stderr."""
    done = subprocess.run(
        [sys.executable, str(APPLICATION), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A model, the recording of the application with it, and what the application printed."""
    folder = tmp_path_factory.mktemp("applications")
    model = write_model(folder / "relu.onnx")
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(
        "import builtins; builtins.users_sitecustomize = True\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(folder / "site")}
    plain = output_of(environment, str(model))[0]
    script = f"import os; os.environ['PYTHONPATH'] = {str(folder / 'site')!r}; "
    script += (
        "from autotune.applications.command import record; from pathlib import Path; "
        f"record([{sys.executable!r}, {str(APPLICATION)!r}, {str(model)!r}], "
        f"Path({str(folder / 'app.rec')!r}), max_mib=1, keep_inputs=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == plain
    assert plain.startswith("True True")
    return model, folder / "app.rec", plain


@pytest.mark.process
def test_a_recording_holds_what_ran(recorded: tuple[Path, Path, str]) -> None:
    """Sessions are told apart by model and options; every way to call them is seen."""
    model, folder, _ = recorded
    recording = Recording.read(folder)
    assert (recording.processes[0].base_mib > 10) == (sys.platform == "linux")
    assert recording.end is not None
    assert recording.end.exit_code == 0
    assert len(recording.processes) == 3, "the application, its fork, and its spawned child"
    passed = {tuple(session.opened.passed.options): session for session in recording.sessions}
    assert len(recording.sessions) == 4, "bytes and path alike: the defaults are one session"
    threaded = [s for s in recording.sessions if "intra_op_num_threads" in s.opened.passed.options]
    assert len(threaded) == 3, "two of them name their providers"
    assert len(recording.unknown) == 3, "two that ONNX Runtime refuses, and a missing file"
    assert "no execution providers" in str(view_recording(recording).blocks)
    first = max(threaded, key=lambda session: session.calls)
    assert first.calls == 9, "three runs, one asynchronous, one of values, four threads"
    assert first.opened.passed.entries == {"session.intra_op.allow_spinning": "0"}
    default = passed[()]
    assert (default.count, default.calls) == (3, 3), "opened twice, and known to the fork"
    assert (default.is_forked, first.is_forked) == (True, False)
    assert {session.opened.sha256 for session in recording.sessions} == {digest_files([model])}
    assert first.opened.providers == ("CPUExecutionProvider",)
    asked = {(shape.inputs[0].shape, shape.outputs): shape for shape in first.shapes.values()}
    assert set(asked) == {((1, 64), None), ((1, 64), ("y",)), ((2, 64), None)}
    shape = asked[(1, 64), None]
    feeds = list(shape.feeds())
    assert (shape.calls, len(feeds)) == (7, 4), "the first, second, fourth, and one of values"
    assert np.array_equal(feeds[0]["x"], np.linspace(-1, 1, 64, dtype=np.float32)[None])


@pytest.mark.process
def test_a_tuned_application_sees_no_difference(
    recorded: tuple[Path, Path, str], tmp_path: Path
) -> None:
    """Sessions are replaced in every process; another model with another face is not opened."""
    model, folder, plain = recorded
    recording = Recording.read(folder)
    make_tuned(tmp_path / "app.tuned", recording, model)
    environment = tuned_environment(tmp_path / "app.tuned", verbose=True)
    said, errors = output_of(environment, str(model))
    assert said == plain.replace("True True", "False True", 1).replace("(True", "(False")
    assert errors.count("ran tuned") >= 3

    script = f"import autotune; autotune.apply({str(tmp_path / 'app.tuned')!r}, verbose=True)\n"
    script += "import numpy, onnxruntime; settings = onnxruntime.SessionOptions()\n"
    script += f"session = onnxruntime.InferenceSession({str(model)!r}, settings)\n"
    script += "print(session.run(None, {'x': numpy.ones((2, 64), 'f')})[0].sum())\n"
    script += "print(session._enable_fallback)"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "128.0\nTrue\n"
    assert "tuned elsewhere" in done.stderr, "as `load` says it"
    assert done.stderr.endswith("ran tuned (1 session)\n")

    other = write_model(tmp_path / "other.onnx", scale=3)
    grown = onnx.load(other)
    grown.metadata_props[0].value = "xyz"
    onnx.save(grown, other)
    make_tuned(tmp_path / "other.tuned", recording, other)
    environment = tuned_environment(tmp_path / "other.tuned", verbose=True)
    said, errors = output_of(environment, str(model))
    assert said == plain.replace("True True", "False True", 1).replace("(True", "(False")
    assert "another interface" in errors
    assert "ran tuned" not in errors


@pytest.mark.process
def test_a_kill_leaves_a_recording(tmp_path: Path) -> None:
    """What was recorded until then is read; what came last may be cut."""
    model = write_model(tmp_path / "relu.onnx")
    script = (
        "import onnxruntime, numpy as np, os, signal\n"
        f"session = onnxruntime.InferenceSession({str(model)!r})\n"
        "for _ in range(10): session.run(None, {'x': np.zeros((1, 64), np.float32)})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    folder = tmp_path / "app.rec"
    code = record([sys.executable, "-c", script], folder, max_mib=1, keep_inputs=False)
    assert code == 128 + signal.SIGKILL
    (folder / END).unlink()
    lines = next(folder.glob("process-*.jsonl"))
    lines.write_bytes(lines.read_bytes() + b'{"kind": "sha')
    recording = Recording.read(folder)
    assert recording.end is None
    assert recording.sessions[0].calls == 10
    assert not any(shape.files for shape in recording.sessions[0].shapes.values())
    assert 0 < recording.wall_s < time.monotonic()
    lines.write_bytes(b"nonsense\n" + lines.read_bytes())
    with pytest.raises(RequestError, match="line 1"):
        Recording.read(folder)


@pytest.mark.process
def test_each_fork_and_each_session_at_once_is_recorded(tmp_path: Path) -> None:
    """Forks may import onnxruntime later; a session for each request is one that is seen again."""
    script = (
        "import os, sys\n"
        "for _ in range(2):\n"
        "    if os.fork():\n"
        "        os.wait()\n"
        "        continue\n"
        "    import numpy, onnxruntime\n"
        "    for _ in range(3):\n"
        "        session = onnxruntime.InferenceSession(sys.argv[1])\n"
        "        session.run(None, {'x': numpy.zeros((1, 64), 'f')})\n"
        "        del session\n"
        "    both = [onnxruntime.InferenceSession(sys.argv[1]) for _ in range(2)]\n"
        "    os._exit(0)\n"
    )
    command = [sys.executable, "-c", script, str(write_model(tmp_path / "relu.onnx"))]
    assert record(command, tmp_path / "app.rec", max_mib=1, keep_inputs=True) == 0
    recording = Recording.read(tmp_path / "app.rec")
    assert [len(process.calls) for process in recording.processes] == [3, 3]
    (session,) = recording.sessions
    assert (session.count, session.calls) == (4, 6), "each process has two at once"
    (shape,) = session.shapes.values()
    assert len(shape.files) == 4, "the first and the second input of each process"


@pytest.mark.process
def test_a_fork_that_calls_no_hook_is_recorded(tmp_path: Path) -> None:
    """C code forks without a word to Python, as uwsgi does: two processes, two files of calls."""
    script = (
        "import ctypes, os, sys, numpy, onnxruntime\n"
        "session = onnxruntime.InferenceSession(sys.argv[1])\n"
        "forked = ctypes.CDLL(None).fork()\n"
        "for _ in range(5): session.run(None, {'x': numpy.zeros((1, 64), 'f')})\n"
        "os._exit(0) if forked == 0 else os.waitpid(forked, 0)\n"
    )
    command = [sys.executable, "-c", script, str(write_model(tmp_path / "relu.onnx"))]
    assert record(command, tmp_path / "app.rec", max_mib=1, keep_inputs=True) == 0
    recording = Recording.read(tmp_path / "app.rec")
    assert [len(process.calls) for process in recording.processes] == [5, 5]
    assert recording.sessions[0].is_forked


@pytest.mark.process
def test_a_process_records_itself(tmp_path: Path) -> None:
    """Nothing is said at the end, where Python takes sessions and modules apart."""
    script = (
        "import sys, autotune\n"
        "autotune.record(sys.argv[1])\n"
        "import numpy, onnxruntime\n"
        "session = onnxruntime.InferenceSession(sys.argv[2])\n"
        "session.run(None, {'x': numpy.zeros((1, 64), 'f')})\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "a.rec")]
    command.append(str(write_model(tmp_path / "relu.onnx")))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    recording = Recording.read(tmp_path / "a.rec")
    assert [session.calls for session in recording.sessions] == [1]
    assert recording.end is not None
    assert (tmp_path / "a.rec").stat().st_mode & 0o077 == 0, "it may hold private inputs"


@pytest.mark.process
def test_the_room_for_inputs_is_shared_by_all_processes(tmp_path: Path) -> None:
    """Several may take of it at the same moment."""
    (tmp_path / BUDGET).write_bytes(bytes(8))
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from autotune.applications.recorder import Recorder\n"
        "recorder = Recorder(Path(sys.argv[1]))\n"
        "recorder._reset()\n"
        "forked = os.fork()\n"
        "for _ in range(2000): recorder._reserve(1, 10**6)\n"
        "if forked: os.wait()\n"
    )
    printed(script, tmp_path)
    assert struct.unpack("<Q", (tmp_path / BUDGET).read_bytes()) == (4000,)


@pytest.mark.process
def test_the_command_says_what_it_saw(tmp_path: Path) -> None:
    """The command's exit code is passed on, and a command without a session is told."""
    done = run(tmp_path, "record", "-o", "a.rec", "--", sys.executable, "-c", "raise SystemExit(5)")
    assert done.returncode == 5
    assert "No session was recorded" in done.stderr
    done = run(tmp_path, "record", "-o", "a.rec", "--", "true")
    assert (done.returncode, "exists already" in done.stderr) == (2, True)
    spoil = "import os, sys; f = os.environ['AUTOTUNE_RECORD'] + '/process-1-a.jsonl'; "
    spoil += "open(f, 'w').write('x' + chr(10)); sys.exit(5)"
    done = run(tmp_path, "record", "-o", "c.rec", "--", sys.executable, "-c", spoil)
    assert (done.returncode, "record the application again" in done.stderr) == (5, True)
    done = run(tmp_path, "record", "-o", "b.rec", "--", "no-such-program")
    assert (done.returncode, (tmp_path / "b.rec").exists()) == (2, False)
    done = run(tmp_path, "run", "a.rec", "--", "true")
    assert done.returncode == 2
    assert "`autotune study a.rec` tunes it" in done.stderr


def write_recording(folder: Path, **changes: object) -> list[str]:
    """Writes a recording of one session and a shape; returns the lines of its process."""
    settings = {"autotune": "0", "max_mib": 1, "keep_inputs": True, "began_ns": 0}
    settings["format"] = "autotune-recording/3"
    (folder / "recording.json").write_text(json.dumps(settings))
    passed: dict[str, Any] = {"options": {}, "entries": {}, "dimensions": {}, "providers": None}
    line = {
        "kind": "session",
        "number": 0,
        "sha256": "0",
        "size_bytes": 1,
        "path": "/m.onnx",
        "is_copied": False,
        "load_ns": 1,
        "held_kib": 0,
        "events": 0,
        "passed": {**passed, "disabled_optimizers": [], "foreign": []},
        "providers": [],
        "interface": {"inputs": [], "outputs": [], "metadata": {}, "overridable": []},
    }
    shape = {"kind": "shape", "number": 4, "session": 0, "inputs": []}
    shape |= {"outputs": None, "run_options": {}, "fed": {}}
    texts = [json.dumps(item) + "\n" for item in (line | changes, shape)]
    (folder / "process-1-a.jsonl").write_text("".join(texts))
    return texts


def test_a_hostile_recording_is_refused(tmp_path: Path) -> None:
    """Calls of unknown shapes are left out; files of another version are refused."""
    texts = write_recording(tmp_path)
    stolen = {"kind": "input", "shape": 4, "file": "../../passwd"}
    calls = [
        (5, 0, 1, 10, 30, 0, 0, 0),
        (9, 0, 1, 10, 20, 0, 0, 0),
        (5, 0, 1, 30, 10, 0, 0, 0),
    ]
    (tmp_path / "calls-1-a-0.bin").write_bytes(b"".join(CALL.pack(*call) for call in calls) + b"x")
    (session,) = Recording.read(tmp_path).sessions
    assert (session.calls, session.name) == (1, "m")
    (tmp_path / "process-1-a.jsonl").write_text("".join(texts) + json.dumps(stolen) + "\n")
    with pytest.raises(RequestError, match="bare file name"):
        Recording.read(tmp_path)
    settings = tmp_path / "recording.json"
    settings.write_text(settings.read_text().replace("recording/3", "recording/9"))
    with pytest.raises(RequestError, match="reads 'autotune-recording/3'"):
        Recording.read(tmp_path)


@pytest.mark.parametrize("path", ["", "/m/...onnx", "/m/studies.onnx", "/m/provider-cache.onnx"])
def test_a_session_has_a_folder_of_its_own(tmp_path: Path, path: str) -> None:
    """Its name is that of the model's file, and may come from a stranger."""
    write_recording(tmp_path, path=path)
    (session,) = Recording.read(tmp_path).sessions
    assert session.name == "model-0"


def test_a_copied_model_is_that_of_the_application_while_it_is_there(tmp_path: Path) -> None:
    """Weights in files of their own lie beside it."""
    model = write_model(tmp_path / "relu.onnx")
    sha256 = digest_files([model])
    write_recording(tmp_path, path=str(model), sha256=sha256, is_copied=True)
    recording = Recording.read(tmp_path)
    assert recording.model_path(recording.sessions[0]) == model
    write_model(model, scale=3)
    assert recording.model_path(recording.sessions[0]) == tmp_path / "models" / f"{sha256}.onnx"


def test_of_too_many_processes_those_that_did_most_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_recording(tmp_path)
    (tmp_path / "process-0-a.jsonl").write_text('{"kind": "unknown", "reason": "small"}\n')
    monkeypatch.setattr(recording_module, "_MOST_PROCESSES", 1)
    assert [session.name for session in Recording.read(tmp_path).sessions] == ["m"]


def test_a_tuned_application_is_data(tmp_path: Path) -> None:
    """A file that names another folder, or another format, is refused."""
    with pytest.raises(ConfigError, match="autotune study"):
        TunedApplication.read(tmp_path)
    write_application(tmp_path, [])
    assert TunedApplication.read(tmp_path).sessions == ()
    done = run(tmp_path, "run", str(tmp_path), "--print-environment", "--verbose")
    assert f"AUTOTUNE_APPLY={tmp_path}" in done.stdout
    assert "AUTOTUNE_VERBOSE=1" in done.stdout
    data = json.loads((tmp_path / FILE).read_text())
    for changed in ({"format": "x"}, {"pool_threads": 10**6}, {"extra": 1}):
        (tmp_path / FILE).write_text(json.dumps(data | changed))
        with pytest.raises(ConfigError):
            TunedApplication.read(tmp_path)


@pytest.mark.process
@pytest.mark.parametrize("variable", [RECORD_VARIABLE, APPLY_VARIABLE])
def test_the_hook_is_light(tmp_path: Path, variable: str) -> None:
    """A process that does not import onnxruntime pays for next to nothing, and reads no file."""
    script = "import sys; print(*sorted(m for m in sys.modules if m.startswith('autotune')))"
    heavy = "json typing enum dataclasses pathlib numpy".split()
    script += f"; print(*[m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sitecustomize; {script}"],
        env=hooked_environment({variable: str(tmp_path)}),
        capture_output=True,
        text=True,
        check=True,
    )
    ours = "autotune autotune.deploy autotune.deploy.hook autotune.deploy.telemetry"
    assert (done.stdout.split("\n"), done.stderr) == ([ours, "", ""], "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_a_recording_that_is_gone_leaves_the_application_alone(tmp_path: Path) -> None:
    """A worker that starts later inherits the variable, and the folder was removed."""
    environment = hooked_environment({RECORD_VARIABLE: str(tmp_path / "gone.rec")})
    done = subprocess.run(
        [sys.executable, "-c", "import onnxruntime; print(onnxruntime.InferenceSession.__name__)"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "InferenceSession"
    assert "onnxruntime stays as it is: No such file" in done.stderr


@pytest.mark.process
def test_a_module_of_the_application_has_the_name_of_this_package(tmp_path: Path) -> None:
    """The application gets its own module, and is not recorded."""
    (tmp_path / "autotune.py").write_text("mine = 5\n")
    (tmp_path / "app.py").write_text("import autotune; print(autotune.mine)\n")
    commands = ([str(tmp_path / "app.py")], ["-m", "app"], ["-c", "import app"])
    environment = hooked_environment({RECORD_VARIABLE: str(tmp_path / "app.rec")})
    for command in commands:
        done = subprocess.run(
            [sys.executable, *command],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "5\n"
        assert "the application has another module autotune" in done.stderr


@pytest.mark.process
def test_an_import_hook_that_asks_no_other_is_named(tmp_path: Path) -> None:
    script = (
        "import sys, importlib.machinery as m\n"
        "class Finder:\n"
        "    find_spec = m.PathFinder.find_spec\n"
        "sys.meta_path.insert(0, Finder)\n"
        "import onnxruntime; print(onnxruntime.InferenceSession.__init__.__module__)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=hooked_environment({RECORD_VARIABLE: str(tmp_path / "app.rec")}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "onnxruntime.capi.onnxruntime_inference_collection\n"
    assert "own import hook found it first" in done.stderr


def test_the_current_folder_stays_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty item of PYTHONPATH stands for it."""
    monkeypatch.setenv("PYTHONPATH", f"{os.pathsep}/opt/lib")
    items = hooked_environment({})["PYTHONPATH"].split(os.pathsep)
    assert items == [str(site_folder()), "", "/opt/lib"]


def test_a_command_as_it_is_has_no_tuned_application(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable may be set in a container: nothing is recorded or compared by it."""
    monkeypatch.setenv(APPLY_VARIABLE, "/app.tuned")
    assert APPLY_VARIABLE not in hooked_environment({RECORD_VARIABLE: "/app.rec"})
    applied: list[str | None] = []
    reports = ['{"session": "relu", "reason": ""}', '{"session": "b", "reason": "other options"}']

    def run_once(_: object, environment: dict[str, str]) -> timing.CommandRun:
        applied.append(environment.get(APPLY_VARIABLE))
        if file := environment.get(REPORT_VARIABLE):
            Path(file).write_text("\n".join(reports))
        return timing.CommandRun(seconds=1.0, peak_mib=1.0, exit_code=0, output=b"")

    monkeypatch.setattr(timing, "run_once", run_once)
    done = timing.compare_command(Path("/other.tuned"), ["true"], lambda *_: None)
    assert set(applied) == {None, "/other.tuned"}
    assert (done.replaced, done.kept, done.same_output) == (("relu",), ("b: other options",), None)
    assert "answers were not compared" in str(view_command(done).blocks)
    reports.pop(0)
    with pytest.raises(CannotMeasureError, match=r"no session ran tuned.*b: other options"):
        timing.compare_command(Path("/other.tuned"), ["true"], lambda *_: None)


@pytest.mark.parametrize(
    ("fails", "remedy"),
    [("as it is", "mend it first"), ("tuned", "`autotune run --verbose '/my app' -- ...` shows")],
)
def test_a_command_that_fails_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, fails: str, remedy: str
) -> None:
    def run_once(_: object, environment: dict[str, str]) -> timing.CommandRun:
        file = environment.get(REPORT_VARIABLE)
        if file:
            Path(file).write_text('{"session": "relu", "reason": ""}')
        failed = (fails == "tuned") == bool(file)
        return timing.CommandRun(seconds=1.0, peak_mib=1.0, exit_code=int(failed), output=b"")

    monkeypatch.setattr(timing, "run_once", run_once)
    with pytest.raises(
        CannotMeasureError, match=f"the command {fails} ends with exit code 1; "
    ) as e:
        timing.compare_command(Path("/my app"), ["true"], lambda *_: None)
    assert remedy in str(e.value)


def test_initializers_of_the_application_are_not_kept_alive() -> None:
    """Options live as long as their session, and what an application adds to them may be large."""

    class Options:
        def add_initializer(self, name: str, value: object) -> None: ...

    passed_options = Options()
    value = np.ones(3)
    held = weakref.ref(value)
    add = passed._noting("add_initializer", Options.add_initializer)
    add(passed_options, "w", value)
    assert passed._notes[passed_options] == [None, ("add_initializer", ())]
    del value
    assert held() is None


def test_inputs_that_are_bound_by_keywords_are_known() -> None:
    class Binding:
        def bind_input(self, name: str, *arguments: object, **named: object) -> None: ...
        def bind_cpu_input(self, name: str, arr_on_cpu: object) -> None: ...
        def bind_ortvalue_input(self, name: str, ortvalue: object) -> None: ...
        def clear_binding_inputs(self) -> None: ...

    patch_binding(Binding)
    binding = Binding()
    named = {"device_type": "cpu", "device_id": 0, "element_type": np.float32}
    binding.bind_input(name="x", **named, shape=(2, 3), buffer_ptr=0)
    assert getattr(binding, BOUND)["x"].shape == (2, 3)
    binding.bind_cpu_input("y", object())  # no array: the call is not recorded
    assert getattr(binding, BOUND) is None
    binding.clear_binding_inputs()
    assert not hasattr(binding, BOUND)


def test_a_subclass_keeps_its_attributes_where_the_config_does_not_open(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the end one line says why, where no session ran tuned."""

    class Session:
        def __init__(self, path: str) -> None:
            self.path = path

    class Named(Session):
        def __init__(self, path: str) -> None:
            self.name = "mine"
            super().__init__(path)

    def fails(*arguments: Any) -> None:
        arguments[-1].half_open = True
        raise ConfigError("VNNI is missing")

    ends: list[Any] = []
    module = ModuleType("onnxruntime")
    module.__dict__["InferenceSession"] = Session
    replaced = SimpleNamespace(folder="relu", name="relu", size_bytes=1)
    monkeypatch.setattr(applying, "watch", lambda _: None)
    monkeypatch.setattr(applying, "understand", lambda *_: None)
    monkeypatch.setattr(applying, "_at_end", ends.append)
    monkeypatch.setattr(applying._Application, "find", lambda *_: replaced)
    monkeypatch.setattr(applying, "_open", fails)
    tuned: Any = SimpleNamespace(sessions=(replaced,), pool_threads=None)
    applying._patch(tuned, Path(), False, module)
    assert vars(Named("model.onnx")) == {"name": "mine", "path": "model.onnx"}
    ends[0].end()
    said = capsys.readouterr().err
    assert said == "autotune: no session ran tuned: relu: VNNI is missing\n"


@pytest.mark.parametrize(
    ("named", "recorded", "listed", "loads", "is_replaced"),
    [
        ("CUDA CPU", "CPU", "CPU", "", True),
        ("CUDA CPU", "CPU", "CUDA CPU", "CUDA", False),
        ("CUDA CPU", "CPU", "CUDA CPU", "", True),
        ("CUDA CPU", "CUDA CPU", "CPU", "", False),
        ("Azure CPU", "Azure CPU", "Azure CPU", "Azure", True),
        ("Azure CPU", "CPU", "Azure CPU", "Azure", True),
    ],
)
def test_a_session_whose_nodes_other_providers_would_run_is_not_replaced(
    tmp_path: Path, named: str, recorded: str, listed: str, loads: str, is_replaced: bool
) -> None:
    """What counts is what runs nodes: a provider that is listed may not load, or run none."""
    model = write_model(tmp_path / "relu.onnx")

    def names(words: str) -> list[str]:
        return [f"{name}ExecutionProvider" for name in words.split()]

    passed = Passed(
        options={},
        entries={},
        dimensions={},
        providers=tuple(PassedProvider(name=name, options={}) for name in names(named)),
        disabled_optimizers=(),
        foreign=(),
    )
    session = ReplacedSession(
        name="relu",
        sha256=digest_files([model]),
        size_bytes=model.stat().st_size,
        data_files=(),
        passed=passed,
        providers=tuple(names(recorded)),
        interface=Interface(inputs=(), outputs=(), metadata={}, overridable=()),
        folder="relu",
    )

    class Session:
        def get_providers(self) -> list[str]:
            return names(loads)

    module: Any = SimpleNamespace(C=SimpleNamespace(get_available_providers=lambda: names(listed)))
    module.InferenceSession = Session
    tuned = TunedApplication(sessions=(session,))
    application = applying._Application(tuned, tmp_path, module, lambda *_, **__: None, False)
    found = application.find(Call(model=str(model), settings=None, passed=passed))
    assert (found is session) == is_replaced
    assert bool(application.kept) != is_replaced


def test_the_pool_is_made_once_and_has_no_more_threads_than_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two threads may open their first sessions at once; ONNX Runtime refuses a second pool."""
    made: list[int] = []

    def make(threads: int, _: int) -> None:
        time.sleep(0.01)
        made.append(threads)

    settings = SimpleNamespace()
    native = SimpleNamespace(set_global_thread_pool_sizes=make)
    module: Any = SimpleNamespace(C=native)
    tuned = TunedApplication(sessions=(), pool_threads=64)
    application = applying._Application(tuned, Path(), module, None, False)
    monkeypatch.setattr("autotune.deploy.cpu.usable_cores", lambda: 2)
    share = (application, settings)
    openers = [threading.Thread(target=applying._share_pool, args=share) for _ in range(2)]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join()
    assert (made, settings.use_per_session_threads) == ([2], False)
