"""From raw run times to an estimate. Pure functions; times are in milliseconds."""

import math
from collections.abc import Sequence

import numpy as np

from autotune.config import Interval

# A turn of the reference this close to its fastest ones was not disturbed. See docs/design.md.
_QUIET_SHARE = 0.15
_FASTEST_QUANTILE = 0.05
_FEWEST_QUIET = 5

# Below these counts a percentile cannot be told with 99 % confidence: MLPerf Inference's early
# stopping criterion (inference_rules.adoc, appendix; one over-latency query allowed).
_FEWEST_RUNS = {90: 64, 95: 130, 99: 662}


def quiet_turns(reference_ms: Sequence[float]) -> list[bool]:
    """Returns for each turn of the reference whether the machine was quiet.

    The reference does the same work each time, so what makes it slower comes from outside.
    """
    times = np.asarray(reference_ms)
    fastest = np.quantile(times, _FASTEST_QUANTILE)
    return [bool(quiet) for quiet in times <= fastest * (1 + _QUIET_SHARE)]


def duet_ratio(reference_ms: Sequence[float], candidate_ms: Sequence[float]) -> Interval:
    """Returns how long a run of the candidate takes, in runs of the reference.

    The turns alternate, reference first and last: candidate turn i lies between reference turns i
    and i + 1. The estimate is the median ratio of the candidate's turns to their two neighbours,
    over the turns whose neighbours were quiet. It assumes that a machine that was quiet before and
    after a turn was quiet during it, up to a minority of turns which the median ignores.

    The interval is the distribution-free 95 % interval of a median (binomial order statistics).

    Args:
        reference_ms: One time per turn, one more than the candidate has.
        candidate_ms: One time per turn.
    """
    before, after = np.asarray(reference_ms[:-1]), np.asarray(reference_ms[1:])
    ratios = np.asarray(candidate_ms) / ((before + after) / 2)
    quiet = np.asarray(quiet_turns(reference_ms))
    chosen = ratios[quiet[:-1] & quiet[1:]]
    return median_interval(chosen if len(chosen) >= _FEWEST_QUIET else ratios)


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


def mean_log_interval(ratios: Sequence[float]) -> Interval:
    """Returns the geometric mean of `ratios` with its 95 % interval (Student's t on logarithms).

    One ratio alone has no interval: it runs from 0 to infinity.
    """
    logs = np.log(np.asarray(ratios, dtype=float))
    mean = float(logs.mean())
    if len(logs) < 2:
        return Interval(value=math.exp(mean), low=0.0, high=math.inf)
    reach = _student_t(len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return Interval(value=math.exp(mean), low=math.exp(mean - reach), high=math.exp(mean + reach))


def percentile(run_ms: Sequence[float], rank: int) -> float | None:
    """Returns an upper estimate of the percentile, or None where there are too few runs for one.

    MLPerf's early-stopping estimate in its simplest form: with n runs, the highest of them that
    leaves at least the share 1 - rank/100 above it with 99 % confidence. p50 is the plain median.
    """
    ordered = sorted(run_ms)
    count = len(ordered)
    if rank == 50:
        return float(np.median(ordered)) if ordered else None
    if count < _FEWEST_RUNS[rank]:
        return None
    share = 1 - rank / 100
    discarded = max(1, math.floor(count * share - 2.326 * math.sqrt(count * share * (1 - share))))
    return float(ordered[count - discarded])


# Two-sided 95 % quantiles of Student's t by degrees of freedom (any statistics table).
_STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def _student_t(freedom: int) -> float:
    return (
        _STUDENT_T[freedom - 1]
        if freedom <= len(_STUDENT_T)
        else 1.96 + 2.372 / freedom + 2.82 / freedom**2
    )
