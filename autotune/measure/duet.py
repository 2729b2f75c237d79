"""Time slices of two processes, alternating; the process that waits is frozen.

An idle ONNX Runtime pool goes on spinning on the cores that the other process needs, so a waiting
process that is not frozen would slow the other one down. Where neighbours on the machine slow both
sides down, alternating cancels it. Where they slow one side alone, it does not: a configuration of
one thread hardly feels a neighbour that halves the baseline's speed. So the baseline is the sensor
as well: the configuration has its time slices while the baseline runs as fast as it does on a quiet
machine. The project's docs have the figures, and ``benchmarks/noise.py`` makes them.

What runs on a device feels no neighbour of the processor, which the baseline runs on. So its time
slices follow each other, and are compared with the baseline's time on a quiet machine.
"""

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import psutil

from autotune.deploy import cgroups
from autotune.deploy.config import Interval
from autotune.measure.clients import Burst
from autotune.measure.other_programs import are_busy, busy_s
from autotune.measure.outcome import Effort, rests_on_quiet
from autotune.measure.replies import PROMPTS, STEPS, Done, SliceTimes
from autotune.measure.statistics import (
    QUIET_SHARE,
    chosen_slices,
    median_interval,
    undisturbed_limit,
    warm_up,
)
from autotune.process.child import Child, ChildFailure

_SLICE_S = 0.010
# Under load runs wait for each other: longer time slices scatter less.
_LOADED_SLICE_S = 0.050
_FEWEST_LOADED_RUNS = 2
# After its cold run a time slice has two more at least where runs are this short.
_SHORT_RUN_MS = 5.0
# The speed of a quiet machine comes from the last time slices of some 20 trials.
_MEMORY_SLICES = 2000
_FEWEST_CALIBRATION_SLICES = 3
_CALIBRATION_PAUSE_S = 0.02
# Four seconds, halved so often, are an eighth of a second.
_MOST_HALVINGS = 5
_FEWEST_PAIRS = 3
# Where the first time slices are noisy, so many pairs wait for nothing: what is surely dominated is
# not worth waiting for. Slow models have fewer, in a share of the patience.
_NOISY_LOOK = 8
_NOISY_LOOK_SHARE = 1 / 8
# Looks at the interval are spaced, so that stopping early is not fishing for a lucky moment. The
# first one is for what is far too slow: of 122 recorded duets none was 5 % slower than it is in all
# of its first four time slices.
# So many times the time that the runs of a percentile take on a quiet machine they may take.
_LONGEST_WAIT = 3.0
_LOOKS = frozenset({4, 8, 14, 20, *range(30, 1000, 10)})
# A pause lets a neighbour finish and the host place the virtual cores anew: on a shared host two of
# them share a physical core at times, and without pauses that lasted for 10 to 30 s.
_PAUSES_S = (0.0, 0.02, 0.04, 0.08)


@dataclass(frozen=True, kw_only=True)
class TimeSlice:
    """One time slice of one process.

    Attributes:
        run_ns: The time of each run.
        cpu_ns: The CPU time of all threads in all of them.
        round: How many runs one after another belong together, each of another sample.
        stolen: Whether the host or a quota took a core away meanwhile.
        mean_ms: With several clients the mean latency while all of them were busy, which is their
            number over the throughput; None with one client.
    """

    run_ns: tuple[int, ...]
    cpu_ns: int
    stolen: bool
    mean_ms: float | None = None
    round: int = 1

    @cached_property
    def ms(self) -> float:
        """The time slice's own estimate of a run: the median, or with several clients the mean.

        A ratio of means is the inverse ratio of throughputs. Of samples that differ in shape it is
        the median of the rounds' means: a large one is not compared with a small one.
        """
        if self.mean_ms is not None:
            return self.mean_ms
        return float(np.median(np.reshape(self.run_ns, (-1, self.round)).mean(1))) / 1e6


