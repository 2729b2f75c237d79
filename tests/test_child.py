"""Children that misbehave in every way that native code knows."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from autotune.process.child import Child, ChildFailure, Limits, printable
from autotune.process.guardian import Guardian

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.name != "posix", reason="signals are POSIX"),
]

_MODULE = """
import ctypes, os, subprocess, sys, time
from autotune.process.child import serve

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
    return {"error": float("inf"), "deep": [float("nan"), 1.5]}

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

def spawn(message):
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    return {"pid": subprocess.Popen(command, start_new_session=message["detached"]).pid}

def environment(message):
    return dict(os.environ)

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


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Gives a function that starts the misbehaving child; all are stopped at the end."""
    (tmp_path / "misbehaving.py").write_text(_MODULE, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    children: list[Child] = []

    def begin(limits: Limits | None = None) -> Child:
        children.append(Child("misbehaving", limits or Limits()))
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
        child.request({"do": do, **more}, timeout_s)
    return caught.value


def test_messages_are_answered_in_turn(start: Start) -> None:
    """A child answers one message after the other, whatever text is in them."""
    child = start()
    for text in ("one", "zwei\nlines", "\u2028 \U0001f600"):
        assert child.request({"do": "echo", "text": text}, 60) == {"text": text}


def test_a_refusal_leaves_the_child_at_work(start: Start) -> None:
    """An exception in a handler is a refusal without control characters; the child goes on."""
    child = start()
    failure = _failure(child, "refuse")
    assert failure.kind == "refused"
    assert failure.message == "no such [31m operator"
    assert child.request({"do": "echo", "text": "still here"}, 60) == {"text": "still here"}


def test_an_unknown_message_is_refused(start: Start) -> None:
    """A message without a handler is refused as any other fault is."""
    assert _failure(start(), "nothing of this name").kind == "refused"


@pytest.mark.parametrize(("do", "name"), [("segfault", "SIGSEGV"), ("abort", "SIGABRT")])
def test_a_crash_is_told_by_its_signal(start: Start, do: str, name: str) -> None:
    """A child that dies of a signal is a crash that names it, and is gone."""
    child = start()
    failure = _failure(child, do)
    assert failure.kind == "crashed"
    assert failure.message == name
    assert not child.is_running()


def test_an_exit_is_told_by_its_code(start: Start) -> None:
    """A child that ends without an answer is a crash that names the exit code."""
    failure = _failure(start(), "leave")
    assert failure.kind == "crashed"
    assert "exit code 3" in failure.message


def test_a_kill_from_outside_is_told(start: Start) -> None:
    """A child killed by the kernel's out-of-memory killer is told from one that crashed."""
    child = start()
    child.request({"do": "echo", "text": ""}, 60)
    os.kill(child.pid, signal.SIGKILL)
    assert _failure(child, "echo", text="").kind == "killed"


def test_a_hanging_child_is_killed(start: Start) -> None:
    """A child that does not answer in time is killed."""
    child = start()
    child.request({"do": "echo", "text": ""}, 60)
    assert _failure(child, "hang", timeout_s=0.2).kind == "timeout"
    assert not child.is_running()


@pytest.mark.parametrize("do", ["garbage", "listing", "oversized"])
def test_what_is_no_message_breaks_the_protocol(start: Start, do: str) -> None:
    """Text, other JSON than an object and endless lines are no messages; the child is killed."""
    child = start()
    assert _failure(child, do).kind == "protocol"
    assert not child.is_running()


def test_a_flood_leaves_no_thread(start: Start) -> None:
    """Replies that nobody asked for make the child wait, and nothing of them is left."""
    before = threading.active_count()
    child = start()
    assert _failure(child, "flood").kind == "protocol"
    child.stop()
    assert threading.active_count() == before


def test_numbers_that_json_lacks_arrive_as_none(start: Start) -> None:
    """Infinite numbers and NaN become None on the way, at any depth."""
    assert start().request({"do": "infinite"}, 60) == {"error": None, "deep": [None, 1.5]}


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts mappings on Linux only")
def test_the_memory_limit_holds(start: Start) -> None:
    """Too large an allocation fails in the child as out of memory; a small one still succeeds."""
    child = start(Limits(memory_mib=512))
    failure = _failure(child, "allocate", mib=2048)
    assert failure.kind == "out_of_memory"
    assert child.request({"do": "allocate", "mib": 1}, 60) == {"size": 1 << 20}


def test_native_allocation_faults_are_out_of_memory(start: Start) -> None:
    """What C++ says where memory runs out is recognised in an exception's text."""
    assert _failure(start(), "native_out_of_memory").kind == "out_of_memory"


