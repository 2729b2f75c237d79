"""The numbers of one configuration over the rounds of a final comparison, with their intervals.

Speeds are compared round by round. Peaks of memory are compared as well by the luck of the heap:
fresh processes with one configuration differ in their peaks, because the allocator leaves other
holes where the process did other things before, and where the kernel put the heap elsewhere. How
much they differ is learned from all configurations of a comparison together, because each of them
has a few processes only.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autotune.deploy.config import Interval, LengthTimes, Numbers, ProviderEvidence
from autotune.measure.outcome import Measurement
from autotune.measure.statistics import Scatter, mean_log_interval, student_t
from autotune.search.objective import (
    OBJECTIVES,
    RATES,
    SPEEDS,
    THROUGHPUT,
    Objective,
    Values,
    held_by_most_mib,
    values,
)

# The best of six finalists is lucky as well, and a hundredth is what the memory layout of a process
# is worth.
SMALLEST_GAIN = 0.02
"""No gain below this is claimed, however quiet the machine."""

# Another application, another build of its libraries: what is smaller does not survive them.
SMALLEST_MEMORY_GAIN = 0.05
"""No gain of memory below this is claimed, however little processes differ."""

MAY_LOSE = 0.01
"""What costs at most this share of speed counts as not slower (the margin of non-inferiority)."""

MAY_COST = 0.05
"""A config that wins in another objective may be that much worse in the preferred one, at the
pessimistic end of the interval."""

# Fewer undisturbed rounds than this are no estimate of their own.
_ENOUGH_UNDISTURBED = 2
_LATENCY = OBJECTIVES["latency_ms"]
_MEMORY = OBJECTIVES["peak_memory_mib"]
_SAME = Interval(value=1.0, low=1.0, high=1.0)


@dataclass(frozen=True, kw_only=True)
class HeapLuck:
    """How much the peaks of fresh processes with one configuration differ.

    Attributes:
        scatter: The scatter within configurations, pooled over all of them.
    """

    scatter: Scatter

    @classmethod
    def of(cls, configurations: Iterable[Sequence[Measurement]]) -> "HeapLuck":
        """Returns the luck in the measurements of configurations, a sequence for each of them."""
        return cls(scatter=Scatter.of([m.peak_memory_mib for m in own] for own in configurations))

    def expected(self, measurements: Sequence[Measurement]) -> Interval | None:
        """Returns the largest peak, and the range in which a further process lies with 95 %.

        It is the prediction interval of a normal distribution of logarithms, with all peaks that
        were seen, and with what two starts of one program differ by. None where nothing was
        measured twice.
        """
        if not self.scatter.freedom:
            return None
        peaks = [m.peak_memory_mib for m in measurements]
        mean = math.exp(float(np.log(peaks).mean()))
        reach = math.exp(self._reach(1 + 1 / len(peaks)))
        return Interval(
            value=max(peaks),
            low=max(0.0, min(mean / reach, *peaks) - _MEMORY.tolerance_absolute),
            high=max(mean * reach, *peaks) + _MEMORY.tolerance_absolute,
        )

    def gain(self, own: Sequence[Measurement], base: Sequence[Measurement]) -> Interval:
        """Returns the peak of `base` over that of `own`: geometric mean, with its 95 % interval.

        Round by round, as far as both took part: the processes of a round have the same history.
        """
        pairs = zip(own, base, strict=False)
        ratios = [theirs.peak_memory_mib / mine.peak_memory_mib for mine, theirs in pairs]
        mean = mean_log_interval(ratios)
        if not self.scatter.freedom:
            return mean
        reach = math.exp(self._reach(2 / len(ratios)))
        return Interval(value=mean.value, low=mean.value / reach, high=mean.value * reach)

    def floor(self, rounds: int) -> float:
        """Returns the relative difference that chance explains, at least 5 %; see :meth:`gain`."""
        if not self.scatter.freedom:
            return 1.0
        return max(SMALLEST_MEMORY_GAIN, min(1.0, math.expm1(self._reach(2 / rounds))))

    def _reach(self, variance: float) -> float:
        """Returns half of a 95 % interval of logarithms, for so many times the variance of one."""
        # a larger number overflows, and a range of a factor of a thousand says all
        return min(
            math.log(1e3),
            student_t(self.scatter.freedom) * self.scatter.deviation * math.sqrt(variance),
        )


def may_be_slower(numbers: Numbers) -> bool:
    """Returns whether more rounds may still tell if it is slower by more than 1 %."""
    speedup = numbers.speedup
    is_faster = is_gain(speedup, numbers.noise_floor)
    return speedup.low <= 1 - MAY_LOSE < speedup.high and not is_faster


def is_leaner(numbers: Numbers) -> bool:
    """Returns whether it needs less memory by more than the luck of the heap."""
    return _memory_is_other(numbers) and is_gain(_memory_gain(numbers), numbers.memory_noise_floor)


def may_be_leaner(numbers: Numbers) -> bool:
    """Returns whether it is leaner, or more rounds, also of others, may yet show that it is."""
    return _memory_is_other(numbers) and _memory_gain(numbers).value > 1 + SMALLEST_MEMORY_GAIN


def is_larger(numbers: Numbers) -> bool:
    """Returns whether it needs more memory by more than the luck of the heap."""
    return _memory_is_other(numbers) and is_loss(_memory_gain(numbers), numbers.memory_noise_floor)


def is_surely_worse(numbers: Numbers, objective: Objective, than: Numbers) -> bool:
    """Returns whether it is worse in an objective beyond the noise.

    Args:
        than: The numbers that these were measured beside.
    """
    if objective is _MEMORY:
        return is_larger(numbers)
    name = objective.name
    is_worse = objective.is_better(than.values[name], numbers.values[name])
    return is_worse and numbers.gains[name].high < 1


def _memory_gain(numbers: Numbers) -> Interval:
    """Returns how many times less memory it needs; 1 where nobody measured that."""
    return numbers.gains.get(_MEMORY.name, _SAME)


def _memory_is_other(numbers: Numbers) -> bool:
    """Returns whether the difference is more than two starts of one program differ by, in MiB."""
    difference_mib = numbers.peak_memory_mib * abs(_memory_gain(numbers).value - 1)
    return difference_mib > _MEMORY.tolerance_absolute


def on_scale(own: Numbers, baseline: Numbers) -> Numbers:
    """Returns numbers of other rounds with the latency on the scale of those of `baseline`."""
    latency_ms = baseline.latency_ms / own.gains["latency_ms"].value
    changed: dict[str, Any] = with_latency(own.values, latency_ms)
    return replace(own, **changed)


def most_held_mib(own: Sequence[Measurement]) -> float | None:
    """Returns the memory that hardly a further process holds more of after all runs, in MiB.

    A limit of held memory is a promise for all processes, and a rare one with an unlucky heap holds
    a third more: see docs/measuring.md. So it is beyond the largest of the processes by 5 %, or by
    twice what that one has above the median. None where nothing was measured twice.

    Args:
        own: Measurements of a configuration.
    """
    if len(own) < 2:
        return None
    held = [m.held_memory_mib for m in own]
    largest = max(held)
    return held_by_most_mib(largest, largest - float(np.median(held)))


def with_latency(of: Values, latency_ms: float) -> dict[str, float]:
    """Returns the values with another latency, and the rates that go with it."""
    changed = {**of, "latency_ms": latency_ms}
    for rate in RATES:
        if rate in of:
            changed[rate] = of[rate] * of["latency_ms"] / latency_ms
    return changed


def numbers_of(
    own: Sequence[Measurement],
    base: Sequence[Measurement],
    field: Collection[Sequence[Measurement]],
) -> Numbers:
    """Returns the numbers of the measurements `own` beside those of the default, round by round.

    Args:
        field: Those of all configurations of the comparison: what they scatter says how far few
            measurements can be believed.
    """
    luck = HeapLuck.of(field)
    others = [rounds for rounds in field if rounds is not own and rounds is not base]
    base_values = _over_rounds(base)
    gains = {name: _gain(OBJECTIVES[name], own, base, others, luck) for name in base_values}
    speedups = Scatter.of(_ratios(_LATENCY, rounds, base) for rounds in others)
    own_values = _over_rounds(own)
    # one scale: the default's own time, and everything else by its gain
    latency_ms = base_values["latency_ms"] / gains["latency_ms"].value
    own_quantities: dict[str, Any] = with_latency(own_values, latency_ms)
    floor = noise_floor(base, speedups)
    speedup = speed_of(gains)
    return Numbers(
        **own_quantities,
        speedup=speedup,
        significant=is_gain(speedup, floor),
        gains=gains,
        error=max(m.fidelity.error for m in own),
        metric=_lowest(m.fidelity.metric for m in own),
        drop=_highest(m.fidelity.drop for m in own),
        agreement=_lowest(m.fidelity.agreement for m in own),
        rounds=len(own),
        steady=all(m.steady for m in own),
        noise_floor=floor,
        coverage=own[-1].fidelity.coverage,
        provider=provider_evidence(own),
        peak_memory_interval_mib=luck.expected(own),
        memory_noise_floor=luck.floor(min(len(own), len(base))),
        most_held_memory_mib=most_held_mib(own),
        batch=own[-1].batch,
        lengths=_lengths(own),
        worst_part=max(own, key=lambda m: m.fidelity.error).fidelity.worst_part,
        undisturbed=_are_undisturbed(own, base),
        longest_ms=_longest_ms(own, latency_ms),
    )


def _longest_ms(own: Sequence[Measurement], latency_ms: float) -> float | None:
    """Returns the latency of the slowest sample; None where all samples have one shape."""
    slowest = max(m.slowest for m in own)
    return slowest * latency_ms if slowest > 1 else None


def _lengths(own: Sequence[Measurement]) -> tuple[LengthTimes, ...]:
    """Returns the times of generations after each prompt, the medians over the rounds."""
    rounds = [m.generated.lengths for m in own if m.generated is not None]
    return tuple(
        replace(
            same[0],
            ttft_ms=float(np.median([times.ttft_ms for times in same])),
            step_ms=float(np.median([times.step_ms for times in same])),
        )
        for same in zip(*rounds, strict=False)
    )


def provider_evidence(own: Sequence[Measurement]) -> ProviderEvidence | None:
    """Returns what the measurements say of another execution provider than the CPU's, if any."""
    last = own[-1]
    if last.placement is None:
        return None
    return ProviderEvidence(
        placement={name: last.placement.share(name) for name in last.placement.nodes},
        left_behind=last.placement.left_behind,
        cached_load_ms=_median(m.cached_load_ms for m in own),
        copy_ms=_median(m.copy_ms for m in own),
        device_memory_by_difference=any(m.memory.device_by_difference for m in own),
    )


