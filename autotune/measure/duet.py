"""Turns of two processes, alternating; the process that waits is frozen.

An idle ONNX Runtime pool goes on spinning on the cores that the other process needs, so a waiting
process that is not frozen would slow the other one down. Where neighbours on the machine slow both
sides down, alternating cancels it. Where they slow one side alone, it does not: a candidate of one
thread hardly feels a neighbour that halves the baseline's speed. So the baseline is the sensor as
well: the candidate has its turns while the baseline runs as fast as it does on a quiet machine.
The project's docs have the figures, and ``benchmarks/noise.py`` makes them.
"""

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autotune.deploy.config import Interval
from autotune.measure.crew import Side
from autotune.measure.outcome import FEWEST_QUIET, Effort
from autotune.measure.reference import Reference, Turn, take_turn
from autotune.measure.statistics import QUIET_SHARE, duet_ratio, warm_up

_FEWEST_PAIRS = 3
_ENOUGH_PAIRS = 12
# Where the first turns are loud, so many pairs wait for nothing: what is surely beaten is not worth
# waiting for. Slow models have fewer, in a share of the patience.
_LOUD_LOOK = 8
_LOUD_LOOK_SHARE = 1 / 8
# Looks at the interval are spaced, so that stopping early is not fishing for a lucky moment.
_LOOKS = frozenset({8, 14, 20, *range(30, 1000, 10)})
# A pause lets a neighbour finish and the host place the virtual cores anew: on a shared host two of
# them share a physical core at times, and without pauses that lasted for 10 to 30 s.
_PAUSES_S = (0.0, 0.02, 0.04, 0.08)


@dataclass(frozen=True, kw_only=True)
class Duet:
    """The turns of a duet.

    Attributes:
        reference: All turns of the reference, in order.
        candidate: The turns of the candidate.
        before: For each turn of the candidate the number of the reference's turn before it; the
            reference's next turn came after it.
        quiet_ms: A turn of the reference up to this long was not disturbed.
        spent_s: Seconds of the turns, their messages included: ``candidate``, ``reference``, and
            ``waited`` for a quieter machine.
    """

    reference: tuple[Turn, ...]
    candidate: tuple[Turn, ...]
    before: tuple[int, ...]
    quiet_ms: float
    spent_s: Mapping[str, float]

    @cached_property
    def ratios(self) -> list[float]:
        """Each turn of the candidate over the mean of the two turns around it."""
        around = [(self.reference[i].ms + self.reference[i + 1].ms) / 2 for i in self.before]
        return [turn.ms / ms for turn, ms in zip(self.candidate, around, strict=True)]

    @cached_property
    def quiet(self) -> list[bool]:
        """For each turn of the candidate, whether it and the turns around it were undisturbed."""
        return [
            not turn.stolen
            and all(
                beside.ms <= self.quiet_ms and not beside.stolen
                for beside in self.reference[i : i + 2]
            )
            for turn, i in zip(self.candidate, self.before, strict=True)
        ]

    @cached_property
    def settled_from(self) -> int | None:
        """The number of the candidate's first turn in a steady state; None if there is none."""
        return warm_up(self.ratios, self.quiet)

    @property
    def ratio(self) -> Interval:
        """How long a run of the candidate takes, in runs of the reference."""
        first = self.settled_from or 0
        return duet_ratio(self.ratios[first:], self.quiet[first:])

    @property
    def loudness(self) -> float:
        """How many times slower the reference was than on a quiet machine.

        1 where the estimate rests on quiet turns.
        """
        if self.quiet.count(True) >= min(FEWEST_QUIET, len(self.quiet) / 2):
            return 1.0
        quiet_ms = self.quiet_ms / (1 + QUIET_SHARE)
        return max(1.0, float(np.median([turn.ms for turn in self.reference])) / quiet_ms)

    @property
    def quiet_candidate(self) -> list[Turn]:
        """The turns of the candidate that give the evidence: the quiet ones, or all if none is."""
        first = self.settled_from or 0
        turns = list(zip(self.candidate, self.quiet, strict=True))[first:]
        return [turn for turn, quiet in turns if quiet] or [turn for turn, _ in turns]

    @property
    def contaminated(self) -> int:
        """How many turns, of either side, were disturbed; the candidate's were taken again."""
        loud = sum(turn.ms > self.quiet_ms or turn.stolen for turn in self.reference)
        return loud + self.quiet.count(False)


