"""The page of a study: ``report``, and the page that ``study`` and ``pick`` write.

Commands import what they need when they run, so that ``--help`` and refusals come at once.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.console import messages, output
from autotune.cli.options import FolderArgument, StudyNameOption, UrlOption
from autotune.errors import AutotuneError, RequestError
from autotune.storage.masking import without_secrets

if TYPE_CHECKING:
    from autotune.study.progress import OnProgress


def report(
    folder: FolderArgument,
    storage: UrlOption = None,
    study_name: StudyNameOption = None,
) -> None:
    """Writes report.html: a page with figures that shows a study.

    It is made from what the folder holds, also while the study runs. A tuned application has a page
    of its own kind.
    """
    output().print(f"Wrote {_write_page(folder, storage, study_name)}", soft_wrap=True)


def _write_page(folder: Path, storage: str | None, study_name: str | None = None) -> Path:
    """Writes the page of a study, or of a tuned application; returns its path."""
    from autotune.applications.result import has_result
    from autotune.report.page.application import write_application_report
    from autotune.report.page.writing import write_report

    if not has_result(folder):
        return write_report(folder, storage, study_name)
    if storage is not None or study_name is not None:
        raise RequestError(
            f"{folder} is a tuned application, whose page takes no options; the study of each "
            f"of its models is in {folder / 'studies'}"
        )
    return write_application_report(folder)


def live_page() -> "OnProgress":
    """Returns what keeps the page of a study up to date while the study runs."""
    from autotune.report.page.live import LivePage

    def announce(page: Path) -> None:
        messages().print(f"{page} shows the study while it runs.", style="dim", soft_wrap=True)

    return LivePage(announce)


def write_last_page(folder: Path, storage: str | None = None) -> str:
    """Writes the page of a study that has ended; returns why it was not written, or nothing.

    The result is written already, so a page that cannot be written ends no command.
    """
    from autotune.results.writing import PAGE

    try:
        _write_page(folder, storage)
    except (AutotuneError, OSError) as error:
        return f"{PAGE} was not written: {without_secrets(str(error))}"
    return ""
