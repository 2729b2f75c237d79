"""What a study would do, before it does it: its space, its inputs, its first trials, its time."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.errors import CannotMeasureError, StudyError
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import SEARCH, Measurement
from autotune.search.context import Context
from autotune.space.configuration import BASELINE, Configuration
from autotune.storage.database import Place
from autotune.study.folder import check_folder
from autotune.study.options import StudyOptions
from autotune.study.progress import final_s
from autotune.study.resolve import resolve_study
from autotune.study.seams import Seams
from autotune.study.strategy import start_of


@dataclass(frozen=True, kw_only=True)
class StudyPlan:
    """What a study would do.

    Attributes:
        first: The configurations that are measured before the sampler is asked, the default first.
        trials: How many configurations are measured in all.
        default_ms: Latency of the default; None where it was not measured, because another autotune
            measures on the cores.
        trial_s: How long a trial of it takes; None in the same way.
        timeout_s: The longest time of the study; None without a limit.
    """

    ctx: Context
    first: Sequence[Configuration]
    trials: int
    default_ms: float | None = None
    trial_s: float | None = None
    timeout_s: float | None = None

    @property
    def estimate_s(self) -> float | None:
        """About the time of search and final comparison; None where it is unknown."""
        if self.trial_s is None:
            return self.timeout_s
        search_s = self.trials * self.trial_s
        return min(search_s + final_s(search_s), self.timeout_s or math.inf)


def plan_of(options: StudyOptions, seams: Seams | None = None) -> StudyPlan:
    """Returns what a study would do; writes nothing.

    The default is measured once, for the estimate of the time, unless the cores are in use.

    Raises:
        AutotuneError: the study would refuse the request.
    """
    seams = seams or Seams()
    ctx = resolve_study(options, seams)
    check_folder(options, ctx, Place.of(options.storage, ctx.folder))
    default_ms, trial_s = _trial(ctx, seams)
    return StudyPlan(
        ctx=ctx,
        first=list(dict.fromkeys(start_of(ctx, ())))[: options.trials],
        trials=options.trials,
        default_ms=default_ms,
        trial_s=trial_s,
        timeout_s=options.timeout_s,
    )


def _trial(ctx: Context, seams: Seams) -> tuple[float | None, float | None]:
    """Returns the latency of the default and the time of its trial; None where cores are busy."""
    try:
        with seams.lock(None, None, wait=False):
            measurer = DuetMeasurer(
                ctx.model,
                ctx.workload,
                max_error=ctx.limits.max_error,
                metric=ctx.metric,
                batching=ctx.batching,
                clients=ctx.clients,
            )
            try:
                began_s = time.monotonic()
                outcome = measurer.measure(BASELINE, SEARCH)
                trial_s = time.monotonic() - began_s
            finally:
                measurer.close()
    except StudyError:  # another autotune measures, which this would disturb
        return None, None
    if not isinstance(outcome, Measurement):
        raise CannotMeasureError(f"the default itself could not be measured: {outcome.message}")
    return outcome.latency_ms, trial_s
