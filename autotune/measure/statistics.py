"""From raw run times to an estimate. Pure functions; times are in milliseconds."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from autotune.deploy.config import Interval
from autotune.measure.outcome import rests_on_quiet

# A time slice of the reference this close to its fastest ones was not disturbed. See
# docs/measuring.md.
QUIET_SHARE = 0.15
_FASTEST_QUANTILE = 0.05
_STEADY_SHARE = 0.03
# Below six its intervals are too narrow: of five normal numbers 93 % hold the truth.
_FEWEST_TO_TRIM = 6
# As many degrees of freedom does the scatter of others count for, at most. With more the intervals
# of a configuration that scatters twice as much as the others are too narrow (docs/measuring.md).
_MOST_BORROWED = 2
# MLPerf Inference's early stopping criterion wants percentiles with this confidence.
_CONFIDENCE = 0.99


def undisturbed_limit(reference_ms: Sequence[float]) -> float:
    """Returns the time up to which a time slice of the reference was not disturbed.

    The reference does the same work each time, so what makes it slower comes from outside. The
    fastest twentieth of its time slices shows what it takes on a quiet machine; the share above is
    for the jitter that a quiet machine has as well.
    """
    return float(np.quantile(np.asarray(reference_ms), _FASTEST_QUANTILE)) * (1 + QUIET_SHARE)


def chosen_slices(quiet: Sequence[bool]) -> list[int]:
    """Returns the numbers of the time slices on which all figures of a measurement rest.

    They are the quiet ones, or all where hardly one was quiet; then they are of a busy machine.

    Args:
        quiet: Whether each was quiet, those of the warm-up left out.
    """
    enough = rests_on_quiet(list(quiet).count(True), len(quiet))
    return [i for i, is_quiet in enumerate(quiet) if is_quiet or not enough]


def warm_up(ratios: Sequence[float], quiet: Sequence[bool]) -> int | None:
    """Returns the number of the first time slice in a steady state, or None if there is none.

    Steady means that the median of a stretch of time slices (a fifth of them, at least four) is
    that of all later time slices, within 3 % or what the scatter explains. Stretches that are not
    are warm-up, up to half of the time slices. Ratios to the reference are judged, not times: a
    neighbour that comes and goes is no warm-up. Fewer than eight quiet time slices are too few to
    tell, and give 0.
    """
    places = [i for i, undisturbed in enumerate(quiet) if undisturbed]
    values = np.asarray(ratios)[places]
    stretch = max(4, len(values) // 5)
    if len(values) < 2 * stretch:
        return 0
    for start in range(0, min(len(values) // 2, len(values) - 2 * stretch) + 1, stretch):
        head, rest = values[start : start + stretch], values[start + stretch :]
        middle = float(np.median(rest))
        scatter = 1.4826 * float(np.median(np.abs(rest - middle))) / middle
        # the median of n normal values scatters 1.25 / sqrt(n) as much as they; three times that
        tolerance = max(_STEADY_SHARE, 3.8 * scatter / math.sqrt(len(head)))
        if abs(float(np.median(head)) / middle - 1) <= tolerance:
            return places[start]
    return None


def median_interval(values: Sequence[float] | np.ndarray) -> Interval:
    """Returns the median with its distribution-free 95 % interval.

    The interval runs between the order statistics whose ranks a binomial(n, 1/2) count stays within
    with 95 % (Conover, Practical Nonparametric Statistics, section 3.2; normal approximation of the
    ranks). Below six values no such interval exists and the extremes are returned.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    count = len(ordered)
    reach = 1.96 * math.sqrt(count) / 2
    low = max(0, math.floor(count / 2 - reach))
    high = min(count - 1, math.ceil(count / 2 + reach))
    return Interval(
        value=float(np.median(ordered)), low=float(ordered[low]), high=float(ordered[high])
    )


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """How much equal measurements differ.

    Attributes:
        freedom: Its degrees of freedom; 0 where nothing was measured twice.
    """

    deviation: float
    freedom: int

    @classmethod
    def of(cls, groups: Iterable[Sequence[float]]) -> "Scatter":
        """Returns the scatter within groups of equal measurements, pooled over all of them."""
        squares, freedom = 0.0, 0
        for group in groups:
            if len(group):
                logs = np.log(np.asarray(group, dtype=float))
                squares += float(((logs - logs.mean()) ** 2).sum())
                freedom += len(logs) - 1
        return cls(deviation=math.sqrt(squares / freedom) if freedom else 0.0, freedom=freedom)


