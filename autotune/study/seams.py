"""What a study takes from the outside world; tests bring their own."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import optuna

from autotune.facts.batches import Batching
from autotune.facts.hardware import Hardware, hardware
from autotune.facts.model import Model
from autotune.facts.providers import ProviderState, provider_states
from autotune.facts.runtime import Runtime, runtime
from autotune.facts.workload import Workload
from autotune.graph.prepare import Preparer
from autotune.measure.fidelity import Metric
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import Measurer
from autotune.storage.clock import Clock
from autotune.storage.database import Place, open_storage
from autotune.storage.locks import exclusive_use


@dataclass(frozen=True, kw_only=True)
class MeasurerOptions:
    """What a measurer of a study needs.

    Attributes:
        model: The model.
        workload: The inputs.
        preparer: Makes the model files of candidates.
        max_error: Largest fidelity error of a right answer.
        timed_error: Largest one with which a candidate is still timed.
        metric: The user's metric.
        reference_ms: Latency of the default as the study knows it; measured if None.
        samples: Folder of the raw run times.
        provider_cache: Folder where execution providers keep what they compile.
        batching: The batch sizes; None where each run has one sample.
        clients: How many clients run at once.
    """

    model: Model
    workload: Workload
    preparer: Preparer
    max_error: float
    timed_error: float
    metric: Metric | None
    reference_ms: float | None
    samples: Path
    provider_cache: Path
    batching: Batching | None = None
    clients: int = 1


def duet_measurer(options: MeasurerOptions) -> Measurer:
    """Returns the real measurer."""
    return DuetMeasurer(
        options.model,
        options.workload,
        options.preparer,
        max_error=options.max_error,
        timed_error=options.timed_error,
        metric=options.metric,
        reference_ms=options.reference_ms,
        samples=options.samples,
        provider_cache=options.provider_cache,
        batching=options.batching,
        clients=options.clients,
    )


@dataclass(frozen=True, kw_only=True)
class Seams:
    """The functions through which a study reaches processes, time, locks, storage and machine.

    Attributes:
        measurer: Makes the measurer.
        clock: Time and waiting.
        lock: Holds the folder, the database file and the cores.
        storage: Opens the storage.
        hardware: Describes the machine.
        runtime: Describes the installed ONNX Runtime.
        providers: Describes the execution providers.
    """

    measurer: Callable[[MeasurerOptions], Measurer] = duet_measurer
    clock: Clock = field(default_factory=Clock)
    lock: Callable[..., AbstractContextManager[None]] = exclusive_use
    storage: Callable[[Place], AbstractContextManager[optuna.storages.RDBStorage]] = open_storage
    hardware: Callable[[], Hardware] = hardware
    runtime: Callable[[], Runtime] = runtime
    providers: Callable[[], tuple[ProviderState, ...]] = provider_states
