"""The run-off: the front and the baseline, measured again side by side.

The best of a hundred noisy measurements was lucky as well as good, so its own number promises too
much (the winner's curse). Here every finalist is measured anew, in rounds, in random order, each
time in a fresh process beside a fresh reference; only these numbers are reported.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.deploy.config import Interval
from autotune.errors import CannotMeasureError
from autotune.measure.outcome import RUN_OFF, Measurement, Measurer, Outcome
from autotune.measure.statistics import mean_log_interval
from autotune.search import pareto
from autotune.search.objective import OBJECTIVES, Objective, Values, complete, effort_for, values
from autotune.search.trial import Limits, Trial

_FEWEST_ROUNDS = 3
MOST_ROUNDS = 7
# A machine that was not quiet so often when it was tried again is a busy one.
_MOST_IN_VAIN = 3
_HALF_WIDTH = 0.01
# No gain below this is claimed, however quiet the machine: the best of six finalists is lucky as
# well, and a hundredth is what the memory layout of a process is worth.
_SMALLEST_GAIN = 0.02
# What wins on one objective alone may be that much worse on the preferred one, at the pessimistic
# end of the interval.
_MAY_COST = 0.05


@dataclass(frozen=True, kw_only=True)
class Finalist:
    """What the run-off found of one trial.

    Attributes:
        trial: The trial.
        values: Its value in every objective that was measured; see :func:`_of_rounds`.
        gains: By objective, how many times less than the baseline's of the same round: geometric
            mean over the rounds with its 95 % interval.
        error: Largest fidelity error of the rounds.
        metric: The user's own metric, the lowest of the rounds; None without one.
        drop: By how much it fell; likewise.
        agreement: Share of equal arg-max, the lowest of the rounds.
        rounds: How often it was measured.
        steady: Whether it came to a steady state each time.
        noise_floor: No gain below this is claimed.
    """

    trial: Trial
    values: Values
    gains: Mapping[str, Interval]
    error: float
    rounds: int
    metric: float | None = None
    drop: float | None = None
    agreement: float | None = None
    steady: bool = True
    noise_floor: float = _SMALLEST_GAIN

    @property
    def speedup(self) -> Interval:
        """How many times faster than the baseline."""
        return self.gains["latency_ms"]

    @property
    def latency_ms(self) -> float:
        """The baseline's latency divided by `speedup`."""
        return self.values["latency_ms"]

    @property
    def peak_memory_mib(self) -> float:
        """Largest peak of the rounds."""
        return self.values["peak_memory_mib"]

    @property
    def significant(self) -> bool:
        """Whether it is faster by more than the noise."""
        return is_gain(self.speedup, self.noise_floor)


def run_off(
    measurer: Measurer,
    baseline: Trial,
    candidates: Sequence[Trial],
    objectives: Sequence[Objective],
    *,
    seed: int,
    on_step: Callable[[int, int], None],
) -> list[Finalist]:
    """Returns the baseline and what became of each of `candidates`, in that order.

    A candidate that fails in any round is left out: it cannot be relied on. One whose numbers are
    known well enough, or that has surely no place on the front, takes no part in further rounds.

    Args:
        measurer: What measures.
        baseline: Trial 0.
        candidates: The finalists.
        objectives: Of the study.
        seed: Of the random order.
        on_step: Called with the measurements done and the most that there can be.

    Raises:
        CannotMeasureError: the baseline fails.
    """
    order = random.Random(seed)
    effort = effort_for(RUN_OFF, objectives)
    rounds: dict[int, list[Measurement]] = {t.number: [] for t in (baseline, *candidates)}
    failed: set[int] = set()
    racing = list(candidates)
    done = in_vain = 0

    def measure(trial: Trial) -> Outcome:
        """Measures; what saw no quiet machine is taken again, while that is of any use."""
        nonlocal in_vain
        outcome = measurer.measure(trial.candidate, effort)
        if _is_loud(outcome) and in_vain < _MOST_IN_VAIN:
            outcome = measurer.measure(trial.candidate, effort)
            in_vain += _is_loud(outcome)
        return outcome

    for round_number in range(MOST_ROUNDS):
        measurer.renew()
        field = [baseline, *racing]
        for trial in order.sample(field, len(field)):
            outcome = complete(measure(trial), objectives)
            if isinstance(outcome, Measurement):
                rounds[trial.number].append(outcome)
            elif trial is baseline:
                raise CannotMeasureError(f"the default itself failed: {outcome.message}")
            else:
                failed.add(trial.number)
            done += 1
            on_step(done, done + len(field) * (MOST_ROUNDS - round_number - 1))
        racing = [trial for trial in racing if trial.number not in failed]
        if round_number + 1 >= _FEWEST_ROUNDS:
            known = _found(baseline, racing, rounds)
            racing = [item.trial for item in known[1:] if not _is_settled(item, known)]
            if not racing:
                break
    passed = [trial for trial in candidates if trial.number not in failed]
    return _found(baseline, passed, rounds)


def _is_loud(outcome: Outcome) -> bool:
    return isinstance(outcome, Measurement) and not outcome.is_quiet


def _is_settled(item: Finalist, found: Sequence[Finalist]) -> bool:
    """Returns whether more rounds would change nothing: known to 1 %, or beaten on both axes."""
    reach = (item.speedup.high - item.speedup.low) / 2
    if reach <= _HALF_WIDTH * item.speedup.value:
        return True
    memory = OBJECTIVES["peak_memory_mib"]
    return any(
        other.speedup.low > item.speedup.high
        and not memory.is_less(item.peak_memory_mib, other.peak_memory_mib)
        for other in found
        if other is not item
    )