NO_SCATTER = Scatter(deviation=0.0, freedom=0)
"""Nothing is known of it."""


def mean_log_interval(ratios: Sequence[float], others: Scatter = NO_SCATTER) -> Interval:
    """Returns the geometric mean of `ratios` with its 95 % interval (Student's t on logarithms).

    Two or three ratios hardly tell how much they scatter. The scatter of other configurations on
    the same machine helps: the variance is the mean of both, weighted by degrees of freedom, of
    which the others have two at most (the moderated t of Smyth, Statistical Applications in
    Genetics and Molecular Biology 3, 2004, with a fixed weight).

    From six on it is the trimmed mean, without the highest and the lowest, and its interval is
    Tukey and McLaughlin's (Sankhya A 25, 1963): one odd round of seven doubles the width of the
    plain one, and real rounds have one in twenty that is off by a tenth.

    One ratio alone has no interval: it runs from 0 to infinity.

    Args:
        ratios: Those of one configuration, round by round.
        others: How much those of other configurations scatter, each of them for itself.
    """
    logs = np.sort(np.log(np.asarray(ratios, dtype=float)))
    count = len(logs)
    if count < 2:
        return Interval(value=math.exp(float(logs.mean())), low=0.0, high=math.inf)
    trimmed = 1 if count >= _FEWEST_TO_TRIM else 0
    kept = logs[trimmed : count - trimmed]
    # what is left out counts as its neighbour does (Winsorised) in the standard error
    variance = float(np.clip(logs, kept[0], kept[-1]).var(ddof=1)) / (len(kept) / count) ** 2
    freedom = len(kept) - 1
    if not trimmed:
        borrowed = min(others.freedom, _MOST_BORROWED)
        variance = (freedom * variance + borrowed * others.deviation**2) / (freedom + borrowed)
        freedom += borrowed
    mean, reach = float(kept.mean()), student_t(freedom) * math.sqrt(variance / count)
    return Interval(value=math.exp(mean), low=math.exp(mean - reach), high=math.exp(mean + reach))


def percentile(run_ms: Sequence[float], rank: int) -> float | None:
    """Returns an upper estimate of the percentile, or None where there are too few runs for one.

    MLPerf Inference's early-stopping estimate (inference_rules.adoc, appendix "Early Stopping
    Criterion"): of n runs the highest t - 1 are left out and the highest of the rest is returned,
    where t is the largest count with P[Binomial(n, 1 - rank/100) <= t] <= 1 %. It exists from 64
    runs for p90, 130 for p95 and 662 for p99. p50 is the plain median.

    Args:
        run_ms: The times of the runs.
        rank: The percentile: 50, 90, 95 or 99.
    """
    ordered = sorted(run_ms)
    if rank == 50:
        return float(np.median(ordered)) if ordered else None
    left_out = _over_latency(len(ordered), rank)
    return float(ordered[len(ordered) - left_out]) if left_out else None


@cache
def _over_latency(count: int, rank: int) -> int:
    """Returns t of :func:`percentile`; 0 where there is none of at least 1."""
    share = 1 - rank / 100
    left_out, total = 0, 0.0
    for t in range(count + 1):
        ways = math.lgamma(count + 1) - math.lgamma(t + 1) - math.lgamma(count - t + 1)
        total += math.exp(ways + t * math.log(share) + (count - t) * math.log1p(-share))
        if total > 1 - _CONFIDENCE:
            break
        left_out = t
    return left_out


# Two-sided 95 % quantiles of Student's t by degrees of freedom (any statistics table).
_STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def student_t(freedom: int) -> float:
    """Returns the two-sided 95 % quantile of Student's t for at least 1 degree of freedom."""
    return (
        _STUDENT_T[freedom - 1]
        if freedom <= len(_STUDENT_T)
        else 1.96 + 2.372 / freedom + 2.82 / freedom**2
    )
