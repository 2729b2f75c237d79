"""Writes a tuned application: a folder with a config for each session that is replaced.

New configs never take the place of those in use: they get folders that the present
``application.json`` does not name, and its one rename switches from the old set to the new one. The
old folders go last. So it names a whole set at any time, whatever ends the process.
"""

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.applications.recording import RecordedSession
from autotune.deploy.application import CONFIG, FILE, ReplacedSession, TunedApplication
from autotune.deploy.config import TunedConfig
from autotune.deploy.loaded import DataFile
from autotune.deploy.providers import CACHE_FOLDER
from autotune.errors import ConfigError, StudyError
from autotune.process.durable import write_json
from autotune.results.writing import RESULT_FILES, entries_like


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
    """Writes a tuned application into `folder`; ``application.json`` switches to it.

    Args:
        folder: The folder; an earlier result in it is removed once this one is whole.
        replacements: All sessions of the application.
        pool_threads: Threads of the pool that the sessions share; None where each has its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    old = _folders_in_use(folder)
    places = new_folders(folder, [item.session.name for item in replacements])
    for item in replacements:
        if item.config is not None and item.source is not None:
            _write_config(places[item.session.name], item.config, item.source)
    sessions = tuple(_replaced(item, places[item.session.name]) for item in replacements)
    tuned = TunedApplication(sessions=sessions, pool_threads=pool_threads)
    write_json(tuned.to_json(), folder / FILE)
    for name in old - _folders_in_use(folder):
        _remove_config(folder / name)


def new_folders(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """Returns by the names of sessions folders that the tuned application in `folder` lacks."""
    taken = _folders_in_use(folder)
    places: dict[str, Path] = {}
    for name in sorted(names):
        free = name
        while free in taken:
            free += ".2"
        taken.add(free)
        places[name] = folder / free
    return places


def _folders_in_use(folder: Path) -> set[str]:
    """Returns the folders that the present ``application.json`` names; none where it is wrong."""
    try:
        sessions = TunedApplication.read(folder).sessions
    except ConfigError:
        return set()
    return {session.folder for session in sessions if session.folder is not None}


def _replaced(item: Replacement, place: Path) -> ReplacedSession:
    opened = item.session.opened
    return ReplacedSession(
        name=item.session.name,
        sha256=opened.sha256,
        size_bytes=opened.size_bytes,
        data_files=item.data_files,
        passed=opened.passed,
        providers=opened.providers,
        interface=opened.interface,
        folder=place.name if item.config is not None else None,
    )


def _write_config(folder: Path, config: TunedConfig, source: Path) -> None:
    folder.mkdir(exist_ok=True)
    if source.resolve() != folder.resolve():
        for name in config.model.names:
            shutil.copyfile(source / name, folder / name)
    write_json(config.to_json(), folder / CONFIG)


def _remove_config(folder: Path) -> None:
    """Removes what was written to a folder, and the folder where it holds nothing else."""
    shutil.rmtree(folder / CACHE_FOLDER, ignore_errors=True)
    with contextlib.suppress(OSError, StudyError):  # an application may have it open
        for file in entries_like(folder, RESULT_FILES):
            file.unlink()
        folder.rmdir()
