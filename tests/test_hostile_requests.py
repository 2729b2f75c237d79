"""Requests that no study can serve, and places that fail: one sentence and the promised exit code.

Most requests run inside the test's own process, as the program runs them. Streams, limits and
locales need a process; those tests run commands that take no time.
"""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import save_onnx

from autotune.cli.app import run
from autotune.cli.faults import CLOSED_PIPE, Ending, ending_of
from autotune.errors import StorageError, system_fault
from autotune.process import scratch
from autotune.study.tune import tune

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the faults are those of POSIX")

LONG = "n" * 300
ENDLESS = "n" * 70_000
WRONG, CANNOT, DISK = 2, 4, 75


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sound model and with hostile files."""
    place = tmp_path_factory.mktemp("hostile")
    save_onnx(place / "m.onnx", "y = Relu (x)", x="float[rows,3] x", y="float[rows,3] y")
    (place / "cut.onnx").write_bytes((place / "m.onnx").read_bytes()[:20])
    np.save(place / "raw.npy", np.ones(3))
    (place / "deep.toml").write_text("a=" + "[" * 100_000 + "]" * 100_000, encoding="ascii")
    (place / "deep.json").write_text("[" * 100_000 + "]" * 100_000, encoding="ascii")
    (place / "file").touch()
    return place


def refusal(ending: Ending, code: int) -> str:
    """Returns what the program said, after a look at the code and the form of it."""
    assert ending.code == code, ending.lines
    assert "Traceback" not in ending.lines
    assert len(ending.lines) < 2000
    (sentence,) = [text for text in ending.lines.splitlines() if text.startswith("Error: ")]
    return sentence


STUDY = ["study", "m.onnx"]


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ([*STUDY, "--shape", "x=²"], "'²' is not a list of sizes"),
        ([*STUDY, "--set", "seed=4294967296"], "seed must be at least 0 and at most 4294967295"),
        ([*STUDY, "--trials", "9" * 5000], "--trials"),
        ([*STUDY, "--max-drop", "nan"], "--max-drop"),
        ([*STUDY, "--shape", "x=99999999999,3"], "--shape x="),
        ([*STUDY, "--data", "raw.npy"], "it is a single array"),
        ([*STUDY, "--space", "deep.toml"], "nested too deeply"),
        ([*STUDY, "--try", "deep.json"], "deep.json"),
        ([*STUDY, "--out", "file/below"], "file/below"),
        ([*STUDY, "--out", "file"], "file is a file; name another folder with --out DIR"),
        ([*STUDY, "--out", LONG], LONG[:40]),
        ([*STUDY, "--metric", f"{LONG}:{LONG}"], "--metric"),
        (["study", LONG], LONG[:40]),
        (["study", "cut.onnx"], "cut.onnx cannot be used: it is no ONNX model"),
        ([*STUDY, "--shape", f"{ENDLESS}=1"], "has no input"),
        ([*STUDY, "--fix", f"{ENDLESS}=1"], "--fix"),
        ([*STUDY, "--space", ENDLESS], ENDLESS[:40]),
        ([ENDLESS], "there is no command"),
        (["show", "net[v2]"], "there is no file or folder net[v2]"),
        (["study", "net[/red].onnx"], "there is no file or folder net[/red].onnx"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "-".join(value)[:60],
)
def test_wrong_requests_end_in_a_sentence(
    place: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], phrase: str
) -> None:
    monkeypatch.chdir(place)
    before = sorted(place.iterdir())
    assert phrase in refusal(run(arguments), WRONG)
    assert sorted(place.iterdir()) == before


FAULTS = [
    (OSError(errno.ENOSPC, "No space left on device", "/full/file"), DISK, "/full/file", "TMPDIR"),
    (OSError(errno.EDQUOT, "Disk quota exceeded"), DISK, "Disk quota exceeded", "make room"),
    (
        PermissionError(errno.EACCES, "Permission denied", "/root/x"),
        WRONG,
        "/root/x",
        "permissions",
    ),
    (OSError(errno.ENAMETOOLONG, "File name too long", ENDLESS), WRONG, "nnn…nnn", "shorter"),
    (OSError(errno.EMFILE, "Too many open files"), CANNOT, "too few files", "ulimit -n"),
    (BlockingIOError(errno.EAGAIN, "unavailable"), CANNOT, "another process", "ulimit -u"),
    (MemoryError("11 TiB"), CANNOT, "too little memory", "11 TiB"),
]


@pytest.mark.parametrize(("fault", "code", "what", "cure"), FAULTS)
def test_faults_of_the_system_have_a_cure(
    fault: BaseException, code: int, what: str, cure: str
) -> None:
    sentence = refusal(ending_of(fault), code)
    assert what in sentence
    assert cure in sentence


def test_faults_of_the_system_are_errors_of_the_library_too(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def fail(*_: object) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("autotune.study.tune.run_study", fail)
    with pytest.raises(StorageError, match="make room"):
        tune(place / "m.onnx")


def test_a_bug_keeps_its_traceback() -> None:
    ending = ending_of(ZeroDivisionError("division"))
    assert ending.code == 1
    assert "ZeroDivisionError: division" in ending.lines
    assert system_fault(ZeroDivisionError()) is None
    assert system_fault(OSError("without a number")) is None


def test_a_full_temporary_folder(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Path.mkdir

    def fail(folder: Path, *arguments: Any, **named: Any) -> None:
        if folder.parent.parent == tmp_path:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder))
        make(folder, *arguments, **named)

    monkeypatch.chdir(place)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(Path, "mkdir", fail)
    scratch.root.cache_clear()
    try:
        assert "TMPDIR" in refusal(run(STUDY), DISK)
    finally:
        scratch.root.cache_clear()
    (own,) = tmp_path.iterdir()
    assert list(own.iterdir()) == []


def test_a_path_without_permission(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    arguments = ["show", str(closed / "study")]
    run(arguments)  # imports all that the command needs
    closed.mkdir(mode=0o000)
    root = os.geteuid() == 0  # may read everything
    if root:
        os.seteuid(12345)
    try:
        sentence = refusal(run(arguments), WRONG)
    finally:
        if root:
            os.seteuid(0)
    assert str(closed) in sentence


def shell(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command line of the shell in which ``$A`` is the program."""
    program = f"{sys.executable} -m autotune"
    return subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "A": program, **variables},
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=60,
        check=False,
    )


