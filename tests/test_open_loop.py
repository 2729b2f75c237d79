"""The open loop: against servers of known service time on a simulated clock, and with threads."""

import threading

import pytest

from autotune.measure.open_loop import OpenLoop, WallClock, open_loop, poisson_arrivals
from autotune.measure.statistics import percentile

SERVICE_S = 0.010
"""The service time of the server, unless a test has another one."""


class SimulatedClock(WallClock):
    """A clock that moves only while a client waits or is served."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self._now_s = 100.0

    def now(self) -> float:
        return self._now_s

    def wait_until(self, time_s: float) -> None:
        """Moves on to `time_s` unless it is past."""
        self._now_s = max(self._now_s, time_s)

    def spend(self, seconds: float) -> None:
        self._now_s += seconds


def _run(arrivals_s: list[float]) -> OpenLoop:
    """Returns an open loop of one client against a server of constant service time."""
    clock = SimulatedClock()
    return open_loop([lambda _: clock.spend(SERVICE_S)], arrivals_s, clock)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.7, 0.8])
def test_waiting_is_that_of_an_m_d_1_queue(load: float) -> None:
    """Pollaczek and Khinchine: the mean wait is load x service / (2 (1 - load))."""
    run = _run(poisson_arrivals(load / SERVICE_S, 20_000, seed=1))
    wait_s = sum(run.latency_ms) / len(run.latency_ms) / 1e3 - SERVICE_S
    assert wait_s == pytest.approx(load * SERVICE_S / (2 * (1 - load)), rel=0.10)
    assert run.kept_up
    assert run.achieved_per_s == pytest.approx(run.offered_per_s, rel=0.01)


def test_latency_counts_from_the_scheduled_arrival() -> None:
    run = _run([1.0, 1.0, 1.0, 2.0])
    assert run.latency_ms == pytest.approx([10, 20, 30, 10])


def test_a_stall_that_a_closed_loop_hides_shows_in_an_open_loop() -> None:
    """One request of a thousand takes a second: it is 1 of 1000 times, or a second of ten."""
    clock = SimulatedClock()

    def server(number: int) -> None:
        clock.spend(1.0 if number == 500 else 0.001)

    closed_ms = []
    for number in range(1000):
        began_s = clock.now()
        server(number)
        closed_ms.append((clock.now() - began_s) * 1e3)
    run = open_loop([server], poisson_arrivals(100, 1000, seed=0), clock)
    assert percentile(closed_ms, 99) == pytest.approx(1)
    assert (percentile(run.latency_ms, 99) or 0) > 900
    assert percentile(run.latency_ms, 50) == pytest.approx(1, rel=0.01)
    assert run.kept_up


@pytest.mark.parametrize("load", [1.1, 2.0])
def test_a_rate_above_the_capacity_is_said(load: float) -> None:
    run = _run(poisson_arrivals(load / SERVICE_S, 5_000, seed=1))
    assert not run.kept_up
    assert run.achieved_per_s == pytest.approx(1 / SERVICE_S, rel=0.01)
    assert len(run.latency_ms) == pytest.approx(5_000 / load, rel=0.03)


def test_arrivals_are_poisson_and_repeat() -> None:
    arrivals_s = poisson_arrivals(50, 20_000, seed=3)
    pairs = zip([0.0, *arrivals_s], arrivals_s, strict=False)
    gaps_s = [later - earlier for earlier, later in pairs]
    mean_s = sum(gaps_s) / len(gaps_s)
    deviation_s = (sum((gap_s - mean_s) ** 2 for gap_s in gaps_s) / len(gaps_s)) ** 0.5
    assert mean_s == pytest.approx(1 / 50, rel=0.03)
    assert deviation_s == pytest.approx(1 / 50, rel=0.03)
    assert poisson_arrivals(50, 20_000, seed=3) == arrivals_s
    assert poisson_arrivals(50, 20_000, seed=4) != arrivals_s


def test_clients_are_served_at_once_and_share_the_queue() -> None:
    """Two requests meet in their servers; each request is answered once."""
    meeting = threading.Barrier(2, timeout=30)
    numbers: dict[str, list[int]] = {"first": [], "second": []}

    def serve(name: str, number: int) -> None:
        meeting.wait()
        numbers[name].append(number)

    servers = [lambda number: serve("first", number), lambda number: serve("second", number)]
    clock = SimulatedClock()
    arrivals_s = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert len(open_loop(servers, arrivals_s, clock).latency_ms) == 6
    assert sorted(numbers["first"] + numbers["second"]) == [0, 1, 2, 3, 4, 5]
    assert len(numbers["first"]) == len(numbers["second"]) == 3


def test_an_error_of_a_server_is_raised() -> None:
    clock = SimulatedClock()
    answered = []

    def server(number: int) -> None:
        if number == 2:
            raise ValueError("no answer")
        answered.append(number)

    with pytest.raises(ValueError, match="no answer"):
        open_loop([server], [1.0, 2.0, 3.0, 4.0], clock)
    assert answered == [0, 1]


class Ticks:
    """A clock of which each look takes 10 µs, and of which each sleep ends 60 µs late."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.slept_s = 0.0
        self.looks = 0

    def now(self) -> float:
        self.looks += 1
        self.now_s += 10e-6
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds
        if seconds:
            self.now_s += seconds + 60e-6


def test_a_wait_sleeps_and_ends_with_a_short_spin() -> None:
    """All but 0.1 ms of a second is slept, and the wait ends neither early nor late."""
    ticks = Ticks()
    WallClock(10, ticks.now, ticks.sleep).wait_until(1.0)
    assert ticks.slept_s == pytest.approx(1.0, abs=2e-4)
    assert ticks.looks < 10
    assert 1.0 <= ticks.now_s <= 1.0 + 20e-6


def test_spinning_is_bounded_at_high_rates() -> None:
    """At 10,000 requests a second a wait spins for 5 µs, so it looks at the clock once or twice."""
    ticks = Ticks()
    clock = WallClock(10_000, ticks.now, ticks.sleep)
    for number in range(1, 101):
        clock.wait_until(number / 1000)
    assert ticks.looks <= 300
    assert ticks.slept_s > 0.09


def test_a_wait_for_the_past_is_none() -> None:
    ticks = Ticks()
    WallClock(10, ticks.now, ticks.sleep).wait_until(-1.0)
    assert ticks.slept_s == 0
    assert ticks.looks == 2
