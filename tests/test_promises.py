"""Promises of the README that no return value shows: what is kept secret, what is never written to.

The tests look at the file system, and at what the kernel says of it.
"""

import ast
import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import brief_studies
import numpy as np
import onnx
import pytest
from fakes import FakeWorld, thread_cost
from small_models import BUILDERS

import autotune
from autotune.storage.database import Place, open_storage

SECRET = "s3cr3t-p4ssw0rd"
URL = f"postgresql://me:{SECRET}@127.0.0.1:1/name"
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks at Linux's inotify")


def test_every_process_gets_an_environment_of_its_own() -> None:
    starters = {"Popen", "run", "call", "check_call", "check_output"}
    calls = []
    for file in Path(autotune.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == "subprocess"
                and node.func.attr in starters
            ):
                names = {keyword.arg for keyword in node.keywords}
                calls.append((f"{file.name}:{node.lineno}", "env" in names))
    assert len(calls) >= 2
    assert [place for place, has_environment in calls if not has_environment] == []


def files_with(folder: Path, text: str) -> list[str]:
    """Returns the files below the folder that hold the text."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path.name for path in files if text.encode() in path.read_bytes()]


def test_no_file_of_a_study_holds_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(BUILDERS["lstm"](), "model.onnx")
    local = Place.of("sqlite:///study.db", tmp_path)
    notes: list[str] = []
    result = FakeWorld(thread_cost).tune(
        "model.onnx",
        storage=URL,
        trials=3,
        on_progress=lambda progress: notes.append(repr(progress)),
        seams={"storage": lambda *_: open_storage(local), "lock": lambda *_, **__: nullcontext()},
    )
    assert (result.folder / "best.json").exists()
    assert files_with(tmp_path, SECRET) == []
    outputs = capsys.readouterr()
    assert SECRET not in "".join([repr(result), *notes, outputs.out, outputs.err])


@pytest.mark.process
def test_a_storage_that_does_not_answer_keeps_the_password(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="the driver for PostgreSQL is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "show"],
        env={**os.environ, "AUTOTUNE_STORAGE": URL},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 75, done.stderr
    assert "127.0.0.1" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


# from <sys/inotify.h>
IN_MODIFY, IN_ATTRIB, IN_CLOSE_WRITE, IN_DELETE_SELF, IN_MOVE_SELF = 0x2, 0x4, 0x8, 0x400, 0x800
IN_MOVED, IN_CREATE, IN_DELETE, IN_OPEN = 0x40 | 0x80, 0x100, 0x200, 0x20
CHANGES = IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE | IN_DELETE_SELF | IN_MOVE_SELF
IN_NONBLOCK = 0x800


class Watch:
    """What the kernel says about the use of files, by any process."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._library.inotify_init1(IN_NONBLOCK)
        assert self._descriptor >= 0
        self._names: dict[int, str] = {}

    def add(self, path: Path, mask: int) -> None:
        number = self._library.inotify_add_watch(self._descriptor, os.fsencode(path), mask)
        assert number > 0
        self._names[number] = path.name

    def events(self) -> list[tuple[str, int]]:
        """Returns the events since the last call: the name of the file, and the mask."""
        try:
            data = os.read(self._descriptor, 1 << 20)
        except BlockingIOError:
            return []
        events = []
        while data:
            number, mask, _, length = struct.unpack_from("iIII", data)
            name = data[16 : 16 + length].rstrip(b"\0").decode()
            events.append((name or self._names[number], mask))
            data = data[16 + length :]
        return events

    def close(self) -> None:
        os.close(self._descriptor)


@contextmanager
def watch() -> Iterator[Watch]:
    made = Watch()
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A folder with all that a study can be given: model, data of the model, inputs, space."""
    folder = tmp_path / "given"
    folder.mkdir()
    onnx.save(
        BUILDERS["cnn"](),
        folder / "model.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    inputs = np.random.default_rng(3).standard_normal((4, 1, 3, 16, 16)).astype(np.float32)
    np.savez(folder / "inputs.npz", image=inputs)
    (folder / "first.json").write_text('{"weight_storage": "external_data"}', encoding="ascii")
    (folder / "space.toml").write_text(
        'description = "one of each step"\n'
        '[parameters.pre_pass]\nvalues = ["none", "ort_basic"]\ndefault = "none"\n'
        '[parameters.weight_storage]\nvalues = ["inline", "external_data"]\ndefault = "inline"\n',
        encoding="ascii",
    )
    return folder


@linux
@pytest.mark.process
@pytest.mark.slow
def test_nothing_that_a_study_reads_is_written_to(given: Path, tmp_path: Path) -> None:
    with watch() as seen:
        files = sorted(given.iterdir())
        before = {file: (file.read_bytes(), file.stat().st_ino) for file in files}
        seen.add(given, IN_CREATE | IN_DELETE | IN_MOVED)
        for file in files:
            seen.add(file, CHANGES | IN_OPEN)
        command = [*brief_studies.AUTOTUNE, "study", str(given / "model.onnx")]
        command += ["--data", str(given / "inputs.npz"), "--space", str(given / "space.toml")]
        command += ["--try", str(given / "first.json"), "--trials", "3", "--out", "out"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False
        )
        assert done.returncode == 0, done.stderr
        events = seen.events()
    assert {name for name, mask in events if mask & IN_OPEN} == {file.name for file in files}
    assert [event for event in events if not event[1] & IN_OPEN] == []
    assert {file: (file.read_bytes(), file.stat().st_ino) for file in files} == before
    assert (tmp_path / "out" / "best.json").exists()
