"""From a model and a wish to a tuned config that is proven."""

import os
from typing import Any

from autotune.deploy.config import Certificate
from autotune.errors import system_fault
from autotune.results.certification import certify, check_kinds
from autotune.results.result import StudyResult
from autotune.results.writing import CONFIG
from autotune.study.options import StudyOptions
from autotune.study.progress import OnProgress, Progress
from autotune.study.run import run_study


def tune(
    model: str | os.PathLike[str] | StudyOptions,
    *,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> StudyResult:
    """Finds how ONNX Runtime runs a model best on this machine, and writes the tuned config.

    The same job as ``autotune study``. A study that exists in the folder goes on; nothing is
    measured twice. Call it from the main thread: measuring processes end with the thread that
    started them.

    Args:
        model: The .onnx file, or all options as a record.
        options: Options by name, with the defaults of :class:`StudyOptions`, which describes them.

    Returns:
        The result; ``result.folder / "best.json"`` is what :func:`autotune.load` takes.

    Raises:
        AutotuneError: the request is wrong, or nothing can be measured here.
        Interrupted: Ctrl-C after the default was measured.
    """
    if isinstance(model, StudyOptions):
        record = model.with_changes(**options)
    else:
        record = StudyOptions.of(model, **options)
    report = on_progress or (lambda _: None)
    check_processors(record.certify)
    try:
        result = run_study(record, report)
        if record.certify:
            certify_result(record, result, report)
    except (OSError, MemoryError) as fault:
        error = system_fault(fault)
        if error is None:
            raise
        raise error from fault
    return result


AUTO = "auto"
"""The word for the processors on which the operators of the config's file depend."""


def check_processors(names: tuple[str, ...]) -> None:
    """Refuses words that name no processors, before a study begins.

    Raises:
        RequestError: there is one.
    """
    if names != (AUTO,):
        check_kinds(names, "--certify: ", f", or {AUTO} alone")


def certify_result(options: StudyOptions, result: StudyResult, report: OnProgress) -> None:
    """Writes into the config of a result on which processors its answers were compared.

    Args:
        report: Called with a sentence for each processor and each way to call the model.

    Raises:
        AutotuneError: the config cannot be compared.
    """
    report(Progress(stage="certify"))
    config = certify(
        result.folder / CONFIG,
        processors=None if options.certify == (AUTO,) else options.certify,
        source=result.model,
        data=options.data,
        shapes=options.shapes,
    )
    for certificate in config.certified:
        report(Progress(stage="certify", note=_sentence(certificate)))


def _sentence(certificate: Certificate) -> str:
    called = f"batches of {certificate.batch}" if certificate.batch > 1 else "single samples"
    if certificate.padding:
        called = f"{certificate.padding} positions of padding"
    outcome = certificate.outcome
    if certificate.error is not None:
        outcome = f"error {certificate.error:.2g} with {called}"
    return f"{certificate.processor}: {outcome} ({certificate.how})"