def take_slice(
    child: Child,
    run_ms: float,
    limit_s: float,
    clients: int = 1,
    *,
    long_run_ms: float = Effort.long_run_ms,
) -> TimeSlice:
    """Thaws `child` for a time slice and freezes it again.

    Args:
        long_run_ms: Longer runs are not repeated for warmth; see
            :attr:`autotune.measure.outcome.Effort.long_run_ms`.

    Raises:
        ChildFailure: it did not answer.
    """
    request = {
        "do": "slice",
        "seconds": _SLICE_S,
        "unrecorded_runs": 0 if run_ms > long_run_ms else 1,
        "fewest_runs": 1 if run_ms > _SHORT_RUN_MS else 2,
    }
    if clients > 1:
        request |= {
            "do": "burst",
            "seconds": _LOADED_SLICE_S,
            "fewest_runs": _FEWEST_LOADED_RUNS,
        }
    reply: type[SliceTimes | Burst] = Burst if clients > 1 else SliceTimes
    stolen_before_s = stolen_s()
    child.thaw()
    times = child.request(request, limit_s, reply)
    child.freeze()
    stolen = stolen_s() > stolen_before_s
    if isinstance(times, Burst):
        if times.clients != clients:
            raise ChildFailure("protocol", f"runs of {times.clients} clients, not {clients}")
        return TimeSlice(
            run_ns=times.run_ns, cpu_ns=times.cpu_ns, stolen=stolen, mean_ms=times.mean_ms
        )
    if len(times.run_ns) % times.round:
        raise ChildFailure("protocol", f"{len(times.run_ns)} runs are no rounds of {times.round}")
    return TimeSlice(run_ns=times.run_ns, cpu_ns=times.cpu_ns, stolen=stolen, round=times.round)


def stolen_s() -> float:
    """Returns for how long our cores were taken away, in s of one core.

    The host may run others on our virtual cores, or a quota of the CPU may stop this process. The
    time counts from the start of the machine. It is always 0 where the system does not tell.
    """
    return float(getattr(psutil.cpu_times(), "steal", 0.0)) + cgroups.throttled_us() / 1e6


class Reference:
    """The long-lived process of the baseline, and how fast it is while the machine is quiet.

    It does the same work in each time slice, so what makes it slower comes from outside.

    Args:
        start: Starts the process and opens the baseline in it; returns it, frozen, with about how
            long a run takes, in ms.
        limit_s: Returns how long to wait for a time slice; called before each.
    """

    def __init__(
        self,
        start: Callable[[], tuple[Child, float]],
        limit_s: Callable[[], float],
        clients: int = 1,
    ) -> None:
        self._halvings = 0
        self._start = start
        self._limit_s = limit_s
        self._clients = clients
        self._part = STEPS
        self._times_of: dict[str, deque[float]] = {
            part: deque(maxlen=_MEMORY_SLICES) for part in (STEPS, PROMPTS)
        }
        self._part_ms: float | None = None
        self._child, self._run_ms = start()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._child.pid

    @property
    def _times(self) -> deque[float]:
        return self._times_of[self._part]

    @contextmanager
    def prompts(self, run_ms: float, *others: Child) -> Iterator[None]:
        """Lets this process, and others that are frozen, run a decoder's prompts meanwhile.

        Raises:
            ChildFailure: one of them did not answer.
        """
        try:
            self._part_ms = run_ms
            self._switch(PROMPTS, *others)
            yield
        finally:
            self._part_ms = None
            self._switch(STEPS, *others)

    def _switch(self, part: str, *others: Child) -> None:
        self._part = part
        for child in (self._child, *others):
            if not child.is_running():
                continue
            child.thaw()
            child.request({"do": "part", "part": part}, self._limit_s(), Done)
            child.freeze()

    def patience_s(self, effort: Effort) -> float:
        """Returns how long a measurement waits for a quiet machine now, in s.

        On a machine that is noisy all day every one would wait to the end, for nothing.
        """
        return effort.patience_s * 0.5**self._halvings

    def learn(self, *, is_undisturbed: bool) -> None:
        """Halves the patience where waiting was in vain, and doubles it after a quiet duet."""
        change = -1 if is_undisturbed else 1
        self._halvings = min(max(self._halvings + change, 0), _MOST_HALVINGS)

    @property
    def undisturbed_ms(self) -> float:
        """A time slice up to this long was not disturbed."""
        return undisturbed_limit(self._times)

    def time_slice(self, long_run_ms: float = Effort.long_run_ms) -> TimeSlice:
        """Returns a time slice of the process.

        Raises:
            ChildFailure: it did not answer.
        """
        time_slice = take_slice(
            self._child,
            self._part_ms or self._run_ms,
            self._limit_s(),
            self._clients,
            long_run_ms=long_run_ms,
        )
        self._times.append(time_slice.ms)
        return time_slice

    def is_undisturbed(self, time_slice: TimeSlice) -> bool:
        """Returns whether nothing disturbed this time slice."""
        return time_slice.ms <= self.undisturbed_ms and not time_slice.stolen

    def calibrate(self, slices: int, budget_s: float) -> float:
        """Returns the time of a run in ms on a quiet machine, by time slices with pauses."""
        spent_s = 0.0
        count = 0
        while count < _FEWEST_CALIBRATION_SLICES or (count < slices and spent_s < budget_s):
            spent_s += sum(self.time_slice().run_ns) / 1e9 / self._clients
            count += 1
            if count % 8 == 0:
                time.sleep(_CALIBRATION_PAUSE_S)
        recent = list(self._times)[-count:]
        return float(np.median([ms for ms in recent if ms <= self.undisturbed_ms]))

    def is_running(self) -> bool:
        """Returns whether the process is alive, frozen or not."""
        return self._child.is_running()

    def renew(self) -> None:
        """Replaces the process by a fresh one; the times of its time slices are kept."""
        self._child.stop()
        self._child, self._run_ms = self._start()
        if self._part != STEPS:
            self._switch(self._part)

    def stop(self) -> None:
        """Ends the process."""
        self._child.stop()


