"""The child that opens one session, runs it and reports times and memory. It decides nothing.

Every measurement starts one: what it imports is part of the time of each trial, and
``tests/test_measure_child.py`` holds its imports to the few that it needs.
"""

import gc
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import onnxruntime

from autotune.deploy.decoder import Plan
from autotune.deploy.opening import open_session
from autotune.deploy.placement import placement_of
from autotune.deploy.providers import provider_named
from autotune.deploy.records import read
from autotune.deploy.session import SessionConfig
from autotune.facts.feeds import Feed, load_samples, save_samples
from autotune.measure import memory
from autotune.measure.device_memory import DeviceMemory
from autotune.measure.flatten import save_outputs
from autotune.measure.replies import Done, FirstRuns, Opened, Producers, SliceTimes
from autotune.measure.runs import CapturedAnswers, Runs, runs_of
from autotune.process.child_end import Handler, Message, serve

if TYPE_CHECKING:  # threads are imported where there are several clients
    from autotune.measure.clients import Burst, Call, Clients
    from autotune.measure.generation import GenerationRuns

# Memory patterns settle in five; without the arena the heap grows for ten.
_FEWEST_MEMORY_RUNS = 5
_MEMORY_RUNS = 20
# A slow model has fewer runs: one that takes seconds a run has two.
_MEMORY_S = 1.0
_FEWEST_MEMORY_S = 3.0
# More than the fewest bring nothing where all runs of a session have the same peak.
_SETTLED_MEMORY_S = 0.1


