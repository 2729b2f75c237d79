"""The config of a study is certified for the processors that the user names, once it is written."""

from autotune.deploy.certificates import Certificate
from autotune.results.certification import certify, check_kinds
from autotune.results.result import StudyResult
from autotune.results.writing import CONFIG
from autotune.study.options import StudyOptions
from autotune.study.progress import OnProgress, Progress

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