def _median(numbers: Iterable[float | None]) -> float | None:
    measured = [number for number in numbers if number is not None]
    return float(np.median(measured)) if measured else None


def _lowest(numbers: Iterable[float | None]) -> float | None:
    return min((number for number in numbers if number is not None), default=None)


def _highest(numbers: Iterable[float | None]) -> float | None:
    return max((number for number in numbers if number is not None), default=None)


def _over_rounds(own: Sequence[Measurement]) -> dict[str, float]:
    """Returns the value of each objective over the rounds: the most memory, else the median.

    Latency is that on a clock, in the quiet rounds if there were any.
    """
    quiet = [m for m in own if m.is_undisturbed] or own
    by_name: dict[str, list[float]] = {}
    for measurement in own:
        for name, value in values(measurement).items():
            by_name.setdefault(name, []).append(value)
    over_rounds = {
        **{name: float(np.median(numbers)) for name, numbers in by_name.items()},
        "peak_memory_mib": max(m.peak_memory_mib for m in own),
        "held_memory_mib": max(m.held_memory_mib for m in own),
    }
    return with_latency(over_rounds, float(np.median([m.clock_ms for m in quiet])))


def _gain(
    objective: Objective,
    own: Sequence[Measurement],
    base: Sequence[Measurement],
    others: Iterable[Sequence[Measurement]],
    luck: HeapLuck,
) -> Interval:
    """Returns how many times better the own value is, by the rounds that both took part in."""
    if own is base:
        return _SAME
    if objective is _MEMORY:
        return luck.gain(own, base)
    ratios = _ratios(objective, own, base)
    if not ratios:
        return Interval(value=1.0, low=0.0, high=np.inf)
    gain = mean_log_interval(ratios, Scatter.of(_ratios(objective, o, base) for o in others))
    in_samples = objective.name in SPEEDS and objective.name not in RATES
    return of_runs(gain, own[-1], base[-1]) if in_samples else gain


