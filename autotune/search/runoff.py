"""The run-off: the front and the baseline, measured again side by side.

The best of a hundred noisy measurements was lucky as well as good, so its own number promises too
much (the winner's curse). Here every finalist is measured anew, in rounds, in random order, each
time in a fresh process beside a fresh reference; only these numbers are reported.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.config import Interval
from autotune.errors import CannotMeasureError
from autotune.measure.outcome import RUN_OFF, Measurement, Measurer
from autotune.measure.statistics import mean_log_interval
from autotune.search import pareto
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import BASELINE

MOST_FINALISTS = 6
_FEWEST_ROUNDS = 3
MOST_ROUNDS = 7
_HALF_WIDTH = 0.01
# No gain below this is claimed, however narrow its interval: layout luck of a process is as large.
_SMALLEST_GAIN = 0.01
# A leaner configuration may be that much slower, at the pessimistic end of its interval.
_LEAN_MAY_COST = 0.05


@dataclass(frozen=True, kw_only=True)
class Finalist:
    """What the run-off found of one trial.

    Attributes:
        trial: The trial.
        speedup: How many times faster than the baseline of the same round, geometric mean over the
            rounds with its 95 % interval.
        latency_ms: The baseline's latency divided by `speedup`.
        peak_memory_mib: Largest peak of the rounds.
        error: Largest fidelity error of the rounds.
        rounds: How often it was measured.
        significant: Whether it is faster by more than the noise.
    """

    trial: Trial
    speedup: Interval
    latency_ms: float
    peak_memory_mib: float
    error: float
    rounds: int
    significant: bool


def finalists(trials: Sequence[Trial], limits: Limits) -> list[Trial]:
    """Returns the trials that go into the run-off: a spread of the front, and the fastest two."""
    measured = [(trial, m) for trial in trials if (m := trial.measurement) is not None]
    admitted = [
        (trial, (m.latency_ms, m.peak_memory_mib))
        for trial, m in measured
        if trial.candidate != BASELINE
        and limits.admit(m.latency_ms, m.peak_memory_mib, m.fidelity.error)
    ]
    best = pareto.front(admitted, lambda item: item[1])
    fastest = sorted(admitted, key=lambda item: item[1])[:2]
    chosen = [*pareto.spread(best, MOST_FINALISTS - 1), *fastest]
    return list({trial.number: trial for trial, _ in chosen}.values())[:MOST_FINALISTS]


def run_off(
    measurer: Measurer,
    baseline: Trial,
    candidates: Sequence[Trial],
    *,
    seed: int,
    on_step: Callable[[int, int], None],
) -> list[Finalist]:
    """Returns the baseline and what became of each of `candidates`, in that order.

    A candidate that fails in any round is left out: it cannot be relied on.

    Args:
        measurer: What measures.
        baseline: Trial 0.
        candidates: The finalists.
        seed: Of the random order.
        on_step: Called with the measurements done and the most that there can be.

    Raises:
        CannotMeasureError: the baseline fails.
    """
    order = random.Random(seed)
    rounds: dict[int, list[Measurement]] = {t.number: [] for t in (baseline, *candidates)}
    racing = {trial.number: trial for trial in (baseline, *candidates)}
    total = MOST_ROUNDS * len(racing)
    done = 0
    found: list[Finalist] = []
    for round_number in range(MOST_ROUNDS):
        measurer.renew()
        for trial in order.sample(list(racing.values()), len(racing)):
            outcome = measurer.measure(trial.candidate, RUN_OFF)
            if isinstance(outcome, Measurement):
                rounds[trial.number].append(outcome)
            elif trial is baseline:
                raise CannotMeasureError(f"the default itself failed: {outcome.message}")
            else:
                del racing[trial.number]
            done += 1
            on_step(done, total)
        found = [
            _finalist(trial, rounds[trial.number], rounds[baseline.number], measurer.reference_ms)
            for trial in racing.values()
        ]
        if round_number + 1 >= _FEWEST_ROUNDS and all(map(_is_settled, found)):
            break
    return found


def _is_settled(finalist: Finalist) -> bool:
    reach = (finalist.speedup.high - finalist.speedup.low) / 2
    return reach <= _HALF_WIDTH * finalist.speedup.value


def _finalist(
    trial: Trial, own: Sequence[Measurement], baseline: Sequence[Measurement], reference_ms: float
) -> Finalist:
    if own is baseline:
        speedup = Interval(value=1.0, low=1.0, high=1.0)
    else:
        speedup = paired_speedup(own, baseline)
    base_ratio = math.exp(sum(math.log(base.ratio.value) for base in baseline) / len(baseline))
    return Finalist(
        trial=trial,
        speedup=speedup,
        latency_ms=reference_ms * base_ratio / speedup.value,
        peak_memory_mib=max(m.peak_memory_mib for m in own),
        error=max(m.fidelity.error for m in own),
        rounds=len(own),
        significant=is_gain(speedup),
    )


def paired_speedup(own: Sequence[Measurement], baseline: Sequence[Measurement]) -> Interval:
    """Returns how many times faster `own` is than the baseline measured in the same rounds."""
    pairs = zip(own, baseline, strict=True)
    return mean_log_interval([base.ratio.value / mine.ratio.value for mine, base in pairs])


def is_gain(speedup: Interval) -> bool:
    """Returns whether a speed-up is larger than the noise."""
    return speedup.low > 1 and speedup.value > 1 + _SMALLEST_GAIN


def is_loss(speedup: Interval) -> bool:
    """Returns whether a speed-up is in truth a slow-down larger than the noise."""
    return speedup.high < 1 and speedup.value < 1 - _SMALLEST_GAIN


def choose(found: Sequence[Finalist], limits: Limits, prefer: pareto.Preference) -> Finalist:
    """Returns what to emit: the preferred finalist if it wins by more than the noise.

    Otherwise, or where nothing keeps the limits, the baseline, which is ``found[0]``. To win is to
    be faster; or to need less memory and surely be no more than 5 % slower, a condition that
    ``prefer="memory"`` waives; or to keep limits that the baseline breaks.
    """
    baseline, *others = found

    def admitted(item: Finalist) -> bool:
        return limits.admit(item.latency_ms, item.peak_memory_mib, item.error)

    def wins(item: Finalist) -> bool:
        leaner = pareto.less_memory(item.peak_memory_mib, baseline.peak_memory_mib)
        if not admitted(baseline):
            return True
        if prefer == "memory":
            return leaner
        return item.significant or (leaner and item.speedup.low > 1 - _LEAN_MAY_COST)

    winners = [item for item in others if admitted(item) and wins(item)]
    # the baseline competes as well: a leaner winner is no better for one who wants speed
    field = [baseline, *winners] if admitted(baseline) else winners
    if not winners:
        return baseline
    return pareto.pick(field, lambda item: (item.latency_ms, item.peak_memory_mib), prefer)