@dataclass(frozen=True, kw_only=True)
class Duet:
    """The time slices of a duet.

    Attributes:
        reference: All time slices of the reference, in order.
        configuration: The time slices of the configuration.
        before: For each time slice of the configuration the number of the reference's time slice
            before it; the reference's next time slice came after it.
        undisturbed_ms: A time slice of the reference up to this long was not disturbed.
        others: For each time slice of the configuration whether other programs held the cores
            meanwhile; empty where nobody asked.
        spent_s: Seconds of the time slices, their messages included: ``configuration``,
            ``reference``, and ``waited`` for a quieter machine.
        quiet_ms: The time of the reference on a quiet machine, for a configuration that runs on a
            device, and so has no neighbours among the reference's time slices; None for all others.
        fewest_runs: Where the quiet time slices have fewer runs than this, all of them count.
    """

    reference: tuple[TimeSlice, ...]
    configuration: tuple[TimeSlice, ...]
    before: tuple[int, ...]
    undisturbed_ms: float
    spent_s: Mapping[str, float]
    others: tuple[bool, ...] = ()
    quiet_ms: float | None = None
    fewest_runs: int = 0

    @cached_property
    def ratios(self) -> list[float]:
        """Each time slice of the configuration over the mean of the two time slices around it."""
        if self.quiet_ms is not None:
            return [time_slice.ms / self.quiet_ms for time_slice in self.configuration]
        around = [(self.reference[i].ms + self.reference[i + 1].ms) / 2 for i in self.before]
        return [
            time_slice.ms / ms for time_slice, ms in zip(self.configuration, around, strict=True)
        ]

    @cached_property
    def quiet(self) -> list[bool]:
        """By time slice of the configuration: whether it and those around it were undisturbed."""
        if self.quiet_ms is not None:
            return [not time_slice.stolen for time_slice in self.configuration]
        others = self.others or (False,) * len(self.configuration)
        return [
            not (time_slice.stolen or is_held)
            and all(
                beside.ms <= self.undisturbed_ms and not beside.stolen
                for beside in self.reference[i : i + 2]
            )
            for time_slice, i, is_held in zip(self.configuration, self.before, others, strict=True)
        ]

    @cached_property
    def settled_from(self) -> int | None:
        """Number of the configuration's first time slice in a steady state; None if it has none."""
        return warm_up(self.ratios, self.quiet)

    @property
    def is_undisturbed(self) -> bool:
        """Whether there are enough quiet time slices for an estimate that rests on them."""
        return rests_on_quiet(self._settled.count(True), len(self._settled))

    @cached_property
    def _settled(self) -> list[bool]:
        """Of each time slice in a steady state whether it counts as quiet."""
        first = self.settled_from or 0
        quiet = self.quiet[first:]
        pairs = zip(self.configuration[first:], quiet, strict=True)
        runs = sum(len(each.run_ns) for each, is_quiet in pairs if is_quiet)
        return quiet if runs >= self.fewest_runs else [False] * len(quiet)

    @cached_property
    def chosen(self) -> list[int]:
        """Numbers of the configuration's time slices on which all figures rest.

        See :func:`autotune.measure.statistics.chosen_slices`; the warm-up is left out.
        """
        first = self.settled_from or 0
        return [first + i for i in chosen_slices(self._settled)]

    @property
    def ratio(self) -> Interval:
        """How long a run of the configuration takes, in runs of the reference.

        It is the median ratio of its time slices to their two neighbours, with the
        distribution-free interval of a median. It assumes that a machine that was quiet before and
        after a time slice was quiet during it, up to a minority which the median ignores. Pairing
        in time is the duet of Bulej et al. (ICPE 2020, arXiv 2001.05811), in turns rather than in
        parallel, because both sides want all cores.
        """
        return median_interval([self.ratios[i] for i in self.chosen])

    @property
    def noisiness(self) -> float:
        """How many times slower the reference was than on a quiet machine.

        1 where the estimate rests on quiet time slices.
        """
        if self.quiet_ms is not None or self.is_undisturbed:
            return 1.0
        undisturbed_ms = self.undisturbed_ms / (1 + QUIET_SHARE)
        return max(
            1.0, float(np.median([time_slice.ms for time_slice in self.reference])) / undisturbed_ms
        )

    @property
    def evidence(self) -> list[TimeSlice]:
        """The configuration's time slices that are chosen."""
        return [self.configuration[i] for i in self.chosen]

    @property
    def slowest(self) -> float:
        """How many times the mean of all samples a run of the slowest one takes."""
        rows = [np.reshape(each.run_ns, (-1, each.round)) for each in self.evidence]
        if any(row.shape[1] != rows[0].shape[1] for row in rows):
            return 1.0
        by_sample = np.median(np.concatenate(rows), axis=0)
        return float(by_sample.max() / by_sample.mean())

    @property
    def contaminated(self) -> int:
        """How many time slices of both were disturbed; those of the configuration were repeated."""
        noisy = sum(
            time_slice.ms > self.undisturbed_ms or time_slice.stolen
            for time_slice in self.reference
        )
        return noisy + self.quiet.count(False)


