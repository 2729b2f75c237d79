"""What a study takes from the outside world; tests bring their own."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import optuna

from autotune.deploy.providers import CACHE_FOLDER
from autotune.facts.hardware import Hardware, hardware
from autotune.facts.model import Model
from autotune.facts.providers import (
    ProviderState,
    SearchedRuntime,
    provider_states,
    searched_runtimes,
)
from autotune.facts.runtime import Runtime, runtime
from autotune.graph.optimizers import firing_optimizers
from autotune.graph.prepare import Preparer
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import Measurer
from autotune.search.context import Context
from autotune.storage.database import Clock, open_storage
from autotune.storage.locks import exclusive_use
from autotune.study.judging import Judge, JudgeOnAllSamples
from autotune.study.other_builds import OtherBuilds

SAMPLES = "samples"
"""Folder of the raw run times, in a study's folder."""

# Answers up to so many times too far off are timed, to say what a looser limit would allow.
_LOOSER = 4


def duet_measurer(ctx: Context, preparer: Preparer, reference_ms: float | None) -> Measurer:
    """Returns the real measurer of a study.

    Args:
        reference_ms: Latency of the default as the study knows it; measured if None.
    """
    return DuetMeasurer(
        ctx.model,
        ctx.workload,
        preparer,
        max_error=ctx.limits.max_error,
        timed_error=_LOOSER * ctx.limits.max_error,
        metric=ctx.metric,
        reference_ms=reference_ms,
        samples=ctx.folder / SAMPLES,
        provider_cache=ctx.folder / CACHE_FOLDER,
        batching=ctx.batching,
        clients=ctx.clients,
    )


@dataclass(frozen=True, kw_only=True)
class Seams:
    """The functions through which a study reaches processes, time, locks, storage and machine.

    Attributes:
        lock: Holds the folder, the database file and the cores.
        runtimes: Describes the other ONNX Runtimes that a study names.
        other_builds: Says what a build would bring that a study does not search.
        firing: Finds ONNX Runtime's optimisations that change a model.
    """

    measurer: Callable[[Context, Preparer, float | None], Measurer] = duet_measurer
    judge: Callable[..., Judge] = JudgeOnAllSamples
    clock: Clock = field(default_factory=Clock)
    lock: Callable[..., AbstractContextManager[None]] = exclusive_use
    storage: Callable[..., AbstractContextManager[optuna.storages.BaseStorage]] = open_storage
    hardware: Callable[[], Hardware] = hardware
    runtime: Callable[[], Runtime] = runtime
    providers: Callable[[], tuple[ProviderState, ...]] = provider_states
    runtimes: Callable[..., tuple[SearchedRuntime, ...]] = searched_runtimes
    other_builds: Callable[..., OtherBuilds] = OtherBuilds
    firing: Callable[[Model], tuple[str, ...]] = firing_optimizers