@pytest.mark.process
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
def test_a_full_output() -> None:
    done = shell("$A spaces default >/dev/full")
    assert done.returncode == DISK
    assert "Error: the output cannot be written: No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.process
def test_a_pipe_that_nobody_reads() -> None:
    """The program ends without a word, as programs do that SIGPIPE ends."""
    done = shell("$A spaces default | true; echo ${PIPESTATUS[0]}")
    assert done.stdout == f"{CLOSED_PIPE}\n"
    assert done.stderr == ""


@pytest.mark.process
@pytest.mark.parametrize("streams", [">&-", "<&- >&- 2>&-"])
def test_closed_streams(streams: str) -> None:
    """What nobody wants to read is dropped."""
    done = shell(f"$A spaces default {streams}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.process
def test_messages_that_nobody_can_read_change_nothing(tmp_path: Path) -> None:
    """The exit code tells what the lost message would have said."""
    assert shell(f"cd {tmp_path}; $A show absent 2>/dev/full").returncode == WRONG


@pytest.mark.process
@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    ],
    ids=["latin-1", "C"],
)
def test_terminals_without_our_characters(variables: dict[str, str]) -> None:
    folder = Path(__file__).parent / "data" / "study"
    done = shell(f"$A show {folder}; $A show 'a×b…'", **variables)
    assert "Traceback" not in done.stderr
    assert "the default" in done.stdout
    assert "there is no file or folder" in done.stderr


@pytest.mark.process
def test_few_descriptors(place: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))

    done = subprocess.run(
        [sys.executable, "-m", "autotune", "study", "m.onnx"],
        cwd=place,
        capture_output=True,
        text=True,
        preexec_fn=limit,
        timeout=60,
        check=False,
    )
    assert done.returncode == CANNOT, done.stderr
    assert "ulimit -n 1024" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_without_onnxruntime(place: Path, tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('absent')\n", encoding="ascii")
    before = sorted(place.iterdir())
    done = shell(f"cd {place}; $A study m.onnx", PYTHONPATH=str(tmp_path))
    assert done.returncode == WRONG
    assert "Traceback" not in done.stderr
    assert "pip install onnxruntime (or" in " ".join(done.stderr.split())
    assert " ".join(done.stderr.split()).count("onnxruntime is not installed") == 1
    assert sorted(place.iterdir()) == before