def play(
    reference: Reference,
    configuration: Child,
    *,
    run_ms: float,
    effort: Effort,
    limit_s: float,
    is_dominated: Callable[[Duet], bool] = lambda _: False,
    clients: int = 1,
    quiet_ms: float | None = None,
) -> Duet:
    """Returns the time slices of both, until their ratio is precise enough or the time is up.

    Args:
        configuration: The worker with the configuration's session, frozen.
        quiet_ms: See :class:`Duet`.
        is_dominated: Asked at the looks whether more time slices are still worth it.

    Raises:
        ChildFailure: one of them did not answer.
    """
    stage = _Stage(reference, configuration, run_ms, limit_s, clients, effort.long_run_ms, quiet_ms)
    patience_s = reference.patience_s(effort) if quiet_ms is None else 0.0
    waits = stage.has_noisy_look(effort)
    while not _is_over(stage, effort, patience_s):
        if waits:
            stage.wait_for_quiet(patience_s)
        stage.take_pair()
        if not waits and (stage.undisturbed_pairs or stage.has_noisy_look(effort)):
            waits = True
            if stage.is_noisy and len(stage.second) >= _FEWEST_PAIRS and is_dominated(stage.duet()):
                return stage.duet()  # nothing was waited for, and nothing learnt of the machine
        if stage.undisturbed_pairs in _LOOKS:
            duet = stage.duet()
            if is_dominated(duet) or (stage.has_runs(effort) and _is_precise(duet, effort)):
                break
    else:  # the time is up: with too few quiet runs a percentile is that of a busy machine
        stage.needs_runs(effort.fewest_runs)
    if quiet_ms is None:
        reference.learn(is_undisturbed=not stage.is_noisy)
    return stage.duet()


def _is_over(stage: "_Stage", effort: Effort, patience_s: float) -> bool:
    """Returns whether the time of a duet is up.

    Where the machine stays noisy that is when the patience ends, with as many disturbed pairs as
    there would be undisturbed ones.
    """
    elapsed_s, pairs = stage.elapsed_s, len(stage.second)
    # as much again for the neighbours
    runs_s = 2 * effort.fewest_runs * stage.run_s
    longest_s = max(patience_s, effort.time_cap_s, effort.noisy_s) + effort.time_cap_s / 2 + runs_s
    if elapsed_s > longest_s:
        has_runs = stage.runs >= effort.fewest_runs or elapsed_s > _LONGEST_WAIT * longest_s
        return pairs >= _FEWEST_PAIRS and has_runs
    if not stage.has_runs(effort):
        return False
    if stage.is_noisy:
        return elapsed_s > max(patience_s, effort.noisy_s) and pairs >= effort.fewest_pairs
    return elapsed_s > effort.time_cap_s and stage.undisturbed_pairs >= effort.fewest_pairs


