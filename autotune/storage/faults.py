"""The errors of Optuna's storage where the database or the disk fails."""

import optuna
from sqlalchemy.exc import SQLAlchemyError

FAULTS = (SQLAlchemyError, optuna.exceptions.StorageInternalError)
