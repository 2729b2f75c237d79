"""The record of a study: Optuna's storage, one SQLite file in the study's folder."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import optuna
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from autotune.errors import StorageError, StudyError
from autotune.measure.outcome import Failure, Measurement
from autotune.search.trial import Trial
from autotune.space.candidate import Candidate

DATABASE = "study.db"


@contextlib.contextmanager
def sole_driver(folder: Path) -> Iterator[None]:
    """Holds the lock of the folder: two studies on one machine would measure each other.

    Raises:
        StudyError: another process holds it.
    """
    lock = filelock.FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise StudyError(
            f"another autotune is at work in {folder}; wait for it, or give this one --out DIR"
        ) from None
    except OSError as error:
        raise StudyError(f"cannot write to {folder}: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Silences Optuna's log lines and its notes that something is experimental."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(level)


@contextlib.contextmanager
def storage_faults(folder: Path) -> Iterator[None]:
    """Turns what the database or the disk raises into a :class:`StorageError`."""
    try:
        yield
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        told = f"{error} {error.__cause__}"
        if "not a database" in told or "malformed" in told:
            raise StorageError(
                f"{folder / DATABASE} is damaged; move it away and type the same command again, "
                "or restore it from a copy"
            ) from None
        logging.getLogger(__name__).debug("storage fault", exc_info=error)
        raise StorageError(
            f"the study's database {folder / DATABASE} gave out "
            f"({type(error).__name__}: is the disk full?). What was measured is kept; "
            "type the same command again to go on."
        ) from None


def open_storage(folder: Path) -> optuna.storages.RDBStorage:
    """Returns the storage of the study folder, made if there is none.

    Raises:
        StorageError: there is a file that is no database of Optuna.
    """
    path = (folder / DATABASE).resolve()
    with storage_faults(folder):
        try:
            return optuna.storages.RDBStorage(
                f"sqlite:///{path}", engine_kwargs={"connect_args": {"timeout": 60}}
            )
        except RuntimeError as error:  # how Optuna reports another schema version
            raise StudyError(f"{path} was written by another Optuna: {error}") from None


def trials(study: optuna.Study) -> list[Trial]:
    """Returns what was measured in the study, in order, without duplicates."""
    found = []
    for frozen in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)):
        if (trial := _trial(frozen)) is not None:
            found.append(trial)
    return found


def describe(trial: Trial) -> dict[str, Any]:
    """Returns the user attributes that keep a trial; :func:`trials` reads them."""
    kind = "measurement" if trial.measurement else "failure"
    return {"candidate": trial.candidate.to_json(), kind: trial.outcome.to_json()}


def _trial(frozen: FrozenTrial) -> Trial | None:
    attributes = frozen.user_attrs
    candidate = Candidate.of(attributes.get("candidate", {}))
    if "measurement" in attributes:
        outcome: Measurement | Failure = Measurement.from_json(attributes["measurement"])
    elif "failure" in attributes:
        outcome = Failure(**attributes["failure"])
    else:  # answered from the record
        return None
    return Trial(number=frozen.number, candidate=candidate, outcome=outcome)
