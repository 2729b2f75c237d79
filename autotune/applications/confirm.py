"""The end of an application's study: the best arrangements and today's, in fresh processes."""

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from autotune.applications.joint import (
    OWN_BESTS,
    TODAY,
    Choices,
    JointSearch,
    JointTrial,
    digest,
)
from autotune.applications.replay import Arrangement, Played, Replays
from autotune.applications.replies import Replayed
from autotune.deploy.config import Interval
from autotune.measure.statistics import Scatter, mean_log_interval
from autotune.results.score import (
    MAY_LOSE,
    SMALLEST_GAIN,
    SMALLEST_MEMORY_GAIN,
    factor_of,
    is_gain,
)

ROUNDS, FEWEST_ROUNDS = 5, 3
# The chance that something is selected where nothing is better: each arrangement may be lucky in
# its time and in its peak.
_RISK = 0.025
# Arrangements whose times differ by less, and within their interval, are equally fast.
_TIE = 1.05
PREFERENCES = ("latency", "memory", "balanced")
"""What can decide between arrangements."""


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """An arrangement beside today's, in fresh processes.

    Attributes:
        label: What it is.
        choices: The point of the joint search; None for ONNX Runtime's defaults.
        ratio: Time of a replay over today's, with its 95 % interval.
        seconds: Time of a replay: today's, times the ratio.
        cpu_s: CPU time of a replay.
        peak_mib: The most memory that the sessions added, in the largest of the processes.
        held_mib: The most that they held at the end.
        peak_ratio: Its peak over today's of the same round, with its 95 % interval.
    """

    label: str
    choices: Choices | None
    ratio: Interval
    seconds: float
    cpu_s: float
    peak_mib: float
    held_mib: float
    peak_ratio: Interval


@dataclass(frozen=True, kw_only=True)
class Today:
    """The application as it is.

    Attributes:
        seconds: Time of a replay.
        cpu_s: CPU time of a replay.
        peak_mib: The most memory that its sessions added.
        held_mib: The most that they held at the end.
        noise_floor: The relative difference of times below which no gain is claimed.
        memory_noise_floor: The same of peaks.
    """

    seconds: float
    cpu_s: float
    peak_mib: float
    held_mib: float
    noise_floor: float = SMALLEST_GAIN
    memory_noise_floor: float = SMALLEST_MEMORY_GAIN


@dataclass(frozen=True, kw_only=True)
class MemoryLimits:
    """The most memory that all sessions together may add.

    Attributes:
        peak_mib: At their peak; None for no limit.
        held_mib: At the end; None for no limit.
    """

    peak_mib: float | None = None
    held_mib: float | None = None

    def keeps(self, item: Confirmed | Today | Played) -> bool:
        """Returns whether a measurement is within the limits."""
        pairs = ((item.peak_mib, self.peak_mib), (item.held_mib, self.held_mib))
        return all(limit is None or value <= limit for value, limit in pairs)


def finalists(search: JointSearch, today_peak_mib: float, limits: MemoryLimits) -> list[JointTrial]:
    """Returns the best of the search, those first that promise most.

    The fastest, the leanest at the peak, both together, the models' own bests with and without
    spinning, and the leanest at the end. The fastest are those within the limits.
    """
    measured = [trial for trial in search.trials if trial.played is not None]

    def product(trial: JointTrial) -> float:
        return trial.numbers.ratio * max(trial.numbers.peak_mib, 0.01 * today_peak_mib)

    within = [trial for trial in measured if limits.keeps(trial.numbers)] or measured
    near = _near(measured)
    fastest = sorted(within, key=lambda trial: trial.numbers.ratio)
    ranked = [
        *fastest[:1],
        *sorted(near, key=lambda trial: trial.numbers.peak_mib)[:1],
        *sorted(measured, key=product)[:1],
        *(trial for trial in measured if trial.label in OWN_BESTS),
        *fastest[1:2],
        *sorted(near, key=lambda trial: trial.numbers.held_mib)[:1],
    ]
    return list({id(trial): trial for trial in ranked}.values())


def joined(search: JointSearch) -> Choices | None:
    """Returns the point that joins the best of the search, where it was not measured itself.

    Each session has the member with which all was fastest on average, threads and spinning those of
    the fastest point, arena and memory pattern those of the leanest one that is hardly slower.
    """
    measured = [trial for trial in search.trials if trial.played is not None]
    if not measured:
        return None
    fastest = min(measured, key=lambda trial: trial.numbers.ratio)
    leanest = min(_near(measured), key=lambda trial: trial.numbers.peak_mib)
    choices = dict(fastest.choices)
    for part in search.parts:
        name = f"{part.name}.member"
        costs = {
            label: [
                math.log(trial.numbers.ratio)
                for trial in measured
                if trial.choices.get(name, TODAY) == label
            ]
            for label in part.members
        }
        known = {label: sum(own) / len(own) for label, own in costs.items() if own}
        choices[name] = min(known, key=known.__getitem__)
        for kind in ("arena", "pattern"):
            key = f"{part.name}.{kind}"
            if key in leanest.choices:
                choices[key] = leanest.choices[key]
    key = digest(search.arrangement(choices))
    known_points = [{}, *(trial.choices for trial in search.trials)]
    return None if key in [digest(search.arrangement(own)) for own in known_points] else choices


def _near(measured: Sequence[JointTrial]) -> Sequence[JointTrial]:
    """Returns the points that are hardly slower than today's; all where none is."""
    return [trial for trial in measured if trial.numbers.ratio <= _TIE] or measured