def play(
    reference: Reference,
    candidate: Side,
    *,
    run_ms: float,
    effort: Effort,
    limit_s: float,
    is_beaten: Callable[[Duet], bool] = lambda _: False,
    clients: int = 1,
) -> Duet:
    """Returns the turns of both, until their ratio is precise enough or the time is up.

    Args:
        reference: The baseline.
        candidate: The worker with the candidate's session, frozen.
        run_ms: About how long its runs take.
        effort: How precise the ratio must be, and how long to go on.
        limit_s: How long to wait for a turn.
        is_beaten: Asked at the looks whether more turns are still worth it.
        clients: How many clients run at once, in the reference as well.

    Raises:
        ChildFailure: one of them did not answer.
    """
    stage = _Stage(reference, candidate, run_ms, limit_s, clients, effort.long_run_ms)
    patience_s = reference.patience.of(effort.patience_s)
    waits = stage.has_loud_look(effort)
    while not _is_over(stage, effort, patience_s, run_ms / clients):
        if waits:
            stage.wait_for_quiet(patience_s)
        stage.take_pair()
        if not waits and (stage.quiet_pairs or stage.has_loud_look(effort)):
            waits = True
            if stage.is_loud and len(stage.second) >= _FEWEST_PAIRS and is_beaten(stage.duet()):
                return stage.duet()  # nothing was waited for, and nothing learnt of the machine
        if stage.quiet_pairs in _LOOKS:
            duet = stage.duet()
            has_runs = stage.quiet_runs >= effort.fewest_runs
            if is_beaten(duet) or (has_runs and _is_precise(duet, effort)):
                break
    reference.patience.learn(is_quiet=not stage.is_loud)
    return stage.duet()


def _is_over(stage: "_Stage", effort: Effort, patience_s: float, run_ms: float) -> bool:
    """Returns whether the time of a duet is up.

    Where the machine stays loud that is when the patience ends, with as many disturbed pairs as
    there would be undisturbed ones.
    """
    elapsed_s, pairs = stage.elapsed_s, len(stage.second)
    # both sides' turns, a cold run in each, and as much again for the neighbours
    runs_s = 8 * effort.fewest_runs * run_ms / 1e3
    longest_s = max(patience_s, effort.time_cap_s, effort.loud_s) + effort.time_cap_s / 2 + runs_s
    if elapsed_s > longest_s:
        return pairs >= _FEWEST_PAIRS
    if stage.quiet_runs < effort.fewest_runs:
        return False
    if stage.is_loud:
        return elapsed_s > max(patience_s, effort.loud_s) and pairs >= _ENOUGH_PAIRS
    return elapsed_s > effort.time_cap_s and stage.quiet_pairs >= _ENOUGH_PAIRS


class _Stage:
    """A duet under way."""

    def __init__(
        self,
        reference: Reference,
        candidate: Side,
        run_ms: float,
        limit_s: float,
        clients: int,
        long_run_ms: float,
    ) -> None:
        self._clients = clients
        self._long_run_ms = long_run_ms
        self._reference = reference
        self._candidate = candidate
        self._run_ms = run_ms
        self._limit_s = limit_s
        self._began = time.monotonic()
        self._spent_s = {"candidate": 0.0, "reference": 0.0, "waited": 0.0}
        self._first = [self._reference_turn()]
        self._before: list[int] = []
        self.second: list[Turn] = []
        self.quiet_pairs = 0
        self.quiet_runs = 0

    @property
    def is_loud(self) -> bool:
        """Whether there are too few quiet turns for an estimate that rests on them."""
        return self.quiet_pairs < min(FEWEST_QUIET, len(self.second) / 2)

    def has_loud_look(self, effort: Effort) -> bool:
        """Returns whether there are enough turns for a look at a candidate on a loud machine."""
        late = self.elapsed_s > _LOUD_LOOK_SHARE * effort.patience_s
        return late or len(self.second) >= _LOUD_LOOK

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def wait_for_quiet(self, patience_s: float) -> None:
        """Repeats the reference's last turn until it is an undisturbed one."""
        pauses = itertools.chain(_PAUSES_S, itertools.repeat(_PAUSES_S[-1]))
        while not self._reference.is_quiet(self._first[-1]) and self.elapsed_s < patience_s:
            pause_s = next(pauses)
            time.sleep(pause_s)
            self._spent_s["waited"] += pause_s
            self._first.append(self._reference_turn())

    def take_pair(self) -> None:
        """Takes a turn of the candidate and the reference's turn after it."""
        began = time.monotonic()
        turn = take_turn(
            self._candidate,
            self._run_ms,
            self._limit_s,
            self._clients,
            long_run_ms=self._long_run_ms,
        )
        self._spent_s["candidate"] += time.monotonic() - began
        self.second.append(turn)
        self._before.append(len(self._first) - 1)
        self._first.append(self._reference_turn())
        if not turn.stolen and all(map(self._reference.is_quiet, self._first[-2:])):
            self.quiet_pairs += 1
            self.quiet_runs += len(turn.run_ns)

    def duet(self) -> Duet:
        """Returns the turns so far."""
        return Duet(
            reference=tuple(self._first),
            candidate=tuple(self.second),
            before=tuple(self._before),
            quiet_ms=self._reference.quiet_ms,
            spent_s=dict(self._spent_s),
        )

    def _reference_turn(self) -> Turn:
        began = time.monotonic()
        turn = self._reference.turn(self._long_run_ms)
        self._spent_s["reference"] += time.monotonic() - began
        return turn


def _is_precise(duet: Duet, effort: Effort) -> bool:
    """Returns whether the ratio's interval is narrow enough."""
    ratio = duet.ratio
    return (
        duet.settled_from is not None
        and duet.quiet.count(True) >= _ENOUGH_PAIRS
        and (ratio.high - ratio.low) / 2 <= effort.half_width * ratio.value
    )
