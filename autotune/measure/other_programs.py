"""The time that other programs take of the processors while a duet is played.

The baseline shows that something disturbs it by being slower than it was. Where others hold the
cores from the first minute on, it never was faster, and what suffers less than it, such as a
session with one thread, seems a gain. So the system is asked as well: what its processors did, less
what the measuring processes did.
"""

import os
from collections.abc import Sequence

import numpy as np
import psutil
from numpy.typing import NDArray

from autotune.deploy.cpu import usable_cores

# The system counts in hundredths of a second, so shorter windows tell little.
_WINDOW_S = 0.3
# Of a core; less is the system's own work.
_LEAST_CORES = 0.25
# Where that much of the processors idles, whatever others do takes nothing from a session.
_FULL = 0.85


def busy_s(pids: Sequence[int]) -> tuple[float, float]:
    """Returns for how long the usable processors were busy, and for how long with others' work.

    Args:
        pids: The measuring processes; this one counts as one of them.
    """
    own_s = 0.0
    for pid in (os.getpid(), *pids):
        try:
            times = psutil.Process(pid).cpu_times()
        except psutil.Error:
            continue
        own_s += times.user + times.system
    try:
        usable = os.sched_getaffinity(0)
    except AttributeError:  # not on Linux
        usable = set(range(os.cpu_count() or 1))
    each = psutil.cpu_times(percpu=True)
    all_s = sum(
        sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0)
        for number, times in enumerate(each)
        if number in usable
    )
    return all_s, all_s - own_s


def are_busy(
    at_s: Sequence[float], busy: Sequence[tuple[float, float]], cores: int | None = None
) -> NDArray[np.bool_]:
    """Returns whether others held the processors around each of these moments.

    Args:
        at_s: When :func:`busy_s` was asked, in order.
        busy: Its answers.
        cores: How many processors there are; None takes those that this process may use.
    """
    times, (all_s, others_s) = np.asarray(at_s), np.asarray(busy).T
    first = np.searchsorted(times, times - _WINDOW_S / 2, side="right") - 1
    last = np.searchsorted(times, times + _WINDOW_S / 2)
    first, last = first.clip(0), last.clip(max=len(times) - 1)
    # near the ends a window reaches further to the other side
    first = np.minimum(first, (np.searchsorted(times, times[last] - _WINDOW_S)).clip(0))
    last = np.maximum(
        last, np.searchsorted(times, times[first] + _WINDOW_S).clip(max=len(times) - 1)
    )
    span_s = times[last] - times[first]
    known = span_s >= _WINDOW_S / 2
    span_s = np.where(known, span_s, 1.0)
    everything, others = ((s[last] - s[first]) / span_s for s in (all_s, others_s))
    full = everything > _FULL * (usable_cores() if cores is None else cores)
    return np.asarray(known & full & (others > _LEAST_CORES), np.bool_)