def confirm(
    measurer: Replays,
    entrants: Mapping[str, Arrangement],
    on_step: Callable[[int, int], None],
    turns: int = 2,
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    left_s: Callable[[], float] = lambda: math.inf,
) -> tuple[Today, list[Confirmed]]:
    """Returns today's numbers and those of each arrangement that ran in every round.

    The order of a round is random: what runs after another one may find a warmer machine. There are
    fewer rounds where the time ends, :data:`FEWEST_ROUNDS` at least.
    """
    today: list[Replayed] = []
    played: dict[str, list[Played]] = {label: [] for label in entrants}
    order = random.Random(seed)
    began_s = time.monotonic()
    for turn in range(rounds):
        if turn >= FEWEST_ROUNDS and left_s() < (time.monotonic() - began_s) / turn:
            rounds = turn
            break
        today.append(measurer.renew())
        for done, label in enumerate(order.sample(list(entrants), len(entrants)), start=1):
            own = measurer.measure(entrants[label], turns)
            if isinstance(own, Played):
                played[label].append(own)
            on_step(turn * len(entrants) + done, rounds * len(entrants))
    seconds = sorted(item.seconds for item in today)[rounds // 2]
    confirmed = [
        _confirmed(label, arrangement.choices, played[label], today)
        for label, arrangement in entrants.items()
        if len(played[label]) == rounds
    ]
    whole = [own for own in played.values() if len(own) == rounds]
    times = Scatter.of([item.ratio for item in own] for own in whole)
    groups: list[Sequence[Replayed | Played]] = [today, *whole]
    peaks = Scatter.of([max(1.0, item.peak_mib) for item in own] for own in groups)
    questions = max(1, 2 * len(whole))
    base = Today(
        seconds=seconds,
        cpu_s=sorted(item.cpu_s for item in today)[rounds // 2],
        peak_mib=max(item.peak_mib for item in today),
        held_mib=max(item.held_mib for item in today),
        noise_floor=max(SMALLEST_GAIN, _luck(times.deviation / math.sqrt(rounds), questions)),
        memory_noise_floor=max(
            SMALLEST_MEMORY_GAIN, _luck(peaks.deviation * math.sqrt(2 / rounds), questions)
        ),
    )
    return base, confirmed


def _confirmed(
    label: str, choices: Choices | None, played: Sequence[Played], today: Sequence[Replayed]
) -> Confirmed:
    """Returns what an arrangement comes to in all rounds."""
    middle = len(played) // 2
    ratio = mean_log_interval([item.ratio for item in played])
    return Confirmed(
        label=label,
        choices=choices,
        ratio=ratio,
        seconds=sorted(item.seconds for item in today)[middle] * ratio.value,
        cpu_s=sorted(item.cpu_s for item in played)[middle],
        peak_mib=max(item.peak_mib for item in played),
        held_mib=max(item.held_mib for item in played),
        # a small session may add nothing that can be seen
        peak_ratio=mean_log_interval(
            [
                max(1.0, item.peak_mib) / max(1.0, its.peak_mib)
                for item, its in zip(played, today, strict=True)
            ]
        ),
    )


def _luck(deviation: float, questions: int) -> float:
    """Returns the relative difference that chance explains in the best of so many questions."""
    return math.expm1(NormalDist().inv_cdf(1 - _RISK / questions) * deviation)


def select(
    today: Today,
    confirmed: Sequence[Confirmed],
    prefer: str,
    limits: MemoryLimits,
) -> Confirmed | None:
    """Returns the arrangement that is written; None where none is better than today's.

    Args:
        today: The application as it is.
        confirmed: What was measured beside it.
        prefer: One of :data:`PREFERENCES`.
        limits: What the sessions may add.
    """
    candidates = improvements(today, confirmed, prefer, limits)
    if not candidates:
        return None
    keys: dict[str, Callable[[Confirmed], float]] = {
        "latency": lambda item: item.ratio.value,
        "memory": lambda item: item.peak_mib,
        "balanced": lambda item: item.ratio.value * max(1.0, item.peak_mib),
    }
    best = min(candidates, key=keys[prefer])
    if prefer == "latency":
        slowest = min(best.ratio.high, _TIE * best.ratio.value)
        leaner = [
            item
            for item in candidates
            if item.ratio.value <= slowest and item.peak_ratio.high < best.peak_ratio.low
        ]
        best = min(leaner, key=keys["memory"], default=best)
    return best


def improvements(
    today: Today, confirmed: Sequence[Confirmed], prefer: str, limits: MemoryLimits
) -> list[Confirmed]:
    """Returns the arrangements that are better than today's, in their order.

    One that keeps limits of memory which today's breaks is better as well, and where memory is
    preferred, one that is leaner at whatever speed.
    """
    floor, memory_floor = today.noise_floor, today.memory_noise_floor
    return [
        item
        for item in confirmed
        if item.choices is not None
        and limits.keeps(item)
        and (
            is_better(item.ratio, item.peak_ratio, floor, memory_floor)
            or (prefer == "memory" and is_gain(factor_of(item.peak_ratio), memory_floor))
            or not limits.keeps(today)
        )
    ]


def is_better(
    ratio: Interval,
    peak_ratio: Interval,
    floor: float = SMALLEST_GAIN,
    memory_floor: float = SMALLEST_MEMORY_GAIN,
) -> bool:
    """Returns whether something is faster by more than the noise, or leaner and hardly slower.

    Args:
        ratio: Its time over today's.
        peak_ratio: Its peak of memory over today's.
        floor: The relative difference of times that chance explains.
        memory_floor: The same of peaks.
    """
    return is_gain(factor_of(ratio), floor) or (
        is_gain(factor_of(peak_ratio), memory_floor) and ratio.value <= 1 + MAY_LOSE
    )
