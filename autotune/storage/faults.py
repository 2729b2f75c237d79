"""The errors of Optuna's storage where the database or the disk fails."""

import optuna
from sqlalchemy.exc import SQLAlchemyError

FAULTS = (SQLAlchemyError, optuna.exceptions.StorageInternalError)
"""The errors that Optuna raises where the database or the disk fails."""


def fault_behind(error: BaseException) -> Exception | None:
    """Returns the fault of the storage that caused an error; None if there was none.

    Where Optuna cannot store the end of a trial it fails a second time: it asserts that the trial
    is not running, or uses a name that was never bound.
    """
    if isinstance(error, FAULTS):
        return error
    if isinstance(error, AssertionError | NameError) and error.__context__ is not None:
        return fault_behind(error.__context__)
    return None


def is_given_up(error: BaseException) -> bool:
    """Returns whether an error says that another worker has ended the trial of this one.

    That happens where this worker showed no sign of life for long: its machine was suspended, or
    had no network. Optuna has no class for the second of these errors.
    """
    if isinstance(error, optuna.exceptions.UpdateFinishedTrialError):
        return True
    return isinstance(error, ValueError) and str(error) == "Cannot tell a FAIL trial."
