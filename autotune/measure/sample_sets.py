"""The samples of each batch size, with the unoptimised model's answers to them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.deploy.session import SessionConfig
from autotune.errors import CannotMeasureError
from autotune.facts.batches import Batching
from autotune.facts.model import Model
from autotune.facts.runtime import without_places
from autotune.facts.workload import Workload
from autotune.measure.answers import (
    Judge,
    Metric,
    OutputJudge,
    OutputMismatchError,
    Outputs,
    compare,
    coverage_of,
)
from autotune.measure.configuration_run import FIRST_LIMITS
from autotune.measure.requests import (
    SampleFiles,
    request_origins,
    request_outputs,
    request_session,
)
from autotune.process.child import Child, ChildFailure

UNOPTIMISED = SessionConfig(options={"graph_optimization_level": "ORT_DISABLE_ALL"})
"""How the model is opened whose outputs are the right answers."""

SAME_ANSWERS = 1e-3
"""Another order of the same sums differs by less, in half precision too."""

# Eight-bit products whose scale follows all numbers of a batch differ by less.
_SAME_BATCH = 0.05


@dataclass(frozen=True, kw_only=True)
class SampleSet:
    """The samples of one batch size.

    Attributes:
        files: The samples; their `batch` is the size.
        judge: Compares outputs with the unoptimised model's.
    """

    files: SampleFiles
    dimensions: Mapping[str, int]
    judge: Judge


def sample_sets(
    child: Child,
    model: Model,
    workload: Workload,
    folder: Path,
    *,
    batching: Batching | None,
    metric: Metric | None,
    max_error: float,
) -> dict[int, SampleSet]:
    """Returns the samples of each batch size, the smallest first.

    Raises:
        CannotMeasureError: the model does not run on the samples, its answers cannot be compared,
            or the answers of a batch are not those of its samples.
    """
    single = SampleFiles.write(workload, folder)
    try:
        request_session(child, single, model.path.absolute(), UNOPTIMISED, FIRST_LIMITS.load_s)
        limit_s = FIRST_LIMITS.of_runs(len(workload.validation))
        references = request_outputs(child, single, limit_s)
        repeated = request_outputs(child, single, limit_s)
    except ChildFailure as failure:
        raise CannotMeasureError(
            f"{model.path.name} does not run on these inputs ({failure.kind}): "
            f"{without_places(failure.message).rstrip('.')}. Give real ones with --data, "
            "or their sizes with --shape."
        ) from None
    if not references[0]:
        raise CannotMeasureError(f"{model.path.name} has no outputs, so its answers are unknown.")
    repeat_error = _repeat_error(model, references, repeated, max_error)
    origins = request_origins(child, single, model.path.absolute(), references, limit_s)
    named = workload.dimensions(model)
    sets = {}
    for size in batching.sizes if batching else (1,):
        files, dimensions = single, named
        answers: Sequence[Outputs] = references
        if batching is not None:
            files = SampleFiles.write(workload, folder, batching, size)
            answers = _batch_answers(child, model, files)
            _check_batch(model, size, references, answers, repeat_error)
            dimensions = batching.dimensions(named, size)
        coverage = coverage_of(answers, repeat_error)
        judge = OutputJudge(answers, workload.judged, metric, coverage, origins)
        sets[size] = SampleSet(files=files, dimensions=dimensions, judge=judge)
    return sets


def _batch_answers(child: Child, model: Model, files: SampleFiles) -> Sequence[Outputs]:
    """Returns the unoptimised model's answers to batches, sample by sample.

    Raises:
        CannotMeasureError: it does not run in batches, or an output has no batch dimension.
    """
    try:
        return request_outputs(child, files, FIRST_LIMITS.run_s * (files.batch or 1))
    except ChildFailure as failure:
        raise CannotMeasureError(
            f"{model.path.name} does not run in batches of {files.batch} ({failure.kind}): "
            f"{without_places(failure.message).rstrip('.')}. Name smaller sizes with --batch."
        ) from None
    except OutputMismatchError as mismatch:
        raise CannotMeasureError(
            f"{model.path.name} cannot be run in batches: {mismatch}. Leave --batch out."
        ) from None


def _check_batch(
    model: Model,
    size: int,
    singles: Sequence[Outputs],
    answers: Sequence[Outputs],
    repeat_error: float,
) -> None:
    """Refuses a model whose answers to a batch are not those to its samples.

    Its first dimension counts something else, such as the steps of a sequence.

    Raises:
        CannotMeasureError: they are further apart than rounding explains.
    """
    try:
        error = compare(singles, answers).error
        difference = f"error {error:.2g}"
    except OutputMismatchError as mismatch:
        error, difference = math.inf, str(mismatch)
    if not error <= _SAME_BATCH + 2 * repeat_error:
        raise CannotMeasureError(
            f"the answers of {model.path.name} to a batch of {size} are not those to its samples "
            f"one by one ({difference}): the first dimension is no batch. Leave --batch out."
        )


def _repeat_error(
    model: Model, references: Sequence[Outputs], repeated: Sequence[Outputs], max_error: float
) -> float:
    """Returns the error between two runs of the unoptimised model on the same samples.

    Raises:
        CannotMeasureError: it alone is larger than a right answer's may be.
    """
    try:
        error = compare(references, repeated).error
        difference = f"error {error:.2g} between two runs on the same inputs"
    except OutputMismatchError as mismatch:
        error, difference = math.inf, f"in the second run {mismatch}"
    if error < SAME_ANSWERS:
        return 0.0
    if not (math.isfinite(error) and error <= max_error):
        raise CannotMeasureError(
            f"the answers of {model.path.name} differ from run to run ({difference}), so "
            "they cannot be compared. Export the model for inference, without dropout and "
            "without random numbers."
        )
    return error
