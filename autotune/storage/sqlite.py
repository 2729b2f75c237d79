"""SQLite files, which may come from a stranger: looked at before Optuna touches them.

The schema of a SQLite file is a program. A view can recurse for ever, a trigger can run on every
write, and a virtual table brings code of its own. Optuna's storages have plain tables and indexes,
so anything else is refused. A statement that runs on is stopped, and Ctrl-C stops a long one:
SQLite calls a function of ours in between, and Python runs its signal handlers there.
"""

import contextlib
import math
import os
import sqlite3
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from autotune.errors import FormatError, StudyError
from autotune.process.signals import signal_waits

FAULTS = (SQLAlchemyError, StorageInternalError)
"""How Optuna reports a database that does not answer."""

_LARGEST_BYTES = 4 << 30
_LOCK_PATIENCE_S = 60
# Steps of SQLite's machine between two calls of the watch: some milliseconds.
_STEPS = 1_000_000
# Reading the trials of a large study takes a few calls; this is a minute or so of steps.
_MOST_CALLS = 10_000
_CURE = "move it away and type the same command again, or restore it from a copy"
# The statement of a table of Optuna's begins so; that of a virtual table does not.
_PLAIN = ("CREATE TABLE", "CREATE INDEX", "CREATE UNIQUE INDEX")


class Watch:
    """Stops statements that run too long on the connections of one file.

    Attributes:
        has_stopped: Whether it has stopped a statement.
    """

    def __init__(self) -> None:
        self.has_stopped = False
        self._calls = 0

    def begin(self, *_: object) -> None:
        """Begins to count anew, for the next statement."""
        self._calls = 0

    def connect(self, path: Path) -> sqlite3.Connection:
        """Returns a connection that is watched, and that trusts nothing in the file's schema."""
        connection = sqlite3.connect(path, timeout=_LOCK_PATIENCE_S, check_same_thread=False)
        connection.set_progress_handler(self._call, _STEPS)
        # functions in a schema must be harmless ones, and cells of damaged pages are checked
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        return connection

    def _call(self) -> bool:
        self._calls += 1
        self.has_stopped = self.has_stopped or self._calls > _MOST_CALLS
        return self._calls > _MOST_CALLS or signal_waits()


def check_file(path: Path, watch: Watch) -> None:
    """Refuses a file that is no storage of Optuna's; one that is missing will be made.

    Raises:
        StudyError: it is a link or no regular file, is too large, or its schema holds more than
            tables and indexes.
        sqlite3.Error: it is no database, or a damaged one.
    """
    _check_kind(path)
    if not path.exists():
        return
    with contextlib.closing(watch.connect(path)) as connection:
        for kind, name, statement in connection.execute(
            "SELECT type, name, sql FROM sqlite_master ORDER BY name"
        ):
            # SQLite makes the indexes of keys itself, without a statement
            if kind not in {"table", "index"} or not (statement or "CREATE INDEX").startswith(
                _PLAIN
            ):
                raise StudyError(
                    f"{path} is no storage of a study: it holds the {kind} {str(name)[:100]!r}, "
                    f"and a storage has plain tables alone; {_CURE}"
                )
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(f"malformed: {verdict}")


def _check_kind(path: Path) -> None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise StudyError(f"cannot open the storage {path}: {reason}; name another one") from None
    if stat.S_ISLNK(status.st_mode):
        raise StudyError(
            f"{path} is a link, and a study does not write through links; name the file itself "
            "with --storage sqlite:///FILE"
        )
    if not stat.S_ISREG(status.st_mode):
        raise StudyError(f"{path} is no file, and a storage is one; {_CURE}")
    if status.st_size > _LARGEST_BYTES:
        raise StudyError(f"{path} is larger than 4 GiB, the most that a storage may have; {_CURE}")


_FIXED = "fixed_params"
# A file name has 255 bytes at most.
_LONGEST_NAME = 243


def check_contents(storage: optuna.storages.RDBStorage, place: str) -> None:
    """Refuses a storage whose studies or trials Optuna cannot work with.

    Raises:
        StudyError: there is such a study; the message names it.
    """
    name = "the list of studies"
    try:
        for study_name in optuna.get_all_study_names(storage):
            name = f"the study {study_name[:100]!r}"
            _check_text(study_name)
            study = optuna.load_study(study_name=study_name, storage=storage)
            trials = study.get_trials(deepcopy=False)
            if [trial.number for trial in trials] != list(range(len(trials))):
                raise FormatError("its trials are not numbered from 0 on")
            for trial in trials:
                _check_trial(trial, len(study.directions))
    except FAULTS:
        raise
    except Exception as error:  # noqa: BLE001  # Optuna's readers fail in any way
        reason = str(error)[:200] or type(error).__name__
        raise StudyError(
            f"{place} is damaged: {name} cannot be read ({reason}); move it away "
            "and type the same command again, or restore it from a copy"
        ) from None


def _check_text(name: str) -> None:
    """Refuses a name of a study that no file can carry: a study's files are named after it."""
    if not name or set(name) & {"/", "\0", os.sep} or len(name.encode()) > _LONGEST_NAME:
        raise FormatError("its name is not one that autotune gives")


def _check_trial(trial: FrozenTrial, objectives: int) -> None:
    """Refuses a trial that Optuna itself would not make."""
    numbers: Sequence[Any] = [*(trial.values or []), *trial.constraints.values()]
    if any(type(number) not in {int, float} or math.isnan(number) for number in numbers):
        raise FormatError(f"trial {trial.number} has a value that is no number")
    if trial.state == TrialState.COMPLETE and len(trial.values or []) != objectives:
        raise FormatError(f"trial {trial.number} has another number of objectives")
    if not isinstance(trial.system_attrs.get(_FIXED, {}), dict):
        raise FormatError(f"the parameters of trial {trial.number} are no object")
    # makes the same checks as for a new trial: its values lie within their distributions
    create_trial(
        state=trial.state,
        values=trial.values,
        params=trial.params,
        distributions=trial.distributions,
    )
