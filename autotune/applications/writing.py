"""Writes a tuned application: a folder with a config for each session that is replaced."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.applications.recording import RecordedSession
from autotune.deploy.application import CONFIG, FILE, ReplacedSession, TunedApplication
from autotune.deploy.config import DataFile, TunedConfig
from autotune.results.writing import write_json


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """What is opened in place of a session.

    Attributes:
        session: The session of the application.
        data_files: External data files of its model.
        config: The config; None leaves the session as it is.
        source: The folder with the config's model.
    """

    session: RecordedSession
    data_files: tuple[DataFile, ...] = ()
    config: TunedConfig | None
    source: Path | None


def write_application(
    folder: Path, replacements: Sequence[Replacement], pool_threads: int | None = None
) -> None:
    """Writes a tuned application into `folder`; ``application.json`` comes last.

    Args:
        folder: The folder; files of an earlier result are replaced.
        replacements: All sessions of the application.
        pool_threads: Threads of the pool that the sessions share; None where each has its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).unlink(missing_ok=True)
    for item in replacements:
        if item.config is not None and item.source is not None:
            _write_config(folder / item.session.name, item.config, item.source)
    tuned = TunedApplication(
        sessions=tuple(_replaced(item) for item in replacements), pool_threads=pool_threads
    )
    write_json(tuned.to_json(), folder / FILE)


def _replaced(item: Replacement) -> ReplacedSession:
    opened = item.session.opened
    return ReplacedSession(
        name=item.session.name,
        sha256=opened.sha256,
        size_bytes=opened.size_bytes,
        data_files=item.data_files,
        passed=opened.passed,
        providers=opened.providers,
        interface=opened.interface,
        folder=item.session.name if item.config is not None else None,
    )


def _write_config(folder: Path, config: TunedConfig, source: Path) -> None:
    folder.mkdir(exist_ok=True)
    if source.resolve() != folder.resolve():
        for name in config.model.names:
            shutil.copyfile(source / name, folder / name)
    write_json(config.to_json(), folder / CONFIG)