class _Stage:
    """A duet under way."""

    def __init__(
        self,
        reference: Reference,
        configuration: Child,
        run_ms: float,
        limit_s: float,
        clients: int,
        long_run_ms: float,
        quiet_ms: float | None,
    ) -> None:
        self._quiet_ms = quiet_ms
        self._clients = clients
        self._long_run_ms = long_run_ms
        self._reference = reference
        self._configuration = configuration
        self._run_ms = run_ms
        self._limit_s = limit_s
        self._began = time.monotonic()
        self._spent_s = {"configuration": 0.0, "reference": 0.0, "waited": 0.0}
        self._before: list[int] = []
        self.second: list[TimeSlice] = []
        self._pids = [child.pid for child in (reference, configuration)]
        self._asked_s: list[float] = []
        self._busy: list[tuple[float, float]] = []
        self._seen: Duet | None = None
        self._fewest_runs = 0
        self._ask()
        self._first = [self._reference_slice()]

    @property
    def is_noisy(self) -> bool:
        """Whether there are too few quiet time slices for an estimate that rests on them."""
        return not rests_on_quiet(self.undisturbed_pairs, len(self.second))

    @property
    def undisturbed_pairs(self) -> int:
        """How many of the configuration's time slices were quiet."""
        return self.duet().quiet.count(True)

    @property
    def runs(self) -> int:
        """The runs in all of the configuration's time slices."""
        return sum(len(each.run_ns) for each in self.second)

    @property
    def undisturbed_runs(self) -> int:
        """The runs in them."""
        duet = self.duet()
        pairs = zip(duet.configuration, duet.quiet, strict=True)
        return sum(len(each.run_ns) for each, quiet in pairs if quiet)

    def has_noisy_look(self, effort: Effort) -> bool:
        """Returns whether there are enough time slices for a look on a noisy machine."""
        late = self.elapsed_s > _NOISY_LOOK_SHARE * effort.patience_s
        return late or len(self.second) >= _NOISY_LOOK

    def has_runs(self, effort: Effort) -> bool:
        """Returns whether the slices that give the evidence have the runs that are needed."""
        if self.undisturbed_runs < effort.fewest_runs:
            return False
        if not effort.fewest_runs:
            return True
        slices = self.duet().evidence  # those of the warm-up are not among them
        return sum(len(each.run_ns) for each in slices) >= effort.fewest_runs

    @property
    def run_s(self) -> float:
        """How long a recorded run takes on both sides, with the cold runs of the time slices."""
        return (self._spent_s["configuration"] + self._spent_s["reference"]) / max(1, self.runs)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def needs_runs(self, fewest_runs: int) -> None:
        """Makes all time slices count where the quiet ones have fewer runs than this."""
        self._fewest_runs = fewest_runs
        self._seen = None

    def wait_for_quiet(self, patience_s: float) -> None:
        """Repeats the reference's last time slice until it is an undisturbed one."""
        pauses = itertools.chain(_PAUSES_S, itertools.repeat(_PAUSES_S[-1]))
        while not self._reference.is_undisturbed(self._first[-1]) and self.elapsed_s < patience_s:
            pause_s = next(pauses)
            time.sleep(pause_s)
            self._spent_s["waited"] += pause_s
            self._first.append(self._reference_slice())

    def take_pair(self) -> None:
        """Takes a time slice of the configuration and the reference's time slice after it."""
        began = time.monotonic()
        time_slice = take_slice(
            self._configuration,
            self._run_ms,
            self._limit_s,
            self._clients,
            long_run_ms=self._long_run_ms,
        )
        self._spent_s["configuration"] += time.monotonic() - began
        self.second.append(time_slice)
        self._before.append(len(self._first) - 1)
        self._ask()
        if self._quiet_ms is None:
            self._first.append(self._reference_slice())

    def _ask(self) -> None:
        """Asks the system what other programs do."""
        self._seen = None
        self._asked_s.append(time.monotonic())
        self._busy.append(busy_s(self._pids))

    def duet(self) -> Duet:
        """Returns the time slices so far."""
        if self._seen is None:
            self._seen = self._duet()
        return self._seen

    def _duet(self) -> Duet:
        return Duet(
            reference=tuple(self._first),
            configuration=tuple(self.second),
            before=tuple(self._before),
            undisturbed_ms=self._reference.undisturbed_ms,
            spent_s=dict(self._spent_s),
            others=tuple(are_busy(self._asked_s, self._busy)[1:].tolist()),
            quiet_ms=self._quiet_ms,
            fewest_runs=self._fewest_runs,
        )

    def _reference_slice(self) -> TimeSlice:
        self._seen = None
        began = time.monotonic()
        time_slice = self._reference.time_slice(self._long_run_ms)
        self._spent_s["reference"] += time.monotonic() - began
        return time_slice


def _is_precise(duet: Duet, effort: Effort) -> bool:
    """Returns whether the ratio's interval is narrow enough."""
    ratio = duet.ratio
    return (
        duet.settled_from is not None
        and duet.quiet.count(True) >= effort.fewest_pairs
        and (ratio.high - ratio.low) / 2 <= effort.half_width * ratio.value
    )
