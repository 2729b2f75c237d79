"""The child that holds all sessions of an application and replays its calls. It decides nothing."""

import gc
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.applications.replies import OpenedSessions, Replayed, Saved, Speed
from autotune.applications.schedule import ScheduledCall
from autotune.deploy.opening import make_run_options, opening_arguments
from autotune.deploy.passed import ONLY_FETCHES, interface_of
from autotune.deploy.runtime import onnxruntime
from autotune.deploy.session import SessionConfig
from autotune.facts.feeds import Feed, load_samples, save_samples
from autotune.measure import memory
from autotune.measure.flatten import flatten, output_of
from autotune.process.child_end import Message, serve

# Work in an application's threads holds no lock of Python's for most of its time.
_BLOCK = bytes(1 << 16)
_LONGEST_PAUSE_S = 0.01
_CALIBRATION_S = 0.2

Look = Callable[[int, Feed, list[Any]], None]
"""Sees the number of a call, its inputs, and what it returned."""


class Replayer:
    """The state of the child: the sessions, the calls and their inputs."""

    def __init__(self) -> None:
        self._sessions: list[Any] = []
        self._specs: list[Message] = []
        self._asked: list[Any] = []
        self._has_pool = False
        self._calls: list[ScheduledCall] = []
        self._feeds: list[Feed] = []
        self._blocks_per_s = 0.0
        self._base_mib = 0.0
        self._fed_on: set[tuple[int, int]] = set()
        self._sources: set[int] = set()
        self._ends: dict[int, list[int]] = {}

    def speed(self, _: Message) -> Speed:
        """Returns how many blocks of work a thread does in a second."""
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < _CALIBRATION_S:
            zlib.crc32(_BLOCK)
            count += 1
        return Speed(blocks_per_s=count / (time.perf_counter() - began))

    def open(self, message: Message) -> OpenedSessions:
        """Opens all sessions in the order of the recording."""
        self._calls = [ScheduledCall(**call) for call in message["calls"]]
        self._feeds = list(load_samples(Path(message["feeds"])))
        last = {source: n for n, call in enumerate(self._calls) for source, _ in call.fed.values()}
        self._sources = set(last)
        for source, number in last.items():
            self._ends.setdefault(number, []).append(source)
        self._fed_on = {
            (self._calls[source].session, place)
            for call in self._calls
            for source, place in call.fed.values()
        }
        self._blocks_per_s = message["blocks_per_s"]
        gc.collect()
        memory.reset_peak()
        self._base_mib = memory.usage().resident_mib
        self._has_pool = message["pool_threads"] is not None
        if self._has_pool:
            pool = onnxruntime.capi.onnxruntime_inference_collection.C
            pool.set_global_thread_pool_sizes(message["pool_threads"], 1)
        began = time.perf_counter()
        self._specs = message["sessions"]
        self._sessions = [self._opened(spec) for spec in self._specs]
        load_s = time.perf_counter() - began
        self._asked = [self._run_options(call) for call in self._calls]
        return OpenedSessions(
            load_s=load_s,
            interfaces=tuple(interface_of(session) for session in self._sessions),
        )

    def _opened(self, spec: Message) -> Any:
        """Returns a new session."""
        cache = Path(spec["cache"]) if spec["cache"] else None
        config = SessionConfig.from_json(spec["session"])
        settings, named = opening_arguments(config, cache=cache)
        if self._has_pool:
            settings.use_per_session_threads = False
        return onnxruntime.InferenceSession(spec["model"], settings, enable_fallback=0, **named)

    def _run_options(self, call: ScheduledCall) -> Any:
        """Returns the run options of a call: the session's own with those of the application."""
        config = SessionConfig.from_json(self._specs[call.session]["session"])
        if not config.run_entries and not call.run_options:
            return None
        chosen = make_run_options(config)
        for name, text in call.run_options.items():
            if name == ONLY_FETCHES:
                chosen.only_execute_path_to_fetches = True
            elif name not in config.run_entries:
                chosen.add_run_config_entry(name, text)
        return chosen

    def _prepare(self) -> None:
        """Opens what the schedule takes for open at its begin."""
        first = {call.session: call.kind for call in reversed(self._calls)}
        for number, session in enumerate(self._sessions):
            if session is None and first.get(number) != "open":
                self._sessions[number] = self._opened(self._specs[number])

    def replay(self, _: Message) -> Replayed:
        """Replays all calls; returns the time, and the memory that the sessions hold afterwards."""
        self._prepare()
        cpu_began, began = time.process_time(), time.perf_counter()
        self._play_all(None)
        seconds = time.perf_counter() - began
        cpu_s = time.process_time() - cpu_began
        gc.collect()
        now = memory.usage()
        return Replayed(
            seconds=seconds,
            cpu_s=cpu_s,
            peak_mib=max(0.0, now.peak_mib - self._base_mib),
            held_mib=max(0.0, now.resident_mib - self._base_mib),
        )

    def save(self, message: Message) -> Saved:
        """Makes all calls without what lies between them, and writes what some take and return."""
        folder, sizes = Path(message["folder"]), [0] * len(self._calls)

        def look(number: int, feed: Feed, results: list[Any]) -> None:
            sizes[number] = sum(array.nbytes for array in feed.values())
            if number in message["inputs"]:
                save_samples([feed], folder / f"{number}.inputs.npz")
            if number in message["answers"]:
                save_samples([self._answers(number, results)], folder / f"{number}.answers.npz")

        self._prepare()
        self._play_all(look)
        return Saved(input_bytes=tuple(sizes))

    def _answers(self, number: int, results: list[Any]) -> Feed:
        """Returns what a call returned, but for what sessions are fed."""
        call = self._calls[number]
        outputs = call.outputs or [item.name for item in self._sessions[call.session].get_outputs()]
        flat = flatten(outputs, results)
        fed = [name for place, name in enumerate(outputs) if (call.session, place) in self._fed_on]
        return {name: array for name, array in flat.items() if output_of(name) not in fed}

    def _play_all(self, look: Look | None) -> None:
        """Makes the calls of all threads.

        Raises:
            Exception: the first fault of a call.
        """
        own: dict[int, list[int]] = {}
        for number, call in enumerate(self._calls):
            own.setdefault(call.thread, []).append(number)
        done = [threading.Event() for _ in self._calls] if len(own) > 1 else []
        faults: list[BaseException] = []
        others = [
            threading.Thread(target=self._play, args=(numbers, done, faults, look))
            for numbers in list(own.values())[1:]
        ]
        for thread in others:
            thread.start()
        self._play(next(iter(own.values())), done, faults, look)
        for thread in others:
            thread.join()
        if faults:
            raise faults[0]

    def _play(
        self,
        numbers: list[int],
        done: list[threading.Event],
        faults: list[BaseException],
        look: Look | None,
    ) -> None:
        """Makes the calls of one thread; a fault lets all threads go on to their end."""
        made: dict[int, list[Any]] = {}  # what is fed to later calls, until the last of them
        for number in numbers:
            call = self._calls[number]
            try:
                if done and call.after >= 0:
                    done[call.after].wait()
                if look is None:
                    self._spend(call)
                if call.kind == "run":
                    self._run(number, made, look)
                else:
                    self._sessions[call.session] = None
                    if call.kind == "open":
                        self._sessions[call.session] = self._opened(self._specs[call.session])
            except Exception as error:  # noqa: BLE001  # the parent gets the first of them
                faults.append(error)
            if done:
                done[number].set()

    def _spend(self, call: ScheduledCall) -> None:
        """Does what the application did before a call."""
        for _ in range(round(call.work_s * self._blocks_per_s)):
            zlib.crc32(_BLOCK)
        if call.pause_s:
            time.sleep(min(call.pause_s, _LONGEST_PAUSE_S))

    def _run(self, number: int, made: dict[int, list[Any]], look: Look | None) -> None:
        call = self._calls[number]
        feed = dict(self._feeds[call.feed])
        for name, (source, place) in call.fed.items():
            feed[name] = made[source][place]
        results = self._sessions[call.session].run(call.outputs, feed, self._asked[number])
        if look is not None:
            look(number, feed, results)
        for source in self._ends.get(number, ()):
            del made[source]
        if number in self._sources:
            made[number] = results


if __name__ == "__main__":
    replayer = Replayer()
    serve(
        {
            "speed": replayer.speed,
            "open": replayer.open,
            "replay": replayer.replay,
            "save": replayer.save,
        }
    )
