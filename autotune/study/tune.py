"""From a model and a wish to a tuned config that is proven."""

import os
from typing import Any

from autotune.errors import system_fault
from autotune.results.result import StudyResult
from autotune.study.options import StudyOptions
from autotune.study.progress import OnProgress
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
    try:
        return run_study(record, report)
    except (OSError, MemoryError) as fault:
        error = system_fault(fault)
        if error is None:
            raise
        raise error from fault