def _found(
    baseline: Trial, candidates: Sequence[Trial], rounds: Mapping[int, Sequence[Measurement]]
) -> list[Finalist]:
    base = rounds[baseline.number]
    floor = noise_floor(base)
    base_values = _of_rounds(base)
    found = []
    for trial in (baseline, *candidates):
        own = rounds[trial.number]
        gains = {name: _gain(OBJECTIVES[name], own, base) for name in base_values}
        told = _of_rounds(own)
        # one scale: the baseline's own time, and everything else by its speed-up
        told["latency_ms"] = base_values["latency_ms"] / gains["latency_ms"].value
        found.append(
            Finalist(
                trial=trial,
                values=told,
                gains=gains,
                error=max(m.fidelity.error for m in own),
                metric=_lowest(m.fidelity.metric for m in own),
                drop=_highest(m.fidelity.drop for m in own),
                agreement=_lowest(m.fidelity.agreement for m in own),
                rounds=len(own),
                steady=all(m.steady for m in own),
                noise_floor=floor,
            )
        )
    return found


def _lowest(found: Iterable[float | None]) -> float | None:
    return min((value for value in found if value is not None), default=None)


def _highest(found: Iterable[float | None]) -> float | None:
    return max((value for value in found if value is not None), default=None)


def _of_rounds(own: Sequence[Measurement]) -> dict[str, float]:
    """Returns the value of each objective over the rounds: the largest peak, else the median.

    Latency is the median run on a clock, in the quiet rounds if there were any.
    """
    quiet = [m for m in own if m.is_quiet] or own
    told = {name: [value.get(name) for value in map(values, own)] for name in OBJECTIVES}
    known = {name: [v for v in found if v is not None] for name, found in told.items()}
    return {
        **{name: float(np.median(found)) for name, found in known.items() if found},
        "latency_ms": float(np.median([m.p50_ms for m in quiet])),
        "peak_memory_mib": max(m.peak_memory_mib for m in own),
    }


def _gain(
    objective: Objective, own: Sequence[Measurement], base: Sequence[Measurement]
) -> Interval:
    """Returns how many times less than the baseline's, by the rounds that both took part in."""
    if own is base:
        return Interval(value=1.0, low=1.0, high=1.0)
    if objective.name == "latency_ms":
        return paired_speedup(own, base)
    pairs = [
        (mine, theirs)
        for m, b in zip(own, base, strict=False)
        if (mine := objective.of(m)) and (theirs := objective.of(b))
    ]
    if not pairs:
        return Interval(value=1.0, low=0.0, high=np.inf)
    return mean_log_interval([theirs / mine for mine, theirs in pairs])


def paired_speedup(own: Sequence[Measurement], baseline: Sequence[Measurement]) -> Interval:
    """Returns how many times faster `own` is than the baseline measured in the same rounds.

    The baseline may have been measured in further rounds after them.
    """
    pairs = zip(own, baseline, strict=False)
    return mean_log_interval([base.ratio.value / mine.ratio.value for mine, base in pairs])


def noise_floor(baseline: Sequence[Measurement]) -> float:
    """Returns the relative difference below which no gain is claimed; at least 2 %.

    The baseline was measured against itself in each round: how well the mean of these ratios is
    known (the half-width of its 95 % interval) is how well any speed-up can be known here.
    """
    ratio = mean_log_interval([m.ratio.value for m in baseline])
    return max(_SMALLEST_GAIN, min(1.0, (ratio.high - ratio.low) / 2 / ratio.value))


def is_gain(speedup: Interval, floor: float = _SMALLEST_GAIN) -> bool:
    """Returns whether a speed-up is larger than the noise."""
    return speedup.low > 1 and speedup.value > 1 + floor


def is_loss(speedup: Interval, floor: float = _SMALLEST_GAIN) -> bool:
    """Returns whether a speed-up is in truth a slow-down larger than the noise."""
    return speedup.high < 1 and speedup.value < 1 - floor


def choose(
    found: Sequence[Finalist], limits: Limits, objectives: Sequence[Objective], prefer: str
) -> Finalist:
    """Returns what to emit: the preferred finalist if it wins by more than the noise.

    Otherwise, or where nothing keeps the limits, the baseline, which is ``found[0]``. To win is to
    be better in the preferred objective; or in another one and surely no more than 5 % worse in the
    preferred one; or to keep limits that the baseline breaks.
    """
    baseline, *others = found
    first = next((o for o in objectives if o.word == prefer), objectives[0])

    def admitted(item: Finalist) -> bool:
        return limits.admit(item.latency_ms, item.peak_memory_mib, item.error, item.drop)

    def better(objective: Objective, item: Finalist) -> bool:
        if objective.name == "latency_ms":
            return item.significant
        less = objective.is_less(item.values[objective.name], baseline.values[objective.name])
        return less and (objective.name == "peak_memory_mib" or item.gains[objective.name].low > 1)

    def wins(item: Finalist) -> bool:
        if not admitted(baseline) or better(first, item):
            return True
        costs_little = item.gains[first.name].low > 1 - _MAY_COST
        return costs_little and any(better(objective, item) for objective in objectives)

    winners = [item for item in others if admitted(item) and wins(item)]
    # the baseline competes as well: a leaner winner is no better for one who wants speed
    field = [baseline, *winners] if admitted(baseline) else winners
    if not winners:
        return baseline
    return pareto.pick(field, lambda item: item.values, objectives, prefer)
