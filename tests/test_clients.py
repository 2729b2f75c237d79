"""The closed loop of clients: who calls, how often, and what follows from the times."""

import threading
import time

import pytest

from autotune.measure.clients import Burst, Clients


def _burst(*calls: tuple[int, int, int], runs_per_call: int = 1) -> Burst:
    """Returns a burst of calls: client, start and end in ns."""
    return Burst(
        client=tuple(client for client, _, _ in calls),
        start_ns=tuple(start for _, start, _ in calls),
        call_ns=tuple(end - start for _, start, end in calls),
        cpu_ns=10,
        runs_per_call=runs_per_call,
    )


def test_a_call_of_several_runs_counts_as_such() -> None:
    burst = _burst((0, 0, 300), (0, 300, 600), runs_per_call=3)
    assert burst.run_ns == (100, 100)
    assert burst.throughput_per_s == pytest.approx(6 / 600e-9)


def test_all_clients_call_at_once() -> None:
    meeting = threading.Barrier(3, timeout=5)
    met = threading.Event()

    def meet() -> list[int]:
        if not met.is_set():
            meeting.wait()
            met.set()
        return [1]

    burst = Clients([meet] * 3).burst(seconds=0, fewest=1)
    assert met.is_set()
    assert burst.clients == 3


def test_no_client_stops_before_all_have_made_the_fewest_calls() -> None:
    calls = [0, 0]

    def fast() -> list[int]:
        calls[0] += 1
        time.sleep(0.001)
        return [10, 20]

    def slow() -> list[int]:
        calls[1] += 1
        time.sleep(0.02)
        return [30]

    burst = Clients([fast, slow]).burst(seconds=0, fewest=2, unrecorded=1)
    assert calls[1] == 3
    assert burst.client.count(1) == 2
    assert burst.client.count(0) == calls[0] - 1 > 3
    assert sorted(set(burst.run_ns)) == [10, 20, 30]  # single runs, whatever a call is


def test_a_failure_ends_the_burst() -> None:

    def fail() -> list[int]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Clients([fail, lambda: [1]]).burst(seconds=0, fewest=1)


@pytest.mark.parametrize(
    ("calls", "throughput_per_s"),
    [
        # the time in which all clients are busy: from 200 to 500 ns three calls of each
        (
            [(0, at, at + 100) for at in range(0, 500, 100)]
            + [(1, at, at + 100) for at in range(200, 600, 100)],
            6 / 300e-9,
        ),
        # a call over the end counts by its part: short bursts are not rounded to whole calls
        ([(0, 0, 100), (0, 100, 200), (1, 0, 150)], (1 + 0.5 + 1) / 150e-9),
        ([(0, 0, 100), (0, 100, 200), (1, 0, 100), (1, 100, 200)], 2 / 100e-9),
        # clients that never meet count with all of the burst
        ([(0, 0, 100), (1, 300, 400)], 2 / 400e-9),
    ],
)
def test_throughput_and_mean_latency(
    calls: list[tuple[int, int, int]], throughput_per_s: float
) -> None:
    burst = _burst(*calls)
    assert burst.throughput_per_s == pytest.approx(throughput_per_s)
    assert burst.mean_ms == pytest.approx(2e3 / throughput_per_s)