def _ratios(
    objective: Objective, own: Sequence[Measurement], base: Sequence[Measurement]
) -> list[float]:
    """Returns by round how many times better the own value is; a speed by the time of a sample.

    The default may have been measured in further rounds after them. Where enough rounds were
    undisturbed on both sides, the others do not count: a neighbour that comes and goes would make
    an interval wide that is known.
    """
    pairs = list(zip(own, base, strict=False))
    if _are_undisturbed(own, base):
        pairs = [pair for pair in pairs if all(m.is_undisturbed for m in pair)]
    if objective.name in SPEEDS:
        return [speedup_of(mine, theirs).value for mine, theirs in pairs]
    values_of_both = ((objective.of(mine), objective.of(theirs)) for mine, theirs in pairs)
    return [objective.gain(mine, theirs) for mine, theirs in values_of_both if mine and theirs]


def speed_of(gains: Mapping[str, Interval]) -> Interval:
    """Returns the gain in speed by the time of a sample.

    With several clients or batch sizes that is the ratio of the throughputs.
    """
    return gains[THROUGHPUT if THROUGHPUT in gains else "latency_ms"]


def _are_undisturbed(own: Sequence[Measurement], base: Sequence[Measurement]) -> bool:
    """Returns whether enough rounds were undisturbed on both sides for a claim that rests on them.

    A single round counts where there is no other one.
    """
    pairs = list(zip(own, base, strict=False))
    quiet = sum(all(m.is_undisturbed for m in pair) for pair in pairs)
    return quiet >= min(_ENOUGH_UNDISTURBED, len(pairs))


