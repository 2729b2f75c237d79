"""Turns of two processes, alternating; whoever waits is frozen.

An idle ONNX Runtime pool goes on spinning on the cores that the other process needs, so a waiting
process that was merely left alone would slow the other one down. Alternating cancels what the
machine's neighbours do to both sides; docs/design.md has the figures.
"""

import time
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from autotune.child import Child
from autotune.measure.outcome import Effort
from autotune.measure.statistics import duet_ratio, quiet_turns

_TURN_S = 0.010
# A warm-up that goes on: frozen processes come back to cold caches.
_FEWEST_RUNS = 2
_FEWEST_TURNS = 12
_FIRST_LOOK = 20
# Looks at the interval are spaced, so that stopping early is not fishing for a lucky moment.
_LOOK_EVERY = 10


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One turn of one process: the time of each run, and the CPU time of all threads."""

    run_ns: tuple[int, ...]
    cpu_ns: int

    @property
    def median_ms(self) -> float:
        """The turn's own estimate of a run."""
        return float(np.median(self.run_ns)) / 1e6


@dataclass(frozen=True, kw_only=True)
class Duet:
    """The turns of a duet: the reference has one more, its turns lie around the candidate's."""

    reference: tuple[Turn, ...]
    candidate: tuple[Turn, ...]

    @property
    def reference_ms(self) -> list[float]:
        """One time for each turn of the reference."""
        return [turn.median_ms for turn in self.reference]

    @property
    def candidate_ms(self) -> list[float]:
        """One time for each turn of the candidate."""
        return [turn.median_ms for turn in self.candidate]

    def quiet_count(self) -> int:
        """Returns how many of the candidate's turns lie between quiet turns of the reference."""
        quiet = quiet_turns(self.reference_ms)
        return sum(before and after for before, after in pairwise(quiet))


def take_turn(child: Child, run_ms: float, limit_s: float) -> Turn:
    """Thaws `child` for a turn and freezes it again.

    Args:
        child: A worker with an open session.
        run_ms: About how long its runs take: one of 100 ms is not repeated for warmth.
        limit_s: When to give it up.

    Raises:
        ChildFailure: it did not answer.
    """
    long = run_ms > 50
    child.thaw()
    reply = child.request(
        {
            "do": "turn",
            "seconds": _TURN_S,
            "unrecorded_runs": 0 if long else 1,
            "fewest_runs": 1 if long else _FEWEST_RUNS,
        },
        limit_s,
    )
    child.freeze()
    return Turn(run_ns=tuple(reply["run_ns"]), cpu_ns=reply["cpu_ns"])


def play(
    reference: Child,
    candidate: Child,
    *,
    reference_run_ms: float,
    candidate_run_ms: float,
    effort: Effort,
    limit_s: float,
) -> Duet:
    """Returns the turns of both, until their ratio is known well enough or the time is up.

    Raises:
        ChildFailure: one of them did not answer.
    """
    began = time.monotonic()
    first = [take_turn(reference, reference_run_ms, limit_s)]
    second: list[Turn] = []
    while True:
        second.append(take_turn(candidate, candidate_run_ms, limit_s))
        first.append(take_turn(reference, reference_run_ms, limit_s))
        duet = Duet(reference=tuple(first), candidate=tuple(second))
        count = len(second)
        if count >= _FEWEST_TURNS and time.monotonic() - began > effort.time_cap_s:
            return duet
        # very long runs: a few turns must do
        if count >= 3 and time.monotonic() - began > 10 * effort.time_cap_s:
            return duet
        if count >= _FIRST_LOOK and count % _LOOK_EVERY == 0:
            ratio = duet_ratio(duet.reference_ms, duet.candidate_ms)
            if (ratio.high - ratio.low) / 2 <= effort.half_width * ratio.value:
                return duet
