"""An open loop: requests arrive at random, whether or not the server keeps up.

In a closed loop each client waits for its answer before it sends the next request. While the server
stalls, the clients send nothing, and the stall counts as one slow request however long it takes. In
an open loop requests go on arriving. Each is timed from its scheduled arrival, so a stall delays
every request that arrived meanwhile (Gil Tene's "coordinated omission").
"""

import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.deploy.records import MeasuredAmount, MeasuredPositive, Several

Server = Callable[[int], object]
"""Answers the request of that number; it returns when the answer is there."""

# Linux wakes a sleeping thread 50 to 100 µs late; the rest of a wait looks at the clock.
_SPIN_S = 100e-6
# Clients that spin take time from the server: at most this share of one core, at any rate.
_SPIN_SHARE = 0.05
# All clients have started before the first request arrives.
_LEAD_S = 0.02


class WallClock:
    """The machine's clock: it sleeps until shortly before the time, and spins until it.

    Args:
        rate_per_s: How often clients wait; it limits how long they spin.
    """

    def __init__(
        self,
        rate_per_s: float,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._spin_s = min(_SPIN_S, _SPIN_SHARE / rate_per_s)
        self._now = now
        self._sleep = sleep

    def now(self) -> float:
        """Returns seconds that never go back."""
        return self._now()

    def wait_until(self, time_s: float) -> None:
        """Returns once :meth:`now` is `time_s` or later."""
        sleep_s = time_s - self._now() - self._spin_s
        if sleep_s > 0:
            self._sleep(sleep_s)
        while self._now() < time_s:
            # Python's lock is free meanwhile; a client that held it would delay the others by 5 ms
            self._sleep(0)


@dataclass(frozen=True, kw_only=True)
class OpenLoop:
    """What an open loop measured.

    Attributes:
        latency_ms: From the scheduled arrival to the answer, of each request that was answered.
        offered_per_s: Requests that arrived in a second, in the mean.
        achieved_per_s: Requests that were answered in a second, from the beginning to the last
            answer.
        kept_up: Whether the server kept up. If not, the queue was never empty in the second half of
            the schedule: it grows for as long as requests arrive, and so do the latencies, which
            then say nothing about the server.
    """

    latency_ms: Several[MeasuredAmount]
    offered_per_s: MeasuredPositive
    achieved_per_s: MeasuredPositive
    kept_up: bool


def poisson_arrivals(rate_per_s: float, requests: int, seed: int) -> list[float]:
    """Returns when requests arrive, in seconds from the beginning: a Poisson process.

    Its gaps are independent and exponentially distributed.
    """
    source = random.Random(seed)
    return list(itertools.accumulate(source.expovariate(rate_per_s) for _ in range(requests)))


def open_loop(
    servers: Sequence[Server], arrivals_s: Sequence[float], clock: WallClock | None = None
) -> OpenLoop:
    """Sends requests by a schedule and returns their latencies.

    Requests wait in one queue, first come, first served. Each client, a thread, takes the next
    request, waits for its arrival if that is still to come, and calls its server. Where the server
    does not keep up, the rest of the queue is dropped once the last request has arrived.

    Args:
        servers: What each client calls. Clients that share a server name it several times.
        arrivals_s: When requests arrive, in seconds from the beginning, in order; at least one.

    Raises:
        Exception: what a server raised; the other clients end first.
    """
    rate_per_s = len(arrivals_s) / arrivals_s[-1]
    run = _Run(arrivals_s, clock or WallClock(rate_per_s))
    clients = [threading.Thread(target=run.client, args=(server,)) for server in servers]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    if run.errors:
        raise run.errors[0]
    answered = sorted(run.latency_s)
    return OpenLoop(
        latency_ms=tuple(run.latency_s[number] * 1e3 for number in answered),
        offered_per_s=rate_per_s,
        achieved_per_s=len(answered) / max(arrivals_s[n] + run.latency_s[n] for n in answered),
        kept_up=run.kept_up,
    )


class _Run:
    """An open loop under way.

    Attributes:
        latency_s: The latency of each request that was answered, by its number.
        kept_up: Whether a client was free when a request of the second half arrived.
    """

    def __init__(self, arrivals_s: Sequence[float], clock: WallClock) -> None:
        self.latency_s: dict[int, float] = {}
        self.kept_up = False
        self.errors: list[Exception] = []
        self._clock = clock
        self._began_s = clock.now() + _LEAD_S
        self._queue = deque(enumerate(arrivals_s))
        self._half = len(arrivals_s) // 2
        self._last_s = self._began_s + arrivals_s[-1]

    def client(self, server: Server) -> None:
        """Takes requests out of the queue and sends them to `server`, until the queue is empty."""
        try:
            while (request := self._take()) is not None:
                number, scheduled_s = request
                self._clock.wait_until(scheduled_s)
                server(number)
                self.latency_s[number] = self._clock.now() - scheduled_s
        except Exception as error:  # noqa: BLE001  # the thread that started the client raises it
            self.errors.append(error)
            self._queue.clear()

    def _take(self) -> tuple[int, float] | None:
        """Returns the next request and its scheduled time; None if there is none."""
        now_s = self._clock.now()
        if now_s > self._last_s and self.latency_s and not self.kept_up:
            return None
        try:
            number, arrival_s = self._queue.popleft()
        except IndexError:
            return None
        scheduled_s = self._began_s + arrival_s
        if number >= self._half and now_s < scheduled_s:
            self.kept_up = True
        return number, scheduled_s