def speedup_of(own: Measurement, base: Measurement) -> Interval:
    """Returns how many times faster one measurement is than another, by the time of a sample."""
    factor = (own.batch or 1) / (base.batch or 1)
    return Interval(
        value=factor * base.ratio.value / own.ratio.value,
        low=factor * base.ratio.value / own.ratio.high,
        high=factor * base.ratio.value / own.ratio.low,
    )


def of_runs(speedup: Interval, own: Measurement, base: Measurement) -> Interval:
    """Returns a speed-up by the time of a sample as one by the time of a run."""
    factor = (base.batch or 1) / (own.batch or 1)
    if factor == 1:
        return speedup
    return Interval(
        value=factor * speedup.value, low=factor * speedup.low, high=factor * speedup.high
    )


def noise_floor(baseline: Sequence[Measurement], others: Scatter) -> float:
    """Returns the relative difference below which no gain is claimed; at least 2 %.

    The default was measured against itself in each round: how well the mean of these ratios is
    known (the half-width of its 95 % interval) is how well any speed-up can be known here.
    Disturbed rounds do not count where there are enough others.

    Args:
        others: How much the speed-ups of the other configurations scatter.
    """
    undisturbed = [m for m in baseline if m.is_undisturbed]
    counting = undisturbed if len(undisturbed) >= _ENOUGH_UNDISTURBED else baseline
    ratio = mean_log_interval([m.ratio.value for m in counting], others)
    return max(SMALLEST_GAIN, min(1.0, (ratio.high - ratio.low) / 2 / ratio.value))


def is_gain(speedup: Interval, floor: float = SMALLEST_GAIN) -> bool:
    """Returns whether a speed-up is larger than the noise."""
    return speedup.low > 1 and speedup.value > 1 + floor


def is_loss(speedup: Interval, floor: float = SMALLEST_GAIN) -> bool:
    """Returns whether a speed-up is in truth a slow-down larger than the noise."""
    return speedup.high < 1 and speedup.value < 1 - floor


def is_not_slower(speedup: Interval) -> bool:
    """Returns whether it is proven that at most 1 % of the speed is lost (non-inferiority)."""
    return speedup.low > 1 - MAY_LOSE


def slower_by_up_to(speedup: Interval) -> float:
    """Returns the share of the speed that may be lost; 0 where a loss over 1 % is ruled out."""
    return 0.0 if is_not_slower(speedup) else 1 - speedup.low


# JSON has no infinite numbers.
_FARTHEST = 1e3


def finite(interval: Interval) -> Interval:
    """Returns the interval with an end that JSON can hold."""
    return Interval(value=interval.value, low=interval.low, high=min(interval.high, _FARTHEST))


def factor_of(gain: Interval) -> Interval:
    """Returns the factor of which `gain` is the inverse, with finite ends."""
    low = max(gain.low, 1 / _FARTHEST)
    return Interval(value=1 / gain.value, low=1 / finite(gain).high, high=1 / low)
