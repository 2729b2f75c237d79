"""Children that misbehave in every way that native code knows."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from autotune.deploy.records import Amount, Whole
from autotune.errors import FormatError, StorageError
from autotune.process.child import Child, ChildFailure, child_environment

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.name != "posix", reason="signals are POSIX"),
]

_MODULE = """
import ctypes, os, subprocess, sys, time
from autotune.process.child_end import serve

def echo(message):
    return {"text": message["text"]}

def refuse(message):
    raise ValueError("no such\\x1b[31m operator")

def segfault(message):
    ctypes.string_at(0)

def abort(message):
    os.abort()

def leave(message):
    os._exit(3)

def hang(message):
    time.sleep(600)

def garbage(message):
    os.write(CHANNEL, b"this is no message\\n")
    time.sleep(600)

def listing(message):
    os.write(CHANNEL, b'["no", "object"]\\n')
    time.sleep(600)

def infinite(message):
    return {"numbers": [1.5, message["number_as_text"] and float(message["number_as_text"])]}

def oversized(message):
    return {"text": "x" * (5 << 20)}

def flood(message):
    while True:
        os.write(CHANNEL, b"{}\\n")

def mute(message):
    os.close(CHANNEL)
    time.sleep(600)

def allocate(message):
    return {"size": len(bytearray(message["mib"] << 20))}

def native_out_of_memory(message):
    raise RuntimeError("bad allocation: std::bad_alloc")

def full_disk(message):
    raise OSError(28, os.strerror(28), "/tmp/model.onnx")

def spawn(message):
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    return {"pid": subprocess.Popen(command, start_new_session=message["detached"]).pid}

def environment(message):
    return {"variables": dict(os.environ)}

def nothing(message):
    return None

def chatter(message):
    print("a library prints", flush=True)
    os.write(1, b"and so does C\\n")
    return {"said": True}

handlers = {name: value for name, value in globals().items() if callable(value)}
# the first descriptor that serve() will open for its private copy of stdout
CHANNEL = os.dup(1)
serve(handlers)
"""

Start = Callable[..., Child]


@dataclass(frozen=True, kw_only=True)
class Echo:
    """The reply to ``echo``, and what no fault replies."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """The reply to ``infinite``."""

    numbers: tuple[Amount, ...]


@dataclass(frozen=True, kw_only=True)
class Size:
    """The reply to ``allocate``."""

    size: Whole


@dataclass(frozen=True, kw_only=True)
class Spawned:
    """The reply to ``spawn``."""

    pid: Whole


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The reply to ``environment``."""

    variables: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Said:
    """The reply to ``chatter``."""

    said: bool