@pytest.mark.parametrize("detached", [False, True])
def test_stop_ends_grandchildren(start: Start, detached: bool) -> None:
    """What the child started ends with it, in its session or in one of its own."""
    child = start()
    pid = child.request({"do": "spawn", "detached": detached}, 60)["pid"]
    assert psutil.pid_exists(pid)
    child.stop()
    _wait_until_gone(pid)


def test_the_environment_is_scrubbed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets and ONNX Runtime's overrides stay out; what is needed and telemetry's off get in."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("MY_PATH", "secret")
    monkeypatch.setenv("ORT_INTRA_OP_NUM_THREADS", "3")
    seen = start().request({"do": "environment"}, 60)
    assert "secret" not in seen.values()
    assert "ORT_INTRA_OP_NUM_THREADS" not in seen
    assert seen["ORT_DISABLE_TELEMETRY"] == "1"
    assert seen["PATH"] == os.environ["PATH"]


def test_printing_does_not_reach_the_channel(start: Start) -> None:
    """What libraries print inside a handler goes to stderr, from Python and from C."""
    child = start()
    assert child.request({"do": "chatter"}, 60) == {"said": True}
    assert child.request({"do": "echo", "text": "next"}, 60) == {"text": "next"}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_working_folder_is_private_and_goes(start: Start) -> None:
    """The child works in a folder of its own, which stop removes."""
    child = start()
    assert child.request({"do": "environment"}, 60)
    assert child.folder.is_dir()
    assert Path(f"/proc/{child.pid}/cwd").readlink() == child.folder.resolve()
    child.stop()
    assert not child.folder.exists()


def test_a_thawed_child_answers_again(start: Start) -> None:
    """A frozen child does not run; thawed it answers what was sent meanwhile."""
    child = start()
    child.request({"do": "echo", "text": ""}, 60)
    child.freeze()
    assert child.is_running()
    _wait_until_stopped(child.pid)
    child.send({"do": "echo", "text": "later"})
    child.thaw()
    assert child.receive(60) == {"text": "later"}


def test_a_frozen_child_can_be_stopped(start: Start) -> None:
    """Stopping does not need the child's help; stopping twice does no harm."""
    child = start()
    child.request({"do": "echo", "text": ""}, 60)
    child.freeze()
    child.stop()
    assert not child.is_running()
    _wait_until_gone(child.pid)
    child.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's help is Linux's")
@pytest.mark.parametrize("frozen", [False, True])
def test_no_child_outlives_its_parent(start: Start, tmp_path: Path, frozen: bool) -> None:
    """A child ends when its parent is killed without a chance to clean up, even a frozen one."""
    driver = (
        "import sys, time\n"
        "from autotune.process.child import Child, Limits\n"
        "child = Child('misbehaving', Limits())\n"
        "child.request({'do': 'echo', 'text': ''}, 60)\n"
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


_GUARDED = """
import sys, time
from autotune.process import child, guardian
child._KERNEL_ENDS_CHILDREN = False
children = [child.Child('misbehaving', child.Limits()) for _ in range(3)]
for one in children:
    one.request({'do': 'echo', 'text': ''}, 60)
one, other, stopped = children
one.freeze()
other.send({'do': 'hang'})
stopped.stop()
print(guardian.guardian().pid, one.pid, other.pid, flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_a_guardian_ends_children_where_the_kernel_does_not(
    start: Start, tmp_path: Path, killed: bool
) -> None:
    """Frozen and hanging children end with their driver, however it ends, and the guardian too."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", _GUARDED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert all(map(psutil.pid_exists, pids))
        assert len(pids) == 3
        if killed:
            parent.kill()
        parent.communicate("\n")
    for pid in pids:
        _wait_until_gone(pid)


def test_a_guardian_kills_nobody_else(start: Start) -> None:
    """A child that it was told to forget, and one that it was not told of, go on."""
    guardian = Guardian()
    forgotten, unknown, watched = start(), start(), start()
    guardian.watch(forgotten.pid)
    guardian.watch(watched.pid)
    guardian.forget(forgotten.pid)
    guardian.close()
    _wait_until_gone(watched.pid)
    for child in (forgotten, unknown):
        assert child.request({"do": "echo", "text": "here"}, 60) == {"text": "here"}


def test_printable_keeps_one_line() -> None:
    """Control characters and line ends become spaces, single ones."""
    assert printable("a\n\tb\x1b[0m  c\x00") == "a b [0m c"
