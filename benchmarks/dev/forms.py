"""Forms of a model beside its default, prepared and measured as a study does it."""

import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.deploy.config import Interval
from autotune.deploy.options import Value
from autotune.facts.model import Model
from autotune.facts.workload import Workload
from autotune.graph.prepare import Preparer
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import FINAL_COMPARISON, Failure, Measurement
from autotune.space.configuration import BASELINE, Configuration

_PATIENCE = FINAL_COMPARISON.patience_s / FINAL_COMPARISON.time_cap_s


@dataclass(frozen=True, kw_only=True)
class Form:
    """What a form costs, over the default's.

    Attributes:
        latency: Its latency, with its 95 % interval.
        memory: Its peak memory.
        error: Its error.
    """

    latency: Interval
    memory: float
    error: float


def measured_forms(
    model: Model,
    workload: Workload,
    halves: Iterable[Mapping[str, Value]],
    seconds: float,
) -> Iterator[Form | Failure]:
    """Yields the figures of each set of graph parameters, in order; each is measured for so long.

    Raises:
        PreparationError: the file of a form that was measured cannot be made again.
    """
    effort = replace(FINAL_COMPARISON, time_cap_s=seconds, patience_s=_PATIENCE * seconds)
    with tempfile.TemporaryDirectory() as scratch:
        preparer = Preparer(model, Path(scratch), workload=workload, signature=workload.signature())
        measurer = DuetMeasurer(model, workload, preparer, max_error=math.inf)
        try:
            base = measurer.measure(BASELINE, effort)
            if not isinstance(base, Measurement):
                raise SystemExit(f"{model.path} cannot be measured: {base.message}")
            for half in halves:
                configuration = Configuration.of(half)
                outcome = measurer.measure(configuration, effort)
                if not isinstance(outcome, Measurement):
                    yield outcome
                    continue
                ratio, scale = outcome.ratio, base.ratio.value
                yield Form(
                    latency=Interval(
                        value=ratio.value / scale, low=ratio.low / scale, high=ratio.high / scale
                    ),
                    memory=outcome.peak_memory_mib / base.peak_memory_mib,
                    error=outcome.fidelity.error,
                )
        finally:
            measurer.close()