def _echo(child: Child, text: str) -> str:
    """Returns the text that the child sends back."""
    return child.request({"do": "echo", "text": text}, 60, Echo).text


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Gives a function that starts the misbehaving child; all are stopped at the end."""
    (tmp_path / "misbehaving.py").write_text(_MODULE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    children: list[Child] = []

    def begin(memory_mib: int | None = None) -> Child:
        children.append(Child("misbehaving", memory_mib))
        return children[-1]

    yield begin
    for child in children:
        child.stop()


def _wait_until_gone(pid: int) -> None:
    """Waits until there is no such process, a zombie aside; fails after a minute."""
    for _ in range(600):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return
        except psutil.NoSuchProcess:
            return
        time.sleep(0.1)
    pytest.fail(f"process {pid} is still there")


def _wait_until_stopped(pid: int) -> None:
    """Waits until the signal has taken effect; fails after a minute."""
    for _ in range(600):
        if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
            return
        time.sleep(0.1)
    pytest.fail(f"process {pid} still runs")


def _failure(child: Child, do: str, timeout_s: float = 60, **more: object) -> ChildFailure:
    with pytest.raises(ChildFailure) as caught:
        child.request({"do": do, **more}, timeout_s, Echo)
    return caught.value


def test_messages_are_answered_in_turn(start: Start) -> None:
    child = start()
    for text in ("one", "zwei\nlines", "\u2028 \U0001f600"):
        assert _echo(child, text) == text


def test_a_refusal_leaves_the_child_at_work(start: Start) -> None:
    child = start()
    failure = _failure(child, "refuse")
    assert failure.kind == "refused"
    assert failure.message == "no such [31m operator"
    assert _echo(child, "still here") == "still here"


def test_a_kill_from_outside_is_told(start: Start) -> None:
    child = start()
    _echo(child, "")
    os.kill(child.pid, signal.SIGKILL)
    assert _failure(child, "echo", text="").kind == "killed"


def test_a_hanging_child_is_killed(start: Start) -> None:
    child = start()
    _echo(child, "")
    assert _failure(child, "hang", timeout_s=0.2).kind == "timeout"
    assert not child.is_running()


def test_a_child_that_reads_nothing_is_killed(start: Start) -> None:
    child = start()
    large = "x" * (1 << 20)
    assert _echo(child, large) == large
    child.freeze()
    assert _failure(child, "echo", timeout_s=0.2, text=large).kind == "timeout"
    assert not child.is_running()


@pytest.mark.parametrize("do", ["garbage", "listing", "oversized"])
def test_what_is_no_message_breaks_the_protocol(start: Start, do: str) -> None:
    child = start()
    assert _failure(child, do).kind == "protocol"
    assert not child.is_running()


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        '{"number": 1e999}',
        '{"number": 1, "reply": {"text": ""}}',
        '{"failure": "I am lying", "kind": "timeout", "number": 2}',
        '{"failure": ["no", "text"], "kind": "refused", "number": 2}',
        "[" * 100_000,
        '{"number": ' + "9" * 100_000 + "}",
    ],
    ids=range(7),
)
def test_what_is_no_reply_is_none(line: str) -> None:
    child = Child.__new__(Child)
    child._sent = 2
    with pytest.raises((ValueError, FormatError)):
        child._reply(line.encode(), Echo)


def test_a_flood_leaves_no_thread(start: Start) -> None:
    before = threading.active_count()
    child = start()
    assert _failure(child, "flood").kind == "protocol"
    child.stop()
    assert threading.active_count() == before


def _numbers(child: Child, text: str) -> Numbers:
    return child.request({"do": "infinite", "number_as_text": text}, 60, Numbers)


@pytest.mark.parametrize("text", ["inf", "-inf", "nan"])
def test_numbers_that_are_not_finite_break_the_protocol(start: Start, text: str) -> None:
    child = start()
    assert _numbers(child, "2.5") == Numbers(numbers=(1.5, 2.5))
    with pytest.raises(ChildFailure, match=r"numbers\[1\] must be a finite number") as caught:
        _numbers(child, text)
    assert caught.value.kind == "protocol"
    assert not child.is_running()


@pytest.mark.parametrize(
    ("do", "words"),
    [("nothing", "it must be an object, not None"), ("environment", "unknown key 'variables'")],
)
def test_another_reply_breaks_the_protocol(start: Start, do: str, words: str) -> None:
    failure = _failure(start(), do)
    assert failure.kind == "protocol"
    assert words in failure.message
    assert len(failure.message) < 600


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts mappings on Linux only")
def test_the_memory_limit_holds(start: Start) -> None:
    child = start(512)
    failure = _failure(child, "allocate", mib=2048)
    assert failure.kind == "out_of_memory"
    assert child.request({"do": "allocate", "mib": 1}, 60, Size) == Size(size=1 << 20)


def test_a_full_disk_is_no_fault_of_the_message(start: Start) -> None:
    """It is no refusal, which would be remembered: the user is told to make room."""
    child = start()
    with pytest.raises(StorageError, match=r"disk is full: .*model\.onnx.* type the same command"):
        child.request({"do": "full_disk"}, 60, Echo)
    assert _echo(child, "still here") == "still here"


@pytest.mark.parametrize("detached", [False, True])
def test_stop_ends_grandchildren(start: Start, detached: bool) -> None:
    child = start()
    pid = child.request({"do": "spawn", "detached": detached}, 60, Spawned).pid
    assert psutil.pid_exists(pid)
    child.stop()
    _wait_until_gone(pid)


def test_the_environment_is_scrubbed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """No secret of the user's reaches a child, and none sends telemetry though the user does."""
    for name in ("AUTOTUNE_STORAGE", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "MY_PATH"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("ORT_INTRA_OP_NUM_THREADS", "3")
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    seen = start().request({"do": "environment"}, 60, Environment).variables
    assert "secret" not in seen.values()
    assert "ORT_INTRA_OP_NUM_THREADS" not in seen
    assert seen["ORT_DISABLE_TELEMETRY"] == "1"
    assert seen["PATH"] == os.environ["PATH"]


def test_what_is_measured_has_the_environment_of_an_application(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Libraries and drivers read variables of any name; what looks like a secret stays here."""
    kept = {
        "GLIBC_TUNABLES": "glibc.malloc.trim_threshold=128",
        "HIP_VISIBLE_DEVICES": "0",
        "ZE_AFFINITY_MASK": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "4",
    }
    secrets = {
        "PGPASSWORD": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "HF_TOKEN": "x",
        "OPENAI_API_KEY": "x",
        "GithubToken": "x",
        "DATABASE_URL": "postgresql://me:pass@host/name",
        "AUTOTUNE_STORAGE": "postgresql://host/name",
        "AUTOTUNE_RECORD": "/tmp/app.rec",
    }
    for name, text in (kept | secrets).items():
        monkeypatch.setenv(name, text)
    seen = child_environment(measures=True)
    assert kept.items() <= seen.items()
    assert not seen.keys() & secrets.keys()
    assert seen["ORT_DISABLE_TELEMETRY"] == "1"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert child_environment(measures=True)["OMP_NUM_THREADS"] == "1"
    assert child_environment()["OMP_NUM_THREADS"] == "1"
    assert not child_environment().keys() & {"GLIBC_TUNABLES", *secrets}


def test_printing_does_not_reach_the_channel(start: Start) -> None:
    child = start()
    assert child.request({"do": "chatter"}, 60, Said) == Said(said=True)
    assert _echo(child, "next") == "next"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_working_folder_is_private_and_goes(start: Start) -> None:
    child = start()
    assert _echo(child, "") == ""
    assert child.folder.is_dir()
    assert Path(f"/proc/{child.pid}/cwd").readlink() == child.folder.resolve()
    child.stop()
    assert not child.folder.exists()


def test_a_thawed_child_answers_again(start: Start) -> None:
    child = start()
    _echo(child, "")
    child.freeze()
    assert child.is_running()
    _wait_until_stopped(child.pid)
    child.send({"do": "echo", "text": "later"})
    child.thaw()
    assert child.receive(60, Echo) == Echo(text="later")


def test_a_frozen_child_can_be_stopped(start: Start) -> None:
    child = start()
    _echo(child, "")
    child.freeze()
    child.stop()
    assert not child.is_running()
    _wait_until_gone(child.pid)
    child.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
@pytest.mark.parametrize("frozen", [False, True])
def test_no_child_outlives_its_parent(start: Start, tmp_path: Path, frozen: bool) -> None:
    driver = (
        "import sys, time\n"
        "from autotune.process.child import Child\n"
        "child = Child('misbehaving', None)\n"
        "from dataclasses import make_dataclass\n"
        "Echo = make_dataclass('Echo', [('text', str)])\n"
        "child.request({'do': 'echo', 'text': ''}, 60, Echo)\n"
        f"{'child.freeze()' if frozen else ''}\n"
        "print(child.pid, child.folder, flush=True)\n"
        "time.sleep(600)\n"
    )
    # its folder stays behind where it is killed, so that it had better be ours
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", driver], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline().split()[0])
        assert psutil.pid_exists(pid)
        parent.kill()
    _wait_until_gone(pid)


@pytest.mark.parametrize(
    ("do", "kind", "words"),
    [
        ("segfault", "crashed", "SIGSEGV"),
        ("abort", "crashed", "SIGABRT"),
        ("leave", "crashed", "exit code 3"),
        # what C++ says where memory runs out
        ("native_out_of_memory", "out_of_memory", "bad_alloc"),
    ],
)
def test_an_end_is_told_by_its_signal_or_code(start: Start, do: str, kind: str, words: str) -> None:
    child = start()
    failure = _failure(child, do)
    assert failure.kind == kind
    assert words in failure.message
    assert child.is_running() == (kind == "out_of_memory")
