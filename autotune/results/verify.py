"""The last check of a study: what it wrote is loaded as an application does, and gives answers."""

from autotune.deploy.config import Evidence
from autotune.errors import CannotMeasureError, StorageError
from autotune.measure.outcome import Failure, Fidelity, Measurer
from autotune.results.emit import CONFIG
from autotune.results.result import FRONT, StudyResult
from autotune.search.finalists import EXACT_ERROR
from autotune.search.trial import Limits


def verify(result: StudyResult, measurer: Measurer, limits: Limits) -> None:
    """Checks the config in the result's folder, in a fresh process.

    Where it fails, ``best.json`` and ``front.json`` are removed: no application loads a config with
    wrong answers, and the next study does not take the result for done.

    Args:
        result: The result, as it was written.
        measurer: Compares the answers.
        limits: The limits of the study.

    Raises:
        CannotMeasureError: the config does not load, or its answers are not those of the trial.
        StorageError: a disk is full, so the answers cannot be compared.
    """
    evidence = result.best.evidence
    try:
        outcome = measurer.answers_of(result.folder / CONFIG)
    except StorageError:
        _remove(result)
        raise
    if isinstance(outcome, Failure):
        reason = outcome.message
    elif _as_measured(outcome, evidence, limits):
        return
    else:
        reason = f"it has {_words(outcome)}, and trial {result.picked} had {_words(evidence)}"
    _remove(result)
    raise CannotMeasureError(
        f"the written {result.folder / CONFIG} does not do what was measured ({reason}), so it was "
        "removed. The trials are kept; type the same command again."
    )


def _remove(result: StudyResult) -> None:
    for name in (CONFIG, FRONT):
        (result.folder / name).unlink(missing_ok=True)


def _as_measured(fidelity: Fidelity, evidence: Evidence, limits: Limits) -> bool:
    """Returns whether answers keep the limits, or are as right as when they were measured.

    The default may be emitted although it breaks them.
    """
    if limits.admit_answers(fidelity.error, fidelity.drop):
        return True
    worse = (evidence.metric or 0.0) - (fidelity.metric or 0.0)
    return fidelity.error <= evidence.error + EXACT_ERROR and worse <= EXACT_ERROR


def _words(answers: Fidelity | Evidence) -> str:
    metric = "" if answers.metric is None else f" and metric {answers.metric:.4g}"
    return f"error {answers.error:.2g}{metric}"
