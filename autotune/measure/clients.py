"""A closed loop of clients: each makes one call after another, and all of them at once.

Clients are threads: ONNX Runtime gives up Python's global lock while it runs. Nothing here knows
sessions or the messages to a measuring process: a call is any function.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from autotune.deploy.records import PositiveWhole, Several, Whole
from autotune.errors import FormatError

Call = Callable[[], Sequence[int]]
"""One call of a client, such as a run of its session on its next sample; returns the time of each
run in ns."""


@dataclass(frozen=True, kw_only=True)
class Burst:
    """The recorded calls of a short time in which all clients were busy.

    The lists have an item for each call, client by client.

    Attributes:
        start_ns: When the call began, by ``time.perf_counter_ns``.
        call_ns: How long it took.
        cpu_ns: The CPU time of all threads of the process in these calls.
        runs_per_call: How many runs one call makes.
        each_ns: The time of each run of all calls; empty where a call is one run.

    Raises:
        FormatError: the lists differ in length.
    """

    client: Several[Whole]
    start_ns: Several[Whole]
    call_ns: Several[PositiveWhole]
    cpu_ns: Whole
    runs_per_call: PositiveWhole = 1
    each_ns: tuple[PositiveWhole, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.client) == len(self.start_ns) == len(self.call_ns):
            raise FormatError("'client', 'start_ns' and 'call_ns' must have one length")

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(set(self.client))

    @property
    def run_ns(self) -> tuple[int, ...]:
        """The latency of each run as its client sees it."""
        return self.each_ns or tuple(max(1, ns // self.runs_per_call) for ns in self.call_ns)

    @property
    def throughput_per_s(self) -> float:
        """Completed runs per second while all clients were busy.

        That time is from the start of the last client to the end of the first one that stops: at
        both ends of a burst fewer clients compete. A call that reaches over an end of that time
        counts by its part within, so that short bursts are not rounded to whole calls.
        """
        client, start, call = (np.asarray(x) for x in (self.client, self.start_ns, self.call_ns))
        end = start + call
        mine = [client == number for number in set(self.client)]
        began, ended = max(start[m].min() for m in mine), min(end[m].max() for m in mine)
        if ended <= began:  # a client ended before another began: all of the burst counts
            began, ended = start.min(), end.max()
        within = np.clip(end, began, ended) - np.clip(start, began, ended)
        return float((within / call).sum()) * self.runs_per_call / float(ended - began) * 1e9

    @property
    def mean_ms(self) -> float:
        """The mean latency of a run as a client sees it, while all clients were busy.

        In a closed loop without pauses that is the number of clients over the throughput (Little,
        A Proof for the Queuing Formula L = lambda W, 1961).
        """
        return self.clients / self.throughput_per_s * 1e3


class Clients:
    """Clients that wait for the next burst; their threads end with the process."""

    def __init__(self, calls: Sequence[Call], runs_per_call: int = 1) -> None:
        self._calls = calls
        self._runs_per_call = runs_per_call
        self._threads = ThreadPoolExecutor(len(calls))

    def burst(self, *, seconds: float, fewest: int, unrecorded: int = 0) -> Burst:
        """Returns the calls of a burst.

        The clients go on for `seconds`, and until each of them has made `fewest` recorded calls.
        None stops before that, so that those who are slow do not run alone.

        Args:
            fewest: The recorded calls that every client makes at least; 1 or more.
            unrecorded: Calls of every client before them: caches are cold after a pause.

        Raises:
            Exception: that of a call.
        """
        unfinished = set(range(len(self._calls)))
        end_ns = time.perf_counter_ns() + int(seconds * 1e9)

        def loop(number: int) -> list[tuple[int, int, Sequence[int]]]:
            call, times = self._calls[number], []
            try:
                for _ in range(unrecorded):
                    call()
                while unfinished or time.perf_counter_ns() < end_ns:
                    start_ns = time.perf_counter_ns()
                    each_ns = call()
                    times.append((start_ns, max(1, time.perf_counter_ns() - start_ns), each_ns))
                    if len(times) == fewest:
                        unfinished.discard(number)
            finally:  # after a failure the others must not wait for this one
                unfinished.discard(number)
            return times

        began_cpu_ns = time.process_time_ns()
        running = [self._threads.submit(loop, number) for number in range(len(self._calls))]
        recorded = [client.result() for client in running]
        cpu_ns = time.process_time_ns() - began_cpu_ns
        count = sum(map(len, recorded))
        return Burst(
            client=tuple(number for number, times in enumerate(recorded) for _ in times),
            start_ns=tuple(start_ns for times in recorded for start_ns, _, _ in times),
            call_ns=tuple(call_ns for times in recorded for _, call_ns, _ in times),
            each_ns=tuple(ns for times in recorded for _, _, each in times for ns in each),
            cpu_ns=cpu_ns * count // (count + unrecorded * len(recorded)) // self._runs_per_call,
            runs_per_call=self._runs_per_call,
        )