class Worker:
    """The state of the child: its sessions and the samples that they run."""

    def __init__(self) -> None:
        self._sessions: list[onnxruntime.InferenceSession] = []
        self._client_count = 1
        self._longest_memory_s = _MEMORY_S
        self._clients: Clients | None = None
        self._runs: dict[int, Runs] = {}  # by client
        self._plan: Plan | None = None
        self._device, self._device_id = "cpu", 0
        self._captured: SessionConfig | None = None  # of a session that replays captured graphs
        self._device_memory: DeviceMemory | None = None
        self._feeds: list[Feed] = []
        self._others: Sequence[Feed] = []
        self._kept_blocks: list[bytearray] = []
        self._next = 0
        self._mixed = False

    def handlers(self) -> dict[str, Handler]:
        """Returns the methods that answer each message."""
        return {
            "open": self.open,
            "load": self.load,
            "first_runs": self.first_runs,
            "held": self.held,
            "answers": self.answers,
            "producers": self.producers,
            "slice": self.time_slice,
            "burst": self.burst,
            "part": self.part,
            "write_text": self.write_text,
        }

    def open(self, message: Message) -> Opened:
        """Creates the sessions; returns how long that took and the memory around it."""
        self._client_count = message.get("clients", 1)
        self._feeds = list(load_samples(Path(message["samples"])))
        self._mixed = not message["one_shape"]
        others = message.get("others")
        self._others = load_samples(Path(others)) if others else []
        self._plan = read(Plan | None, message.get("plan"), "plan")
        config = SessionConfig.from_json(message["session"])
        cache = Path(message["cache"]) if message.get("cache") else None
        if self._client_count == 1 and _keeps_what_it_allocates(config):
            self._longest_memory_s = _SETTLED_MEMORY_S
        if config.accelerator is not None:
            self._device = provider_named(config.accelerator).device
            chosen = dict(config.providers)[config.accelerator]
            self._device_id = int(chosen.get("device_id", 0))
            self._captured = config if config.captures_graphs else None
        if self._device != "cpu":
            self._device_memory = DeviceMemory.start()
        self._kept_blocks = memory.live_through(message["history"])
        gc.collect()
        peak_was_reset = memory.reset_peak()
        base = memory.usage()
        began = time.perf_counter_ns()
        self._sessions = [
            open_session(Path(message["model"]), config, cache=cache)
            for _ in range(message.get("sessions", 1))
        ]
        load_ms = (time.perf_counter_ns() - began) / 1e6
        loaded = memory.usage()
        return Opened(
            load_ms=load_ms,
            base=base,
            loaded=loaded,
            peak_was_reset=peak_was_reset,
            placement=None if config.accelerator is None else placement_of(self._sessions[0]),
            inputs=tuple(item.name for item in self._sessions[0].get_inputs()),
            optional=tuple(i.name for i in self._sessions[0].get_overridable_initializers()),
        )

    def load(self, message: Message) -> Done:
        """Loads a config as an application does, strictly: another file or machine is refused."""
        from autotune.deploy.loader import load

        self._plan = read(Plan | None, message.get("plan"), "plan")
        self._feeds = list(load_samples(Path(message["samples"])))
        self._sessions = [load(message["config"], strict=True)]
        return Done()

    def first_runs(self, message: Message) -> FirstRuns:
        """Runs the samples in turn until the memory has settled; returns times and memory.

        Memory grows in the first runs: ONNX Runtime plans memory patterns and extends the arena,
        and without an arena the allocator's heap finds its size. Samples that differ in shape are
        all run, however long that takes, and then shapes that are not timed, as far as there is
        time, the largest first.
        """
        memory.reset_peak()
        if self._plan is not None:
            return self._first_generations(message.get("longest_step_ms"))
        began = time.perf_counter()
        rounds: list[Sequence[int]] = []
        fewest = max(_FEWEST_MEMORY_RUNS, len(self._feeds))
        while (
            len(rounds) < 2
            or (len(rounds) < fewest and time.perf_counter() - began < _FEWEST_MEMORY_S)
            or (len(rounds) < _MEMORY_RUNS and time.perf_counter() - began < self._longest_memory_s)
        ):
            rounds.append(self._run_of_all())
        for feed in reversed(self._others):
            if time.perf_counter() - began < _FEWEST_MEMORY_S:
                self._sessions[0].run(None, dict(feed))
        after = memory.usage()  # before the copies to a device
        return FirstRuns(
            first_run_ms=rounds[0][0] / 1e6,
            run_ms=float(np.median(np.concatenate(rounds[1:]))) / 1e6,
            after=after,
            copy_ms=self._runs_of(0).copy_ms(),
            device=None if self._device_memory is None else self._device_memory.usage(),
        )

    def _first_generations(self, longest_step_ms: float | None) -> FirstRuns:
        """Runs whole generations of all prompts; returns times, and the memory at their ends.

        Nothing more is run where the first steps all take longer than `longest_step_ms`.
        """
        runs = cast("GenerationRuns", self._runs_of(0))
        first_ms, step_ms = runs.first(len(self._feeds) - 1)
        if longest_step_ms is not None and step_ms > longest_step_ms:
            after = memory.usage()
            return FirstRuns(first_run_ms=first_ms, run_ms=step_ms, after=after, too_slow=True)
        lengths = tuple(runs.whole(number) for number in range(len(self._feeds)))
        after = memory.usage()
        for client in range(self._client_count):
            self._runs_of(client).begin()
        if self._client_count > 1:
            self._run_of_all()
            after = memory.usage()
        return FirstRuns(
            first_run_ms=first_ms,
            run_ms=float(np.mean([item.step_ms for item in lengths])),
            after=after,
            device=None if self._device_memory is None else self._device_memory.usage(),
            lengths=lengths,
        )

    def part(self, message: Message) -> Done:
        """Takes the other part of a decoder's generations for the next time slices."""
        for runs in self._runs.values():
            runs.switch(message["part"])
        return Done()

    def write_text(self, message: Message) -> Done:
        """Lets the decoder write text, which rates the answers of others."""
        from autotune.measure.generation import write_text

        assert self._plan is not None
        write_text(self._sessions[0], self._plan, self._feeds[0], Path(message["to"]))
        return Done()

    def held(self, _: Message) -> memory.Usage:
        """Returns the memory that the process holds now."""
        return memory.usage()

    def answers(self, message: Message) -> Done:
        """Runs other samples and writes the outputs to a file, for the parent to compare."""
        samples, target = Path(message["samples"]), Path(message["to"])
        if self._plan is None:
            session, run = self._sessions[0], None
            if self._captured is not None:
                run = CapturedAnswers(session, self._captured, self._device, self._device_id).run
            save_outputs(session, samples, target, run)
        else:
            from autotune.measure.generation import save_rated_text

            first, end = message.get("windows") or (0, None)
            windows = load_samples(samples)[first:end]
            save_rated_text(self._sessions[0], self._plan, self._feeds[0], windows, target)
        return Done()

    def producers(self, message: Message) -> Producers:
        """Returns the producers of a model's outputs; writes the number of that of each element."""
        from autotune.measure.producers import numbers_of_elements

        samples = load_samples(Path(message["samples"]))
        chosen = [samples[number] for number in message["numbers"]]
        producers, numbers = numbers_of_elements(Path(message["model"]), chosen)
        save_samples(numbers, Path(message["to"]))
        return Producers(of_outputs=producers)

    def time_slice(self, message: Message) -> SliceTimes:
        """Runs for a short while; returns every run's time and the CPU time of all threads.

        The first runs after a pause are cold, because caches hold the other side's data; they are
        left out.
        """
        self._begin()
        for _ in range(message["unrecorded_runs"]):
            self._timed_round()
        rounds: list[list[int]] = []
        began_cpu = time.process_time_ns()
        end = time.perf_counter_ns() + int(message["seconds"] * 1e9)
        while len(rounds) < message["fewest_runs"] or time.perf_counter_ns() < end:
            rounds.append(self._timed_round())
        cpu_ns = time.process_time_ns() - began_cpu
        run_ns = tuple(ns for each in rounds for ns in each)
        return SliceTimes(run_ns=run_ns, cpu_ns=cpu_ns, round=len(rounds[0]))

    def burst(self, message: Message) -> "Burst":
        """Lets all clients run at once for a short while; returns the times of their runs.

        The first runs after a pause are left out here as well.
        """
        self._begin()
        return self._made_clients().burst(
            seconds=message["seconds"],
            fewest=message["fewest_runs"],
            unrecorded=message["unrecorded_runs"],
        )

    def _run_of_all(self) -> Sequence[int]:
        """Returns the times of a run of each client, all at once; the fast ones may run again."""
        if self._client_count == 1:
            times = self._timed_round()
            return (sum(times) // len(times),)
        return self._made_clients().burst(seconds=0, fewest=1).run_ns

    def _made_clients(self) -> "Clients":
        """Returns the clients; they are made at the first use."""
        if self._clients is None:
            from autotune.measure.clients import Clients

            calls = [self._call_of(number) for number in range(self._client_count)]
            self._clients = Clients(calls, len(self._feeds) if self._mixed else 1)
        return self._clients

    def _begin(self) -> None:
        """Lets a decoder's time slice begin at the same context as every other one."""
        for runs in self._runs.values():
            runs.begin()

    def _call_of(self, client: int) -> "Call":
        """Returns a client's call: its next sample, or all samples where their shapes differ."""
        runs = self._runs_of(client)
        numbers = range(len(self._feeds))
        samples = cycle([numbers] if self._mixed else [range(i, i + 1) for i in numbers])

        return lambda: _times_of(runs, next(samples))

    def _runs_of(self, client: int) -> Runs:
        """Returns the runs of a client; they are made at the first use.

        The first client has the first session, and so on; where there is one session it is shared.
        """
        if client not in self._runs:
            session = self._sessions[client % len(self._sessions)]
            if self._plan is None:
                self._runs[client] = runs_of(
                    session, self._feeds, self._device, self._device_id, self._captured
                )
            else:
                from autotune.measure.generation import GenerationRuns

                self._runs[client] = GenerationRuns(session, self._plan, self._feeds)
        return self._runs[client]

    def _timed_round(self) -> list[int]:
        """Returns the times of a round: of one sample, or of each where their shapes differ.

        A run of a large sample must not be compared with the other side's run of a small one.
        """
        runs = self._runs_of(0)
        chosen = range(len(self._feeds)) if self._mixed else (self._next,)
        self._next = (self._next + 1) % len(self._feeds)
        return _times_of(runs, chosen)


def _times_of(runs: Runs, chosen: Sequence[int]) -> list[int]:
    """Returns the time of a run of each of these samples, in ns."""
    times = []
    for index in chosen:
        began = time.perf_counter_ns()
        runs.run(index)
        times.append(max(1, time.perf_counter_ns() - began))
    return times


def _keeps_what_it_allocates(config: SessionConfig) -> bool:
    """Returns whether a session's first runs leave nothing for later ones to allocate.

    Without the arena, and with one that shrinks after each run, every run allocates anew; and
    devices have allocators of their own.
    """
    has_arena = bool(config.options.get("enable_cpu_mem_arena", True))
    return has_arena and not config.run_entries and config.accelerator is None


if __name__ == "__main__":
    gc.disable()
    serve(Worker().handlers())
