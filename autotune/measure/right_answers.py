"""The right answers of a model: those that it gives without any optimisation, on the CPU."""

import math
from collections.abc import Sequence

from autotune.deploy.session import SessionConfig
from autotune.errors import CannotMeasureError
from autotune.facts.model import Model
from autotune.facts.runtime import without_places
from autotune.facts.workload import Workload
from autotune.measure.coverage import coverage_of, incomparable
from autotune.measure.fidelity import Metric, OutputJudge, OutputMismatchError, Outputs, compare
from autotune.measure.requests import SampleFiles, request_outputs, request_session
from autotune.measure.visit import TimeLimits
from autotune.process.child import Child, ChildFailure

# Another order of the same sums differs by less, in half precision too.
_SAME_ANSWERS = 1e-3


def judge_of(
    child: Child,
    files: SampleFiles,
    model: Model,
    workload: Workload,
    metric: Metric | None,
    max_error: float,
    limits: TimeLimits,
) -> OutputJudge:
    """Returns what compares outputs with those of the unoptimised model.

    Args:
        child: A fresh process, which runs the model.
        files: Its samples.
        model: The model.
        workload: The inputs from which `files` were written.
        metric: The user's own judge of outputs.
        max_error: Largest error of right outputs.
        limits: How long to wait for the process.

    Raises:
        CannotMeasureError: the model does not run on these inputs, or its answers cannot be
            compared: they are no numbers, or differ from run to run by more than `max_error`.
    """
    plain = SessionConfig(options={"graph_optimization_level": "ORT_DISABLE_ALL"})
    try:
        # the process works in another folder
        request_session(child, files, model.path.resolve(), plain, limits.load_s)
        references = request_outputs(child, files, limits.run_s)
        repeated = request_outputs(child, files, limits.run_s)
    except ChildFailure as failure:
        raise CannotMeasureError(
            f"{model.path.name} does not run on these inputs ({failure.kind}): "
            f"{without_places(failure.message).rstrip('.')}. Give real ones with --data, "
            "or their sizes with --shape."
        ) from None
    if reason := incomparable(references):
        raise CannotMeasureError(
            f"the answers of {model.path.name} cannot be compared on these inputs: "
            f"{reason}. Give other inputs with --data."
        )
    repeat_error = _repeat_error(model.path.name, references, repeated, max_error)
    coverage = coverage_of(references, repeat_error)
    return OutputJudge(references, workload.validation, metric, coverage)


def _repeat_error(
    name: str, references: Sequence[Outputs], repeated: Sequence[Outputs], max_error: float
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
    if error < _SAME_ANSWERS:
        return 0.0
    if not (math.isfinite(error) and error <= max_error):
        raise CannotMeasureError(
            f"the answers of {name} differ from run to run ({difference}), so "
            "they cannot be compared. Export the model for inference, without dropout and "
            "without random numbers."
        )
    return error
