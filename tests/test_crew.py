"""Several processes that work as one: who is asked, and what their replies come to together."""

from collections.abc import Callable
from typing import Any

import pytest

from autotune.measure.clients import Burst
from autotune.measure.crew import Crew
from autotune.measure.device_memory import DeviceUsage
from autotune.measure.replies import FirstRuns, Held, Opened, Written
from autotune.process.child import Child, ChildFailure


class _Process(Child):
    """A child that gives a prepared reply and writes down what is done to it."""

    def __init__(self, reply: object = None) -> None:
        self.reply = reply
        self.done: list[str] = []

    def send(self, message: dict[str, Any]) -> None:
        self.done.append("send")

    def receive(self, timeout_s: float, reply: type[Any]) -> Any:
        self.done.append("receive")
        if isinstance(self.reply, Exception):
            raise self.reply
        return self.reply

    def freeze(self) -> None:
        self.done.append("freeze")

    def thaw(self) -> None:
        self.done.append("thaw")

    def stop(self) -> None:
        self.done.append("stop")


def _crew(*processes: _Process) -> Crew:
    waiting = iter(processes)
    return Crew(lambda: next(waiting), len(processes))


def _ask(reply: type[Any], *replies: object) -> Any:
    return _crew(*map(_Process, replies)).request({}, 1.0, reply)


def _opened(load_ms: float, base_mib: float) -> Opened:
    return Opened(load_ms=load_ms, base_mib=base_mib, load_peak_mib=base_mib + 5)


def _runs(run_ms: float, device: DeviceUsage | None = None) -> FirstRuns:
    return FirstRuns(first_run_ms=2 * run_ms, run_ms=run_ms, run_peak_mib=40.0, device=device)


def test_memory_is_the_sum_over_the_processes() -> None:
    """Every process pays for its own session; times are those of the slowest."""
    opened = _ask(Opened, _opened(1.0, 30.0), _opened(3.0, 31.0))
    assert (opened.load_ms, opened.base_mib, opened.load_peak_mib) == (3.0, 61.0, 71.0)
    runs = _ask(FirstRuns, _runs(1.0), _runs(3.0))
    assert (runs.first_run_ms, runs.run_ms, runs.run_peak_mib) == (6.0, 2.0, 80.0)
    held = _ask(
        Held,
        Held(resident_mib=50.0, anonymous_mib=30.0),
        Held(resident_mib=51.0, anonymous_mib=None),
    )
    assert (held.resident_mib, held.anonymous_mib) == (101.0, None)


@pytest.mark.parametrize(
    ("usages", "mib"),
    [
        ([DeviceUsage(mib=10.0, by_difference=False)] * 2, 20.0),
        ([DeviceUsage(mib=20.0, by_difference=True)] * 2, 20.0),  # each sees what both allocated
        ([DeviceUsage(mib=10.0, by_difference=False), None], None),
    ],
)
def test_memory_of_a_device(usages: list[DeviceUsage | None], mib: float | None) -> None:
    """It is summed where the driver tells it for each process, and unknown if one is."""
    device = _ask(FirstRuns, *(_runs(1.0, usage) for usage in usages)).device
    assert (None if device is None else device.mib) == mib


def test_runs_of_all_processes_are_one_burst() -> None:
    """Each process is a client."""
    burst = Burst(client=(0, 0), start_ns=(0, 10), call_ns=(10, 10), cpu_ns=5)
    assert _ask(Burst, burst, burst).client == (0, 0, 1, 1)


def test_one_process_writes_the_answers() -> None:
    """They would all write the same file."""
    first, second = _Process(Written()), _Process(Written())
    _crew(first, second).request({}, 1.0, Written)
    assert (first.done, second.done) == (["send", "receive"], [])


def test_all_are_asked_before_any_is_waited_for() -> None:
    """They work at the same time, or they would not compete."""
    events: list[str] = []

    class Noted(_Process):
        def send(self, message: dict[str, Any]) -> None:
            events.append("send")

        def receive(self, timeout_s: float, reply: type[Any]) -> Any:
            events.append("receive")
            return self.reply

    held = Held(resident_mib=1.0, anonymous_mib=None)
    _crew(Noted(held), Noted(held)).request({}, 1.0, Held)
    assert events == ["send", "send", "receive", "receive"]


@pytest.mark.parametrize("act", [Crew.freeze, Crew.thaw, Crew.stop])
def test_all_are_suspended_and_ended_together(act: Callable[[Crew], None]) -> None:
    """None of them goes on while the other side has its turn."""
    processes = _Process(), _Process()
    act(_crew(*processes))
    assert [process.done for process in processes] == [[act.__name__]] * 2


def test_one_failure_is_that_of_all() -> None:
    """A side of which one process died has no numbers."""
    with pytest.raises(ChildFailure, match="SIGSEGV"):
        _ask(Held, Held(resident_mib=1.0, anonymous_mib=None), ChildFailure("crashed", "SIGSEGV"))


def test_processes_are_ended_where_one_does_not_start() -> None:
    """No process is left behind."""
    first = _Process()

    def start() -> Child:
        if first.done or started:
            raise OSError("no more processes")
        started.append(first)
        return first

    started: list[_Process] = []
    with pytest.raises(OSError, match="no more"):
        Crew(start, 2)
    assert first.done == ["stop"]
